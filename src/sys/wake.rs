//! Writing to a pipe whose reader may be gone, in a process whose signal dispositions are not ours to change.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Like write(2), but a reader that is gone is EPIPE alone: the SIGPIPE that comes with it, which would end a process
/// that did not ask for our pipes, is held back for this thread and taken off again (unless one was pending before).
pub(crate) fn write_without_sigpipe(pipe: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let mut sigpipe = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: every set is initialised by the first call that gets it, and all calls get pointers that outlive them.
    // SIGPIPE is raised by write(2) for the writing thread, so blocking it in this thread is enough.
    unsafe {
        libc::sigemptyset(sigpipe.as_mut_ptr());
        libc::sigaddset(sigpipe.as_mut_ptr(), libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, sigpipe.as_ptr(), before.as_mut_ptr());
        // One that was not held back until now cannot have been pending.
        let was_blocked = libc::sigismember(before.as_ptr(), libc::SIGPIPE) == 1;
        let was_pending = was_blocked && {
            libc::sigemptyset(pending.as_mut_ptr());
            libc::sigpending(pending.as_mut_ptr());
            libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1
        };

        let written = libc::write(pipe.as_raw_fd(), bytes.as_ptr().cast(), bytes.len());
        let result = if written < 0 { Err(io::Error::last_os_error()) } else { Ok(written as usize) };

        if matches!(&result, Err(error) if error.raw_os_error() == Some(libc::EPIPE)) && !was_pending {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            while libc::sigtimedwait(sigpipe.as_ptr(), std::ptr::null_mut(), &raw const at_once) < 0
                && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
            {}
        }
        if !was_blocked {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
        result
    }
}
