//! Memory that processes share.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Words that are mapped shared, mostly the first of a file: a store is seen by every process that has them mapped, or reads
/// the file.
///
/// The file must have that many bytes, with blocks behind them, for as long as the words are used: touching what is
/// not there is SIGBUS. Who maps a file that others may damage checks its size before each use.
#[derive(Debug)]
pub(crate) struct SharedWords {
    at: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the words are only reached as atomics, and the mapping lives as long as the value.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    pub(crate) fn map(file: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        Self::mapped(count, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Words without a file, nought at first, for this process and those that are forked from it.
    #[cfg(all(feature = "cli", feature = "etcd"))]
    pub(crate) fn anonymous(count: usize) -> io::Result<Self> {
        Self::mapped(count, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)
    }

    fn mapped(count: usize, flags: libc::c_int, file: libc::c_int) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count * size_of::<AtomicU64>(),
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                file,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        match NonNull::new(page.cast()) {
            Some(at) => Ok(Self { at, count }),
            None => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
        }
    }
}

impl std::ops::Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `count` words are mapped, page-aligned, for the life of `self`; any bytes are valid atomics, and
        // other processes change them only as whole words or through the kernel, which atomics allow for.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.count) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; nothing borrows from it any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.count * size_of::<AtomicU64>()) };
    }
}
