//! Writing to pipes and sockets whose far end may be gone, in a process whose signal dispositions are not ours to change.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// As long as it lives, writes of this thread to what nobody reads any more are EPIPE alone: the SIGPIPE that comes with it,
/// which would end a process that did not ask for our writes, is held back, and taken off again in the end (unless one was
/// pending before). SIGPIPE is raised by write(2) for the writing thread, so holding it back in this thread is enough.
pub(crate) struct SigpipeHeld {
    sigpipe: libc::sigset_t,
    /// The mask to go back to; `None`: it was held back already.
    before: Option<libc::sigset_t>,
    was_pending: bool,
    /// Not for another thread, whose mask it would change.
    _here: std::marker::PhantomData<*const ()>,
}

impl SigpipeHeld {
    pub(crate) fn new() -> Self {
        let mut sigpipe = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut pending = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: all calls get pointers to sets that outlive them; a set of noughts is a valid value in any case.
        unsafe {
            libc::sigemptyset(sigpipe.as_mut_ptr());
            libc::sigaddset(sigpipe.as_mut_ptr(), libc::SIGPIPE);
            libc::pthread_sigmask(libc::SIG_BLOCK, sigpipe.as_ptr(), before.as_mut_ptr());
            let was_held = libc::sigismember(before.as_ptr(), libc::SIGPIPE) == 1;
            // One that was not held back until now cannot have been pending.
            let was_pending = was_held && {
                libc::sigpending(pending.as_mut_ptr());
                libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1
            };
            Self {
                sigpipe: sigpipe.assume_init(),
                before: (!was_held).then_some(before.assume_init()),
                was_pending,
                _here: std::marker::PhantomData,
            }
        }
    }

    /// Takes off what has come since; to be called when something may have.
    fn take(&self) {
        if self.was_pending {
            return;
        }
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointers are to values that outlive the call; nobody wants to know more of the signal.
        while unsafe { libc::sigtimedwait(&raw const self.sigpipe, std::ptr::null_mut(), &raw const at_once) } < 0
            && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
        {}
    }
}

impl Drop for SigpipeHeld {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: the set outlives the call.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::from_ref(before), std::ptr::null_mut()) };
        }
    }
}

/// Does something that may write to what nobody reads any more.
#[cfg(feature = "etcd")]
pub(crate) fn without_sigpipe<T>(work: impl FnOnce() -> T) -> T {
    let held = SigpipeHeld::new();
    let done = work();
    held.take();
    done
}

/// Like write(2), without SIGPIPE.
pub(crate) fn write_without_sigpipe(pipe: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let held = SigpipeHeld::new();
    // SAFETY: the kernel reads no more than the slice has.
    let written = unsafe { libc::write(pipe.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    if written >= 0 {
        return Ok(written as usize);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EPIPE) {
        held.take();
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// In a Rust test SIGPIPE is ignored; pending it can be all the same, as long as it is held back.
    #[test]
    fn a_reader_that_is_gone_is_an_error_and_no_signal() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(reader);
        let error = write_without_sigpipe(writer.as_fd(), b"x").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPIPE));
        // Who had it held back before has nothing pending either.
        let outer = SigpipeHeld::new();
        write_without_sigpipe(writer.as_fd(), b"x").unwrap_err();
        assert!(!SigpipeHeld::new().was_pending);
        drop(outer);
    }
}
