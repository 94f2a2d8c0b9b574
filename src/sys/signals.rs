//! Signal dispositions, and dying of a signal.

use std::mem::MaybeUninit;

use nix::sys::signal::Signal;

/// Whether the signal is ignored in this process now.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only; the kernel writes into a structure that outlives the call.
    let asked = unsafe { libc::sigaction(signal as libc::c_int, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeroed before, and filled where the call succeeded.
    asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Ignores the signal or gives it its default action; says whether it was ignored before.
///
/// Safe also between vfork and exec: sigaction(2) is async-signal-safe, and dispositions are the child's own.
pub(crate) fn set_ignored(signal: Signal, ignored: bool) -> bool {
    let disposition = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither disposition runs code of ours.
    unsafe { libc::signal(signal as libc::c_int, disposition) == libc::SIG_IGN }
}

/// Ends this process as the signal would have, had nobody caught it: the parent's wait status says "killed by".
///
/// No core is dumped: it is COMMAND that was hit, or nothing at all, and a core of the bystander helps nobody.
pub(crate) fn die_of(signal: Signal) -> ! {
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the structures outlive their calls; no handler of ours is run by a default action.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
        libc::signal(signal as libc::c_int, libc::SIG_DFL);
        libc::sigemptyset(all.as_mut_ptr());
        libc::sigaddset(all.as_mut_ptr(), signal as libc::c_int);
        libc::raise(signal as libc::c_int);
        libc::sigprocmask(libc::SIG_UNBLOCK, all.as_ptr(), std::ptr::null_mut());
        // Reached only where the signal's default is not to end a process.
        libc::_exit(128 + signal as libc::c_int)
    }
}
