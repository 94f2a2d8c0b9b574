//! A mark that a forked child does not inherit.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A word of memory that reads as it was set in the process that set it, and as nought in its forked children.
///
/// Asking costs a load, where `getpid` would cost a system call on every acquisition.
#[derive(Debug)]
pub(crate) struct ForkMark(NonNull<AtomicU64>);

const PAGE: usize = 4096;

// SAFETY: the word is only reached through atomic operations, and the mapping lives as long as the value.
unsafe impl Send for ForkMark {}
// SAFETY: as above.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    pub(crate) fn new(value: u64) -> io::Result<Self> {
        // SAFETY: a new anonymous mapping, at an address of the kernel's choice, disturbs nothing.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let Some(word) = NonNull::new(page.cast::<AtomicU64>()) else {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        };
        let mark = Self(word);
        // SAFETY: the range is the mapping just made.
        if unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        mark.set(value);
        Ok(mark)
    }

    pub(crate) fn get(&self) -> u64 {
        // SAFETY: the mapping is alive, aligned to a page, and zero-filled memory is a valid AtomicU64.
        unsafe { self.0.as_ref() }.load(Ordering::Relaxed)
    }

    /// Sets it if it reads as nought; says what it is then. Of several threads that do so, one sets it for all.
    pub(crate) fn set_first(&self, value: u64) -> u64 {
        // SAFETY: as in `get`.
        let word = unsafe { self.0.as_ref() };
        word.compare_exchange(0, value, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|set| set, |_| value)
    }

    fn set(&self, value: u64) {
        // SAFETY: as in `get`.
        unsafe { self.0.as_ref() }.store(value, Ordering::Relaxed);
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nothing borrows from it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE) };
    }
}
