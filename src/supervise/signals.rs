//! The signals that `claim` looks after while it waits or runs a COMMAND.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::sys::signals::{is_ignored, set_ignored};
use crate::sys::spawn::Program;

/// Passed on to COMMAND; most of them end a `claim` that waits.
const PASSED_ON: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
];

/// These signals, blocked and read from a descriptor, so that each is dealt with at a time of our choice.
pub(crate) struct Signals {
    fd: SignalFd,
    before: SigSet,
    /// Dispositions that we have changed, as we got them, for COMMAND.
    dispositions: Vec<(Signal, bool)>,
}

/// A signal that has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) signal: Signal,
    /// It came from the kernel: the terminal has sent it to the whole foreground group, COMMAND among it.
    pub(crate) from_kernel: bool,
}

impl Signals {
    /// Blocks them, and sees to it that children can be waited for and that a reader who has gone does not end us.
    pub(crate) fn take_over() -> io::Result<Self> {
        let mut set: SigSet = PASSED_ON.into_iter().collect();
        set.add(Signal::SIGCHLD);
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), Some(&mut before))?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        // Where SIGCHLD is ignored, the kernel reaps children itself and nobody learns how they ended. The others would
        // end us in the middle of a write; ignored, they leave it to the write to fail.
        let dispositions = [(Signal::SIGCHLD, false), (Signal::SIGPIPE, true), (Signal::SIGXFSZ, true)]
            .map(|(signal, ignored)| (signal, set_ignored(signal, ignored), ignored));
        let changed = dispositions.into_iter().filter(|(_, before, now)| before != now);
        Ok(Self { fd, before, dispositions: changed.map(|(signal, before, _)| (signal, before)).collect() })
    }

    /// The next signal that has come, if one has. A signal that whoever started us wanted ignored is: blocked, it is
    /// delivered to us all the same.
    pub(crate) fn next(&self) -> Option<Delivered> {
        /// `si_code` of what the kernel sends by itself (sigaction(2)).
        const SI_KERNEL: i32 = 0x80;
        loop {
            let info = self.fd.read_signal().ok()??;
            let Some(signal) = i32::try_from(info.ssi_signo).ok().and_then(|n| Signal::try_from(n).ok()) else {
                continue;
            };
            if signal == Signal::SIGCHLD || !is_ignored(signal) {
                return Some(Delivered { signal, from_kernel: info.ssi_code == SI_KERNEL });
            }
        }
    }

    /// The next signal that would have ended us, had we not looked after it.
    pub(crate) fn next_that_ends(&self) -> Option<Signal> {
        loop {
            let signal = self.next()?.signal;
            let harmless = matches!(signal, Signal::SIGCHLD | Signal::SIGWINCH | Signal::SIGCONT);
            if !harmless && !self.before.contains(signal) {
                return Some(signal);
            }
        }
    }

    /// A program that gets signal mask and dispositions as we got them.
    pub(crate) fn program(&self, argv: Vec<CString>, env: Vec<CString>) -> Program {
        Program::new(argv, env, self.before, self.dispositions.clone())
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
