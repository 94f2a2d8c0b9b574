//! A child that is a copy of this process.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A child that was forked.
pub(crate) struct Forked {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
}

/// Forks. The child runs `work` and ends with what that returns; nothing of its is dropped, so that what is the parent's is
/// left alone.
///
/// To be called by a process with one thread: what another one had locked (the allocator, say) would stay so in the child.
pub(crate) fn fork(work: impl FnOnce() -> i32) -> io::Result<Forked> {
    // SAFETY: there is one thread, so the child is a whole copy of a program that goes on in the same place.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let status = work();
            // SAFETY: ends the process without running what the parent has registered for its own end.
            unsafe { libc::_exit(status) }
        }
        pid => {
            let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
            // The pid is its own until we have waited for it.
            Ok(Forked { pid, pidfd: pidfd_open(pid, PidfdFlags::empty())? })
        }
    }
}
