//! Running a COMMAND, and being no more in its way than need be.

#[cfg(feature = "etcd")]
mod alarm;
#[cfg(feature = "etcd")]
pub(crate) mod keeper;
#[cfg(feature = "etcd")]
pub(crate) mod kept;
#[cfg(feature = "etcd")]
pub(crate) mod link;
pub(crate) mod signals;
mod tree;

use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::signal::Signal;
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, pidfd_send_signal, waitid};

use crate::clock::{self, Deadline};
use crate::error::{Error, Result};
use crate::local::procfs;
use crate::local::wait::Reasons;
use crate::sys::spawn::{NotStarted, Program, Started};
use signals::{Delivered, Signals};
pub(crate) use tree::adopt_orphans;

/// How a COMMAND ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Exited(i32),
    /// By that signal; `by_terminal`: it was sent to the whole foreground group, us among it.
    Killed {
        signal: i32,
        by_terminal: bool,
    },
    /// In a way that the system did not tell.
    Unseen,
}

/// What is asked of a supervisor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Orders {
    /// Wait for everything that COMMAND started.
    pub(crate) tree: bool,
    /// Kill, so long after a SIGTERM was passed on.
    pub(crate) kill_after: Option<Duration>,
}

/// Whoever has a COMMAND run, and is called on the way.
pub(crate) trait Attendant {
    /// In the child, before it becomes COMMAND. False: it must not.
    fn register(&mut self) -> bool;
    /// COMMAND runs. What is done here, it does not wait for.
    fn started(&mut self) {}
    /// Something went wrong while it runs.
    fn complain(&mut self, error: &Error);
}

/// Starts COMMAND and returns when it has ended (and been waited for).
pub(crate) fn run(
    program: &Program,
    orders: Orders,
    signals: &Signals,
    attendant: &mut dyn Attendant,
) -> Result<std::result::Result<End, NotStarted>> {
    if orders.tree {
        adopt_orphans().map_err(|error| Error::system("adopt the orphans of", "COMMAND", error))?;
    }
    let started = match program.spawn(&mut || attendant.register()) {
        Ok(started) => started,
        Err(not_started) => return Ok(Err(not_started)),
    };
    let mut watch = Watch {
        started,
        orders,
        signals,
        end: None,
        kill_at: Deadline::NEVER,
        look_at_stop: Deadline::NEVER,
        interrupt: None,
    };
    attendant.started();
    // Whatever goes wrong from here on, COMMAND runs, and while it does the claim must not be given back.
    let mut complained = false;
    loop {
        match watch.step() {
            Ok(Some(end)) => return Ok(Ok(end)),
            Ok(None) => {}
            Err(error) => {
                if !std::mem::replace(&mut complained, true) {
                    attendant.complain(&error);
                }
                clock::pause(Duration::from_millis(20));
            }
        }
    }
}

/// A COMMAND under supervision.
struct Watch<'a> {
    started: Started,
    orders: Orders,
    signals: &'a Signals,
    end: Option<End>,
    kill_at: Deadline,
    /// COMMAND has stopped by job control; if it still is then, so do we.
    look_at_stop: Deadline,
    /// What the terminal has sent to both of us.
    interrupt: Option<Signal>,
}

impl Watch<'_> {
    /// Sleeps until something happens, and deals with it; `Some`: it was the end.
    fn step(&mut self) -> Result<Option<End>> {
        let mut reasons = Reasons::default();
        reasons.readable(self.signals.as_fd());
        if self.end.is_none() {
            reasons.readable(self.started.pidfd.as_fd());
        }
        reasons.sleep(self.kill_at.or_sooner(self.look_at_stop))?;
        while let Some(delivered) = self.signals.next() {
            self.pass_on(delivered)?;
        }
        if self.kill_at.has_passed() {
            self.kill()?;
        }
        if self.look_at_stop.has_passed() {
            self.look_at_stop = Deadline::NEVER;
            self.stop_too()?;
        }
        self.reap()?;
        match self.end {
            Some(end) if !self.orders.tree || !self.has_children()? => Ok(Some(end)),
            _ => Ok(None),
        }
    }

    /// Takes note of children that have ended, COMMAND among them, and of COMMAND stopping.
    fn reap(&mut self) -> Result<()> {
        let cannot = |errno: rustix::io::Errno| Error::system("wait for", "COMMAND", errno);
        if self.end.is_none() {
            let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            let pidfd = WaitId::PidFd(self.started.pidfd.as_fd());
            match rustix::io::retry_on_intr(|| waitid(pidfd.clone(), options)) {
                Ok(Some(status)) => self.note(&status),
                Ok(None) => {}
                // Somebody has changed what SIGCHLD does, and the kernel has reaped it.
                Err(rustix::io::Errno::CHILD) => self.end = Some(End::Unseen),
                Err(errno) => return Err(cannot(errno)),
            }
        }
        if self.orders.tree { self.reap_orphans() } else { Ok(()) }
    }

    /// Orphans that came to us and have ended. COMMAND is not among them: how it ended is to be learned above.
    fn reap_orphans(&self) -> Result<()> {
        use nix::sys::wait::{Id, WaitPidFlag, waitid};
        let cannot = |errno: nix::errno::Errno| Error::system("wait for", "what COMMAND started", errno);
        let options = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
        loop {
            match waitid(Id::All, options | WaitPidFlag::WNOWAIT) {
                Ok(seen) => match seen.pid() {
                    Some(pid) if self.end.is_some() || pid.as_raw() != self.started.pid.as_raw_nonzero().get() => {
                        waitid(Id::Pid(pid), options).map_err(cannot)?;
                    }
                    _ => return Ok(()),
                },
                Err(nix::errno::Errno::ECHILD) => return Ok(()),
                Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(cannot(errno)),
            }
        }
    }

    fn note(&mut self, status: &WaitIdStatus) {
        if let Some(code) = status.exit_status() {
            self.end = Some(End::Exited(code));
        } else if let Some(signal) = status.terminating_signal() {
            let by_terminal = self.interrupt.is_some_and(|interrupt| interrupt as i32 == signal);
            self.end = Some(End::Killed { signal, by_terminal });
        } else if status.stopping_signal().is_some_and(is_job_control) {
            self.look_at_stop = Deadline::after(BEFORE_STOPPING_TOO);
        }
    }

    /// Whether anybody is left of what COMMAND started.
    fn has_children(&self) -> Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match rustix::io::retry_on_intr(|| waitid(WaitId::All, options)) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::CHILD) => Ok(false),
            Err(errno) => Err(Error::system("wait for", "what COMMAND started", errno)),
        }
    }

    fn pass_on(&mut self, Delivered { signal, from_kernel }: Delivered) -> Result<()> {
        match signal {
            Signal::SIGCHLD => return Ok(()),
            // A terminal that hangs up tells the leader of its session alone.
            Signal::SIGHUP if from_kernel && is_session_leader() => {}
            _ if from_kernel => {
                self.interrupt = Some(signal);
                return Ok(());
            }
            _ => {}
        }
        if signal == Signal::SIGTERM
            && let Some(after) = self.orders.kill_after
        {
            self.kill_at = self.kill_at.or_sooner(Deadline::after(after));
        }
        self.send(signal)
    }

    fn send(&self, signal: Signal) -> Result<()> {
        let Some(number) = rustix::process::Signal::from_named_raw(signal as i32) else { return Ok(()) };
        if self.end.is_some() {
            // COMMAND is gone; what it left is what there is to be told.
            return tree::signal_all(number);
        }
        match pidfd_send_signal(&self.started.pidfd, number) {
            // ESRCH: it has just ended. EPERM: it has become somebody else (a set-user-ID program), as it might
            // without us, where the sender would be told no.
            Ok(()) | Err(rustix::io::Errno::SRCH | rustix::io::Errno::PERM) => Ok(()),
            Err(errno) => Err(Error::system("send a signal to", "COMMAND", errno)),
        }
    }

    fn kill(&mut self) -> Result<()> {
        if self.orders.tree {
            // Again until none is left, because somebody may be forking.
            self.kill_at = Deadline::after(Duration::from_millis(20));
            if let Err(error) = tree::signal_all(rustix::process::Signal::KILL) {
                self.send(Signal::SIGKILL)?;
                return Err(error);
            }
            return Ok(());
        }
        self.kill_at = Deadline::NEVER;
        self.send(Signal::SIGKILL)
    }

    /// Ctrl-Z where COMMAND reads it as a key (an editor, a pager), and stops by itself: the shell waits for us, so it must
    /// see us stop. Only in the foreground of a terminal: elsewhere nobody might ever continue us.
    fn stop_too(&self) -> Result<()> {
        let pid = self.started.pid.as_raw_nonzero().get();
        if procfs::stat(pid)?.is_some_and(procfs::Stat::is_stopped) && is_in_foreground() {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TSTP);
        }
        Ok(())
    }
}

/// Not at once: the same Ctrl-Z may have stopped us too, and the `fg` that woke us be about to wake COMMAND.
const BEFORE_STOPPING_TOO: Duration = Duration::from_millis(50);

/// Whether that signal stops a job.
fn is_job_control(signal: i32) -> bool {
    [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU].iter().any(|job| *job as i32 == signal)
}

fn is_session_leader() -> bool {
    rustix::process::getsid(None).is_ok_and(|session| session == rustix::process::getpid())
}

/// Whether our process group has the terminal.
pub(crate) fn is_in_foreground() -> bool {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let Ok(terminal) = rustix::fs::openat(rustix::fs::CWD, "/dev/tty", flags, rustix::fs::Mode::empty()) else {
        return false;
    };
    rustix::termios::tcgetpgrp(&terminal).is_ok_and(|group| group == rustix::process::getpgrp())
}
