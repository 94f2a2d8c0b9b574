//! Open-file-description locks (fcntl(2)): they go when the last descriptor of the description is closed, so when the
//! last process that inherited it is gone. A lock space apart from flock(2).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: `struct flock` is plain integers, for which all bits zero is a value; zero start and length is the
    // whole file, and l_pid must be zero for these locks.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

/// Locks the file for writing, for its description. Nobody else ever does that on a record of ours.
pub(crate) fn lock(file: BorrowedFd<'_>) -> io::Result<()> {
    let lock = whole_file(libc::F_WRLCK);
    // SAFETY: the descriptor is open and the structure outlives the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether some other description has the file locked.
pub(crate) fn is_locked(file: BorrowedFd<'_>) -> io::Result<bool> {
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: the descriptor is open; the kernel writes into a structure that outlives the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
        0 => Ok(lock.l_type != libc::F_UNLCK as libc::c_short),
        _ => Err(io::Error::last_os_error()),
    }
}
