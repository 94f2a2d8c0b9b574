//! The keeper of a run across hosts: the process that has COMMAND, and sees to it that nothing of it outlives the lease.
//!
//! It stands between the process that keeps the session (its parent, which the user sees) and COMMAND, and each of the two
//! watches the other. If the session's process dies, the keeper kills everything below it; if the keeper dies, everything
//! below it becomes the session's, which kills it. The moment at which trust ends lies in memory that both see, so a
//! session that is merely stopped does not carry COMMAND past it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::sys::signal::Signal;
use rustix::process::{Signal as RawSignal, WaitOptions, pidfd_send_signal};

use crate::clock::{self, Deadline, as_ns};
use crate::error::{Error, Result};
use crate::local::process::has_ended;
use crate::local::procfs;
use crate::local::wait::Reasons;
use crate::supervise::alarm::Alarm;
use crate::supervise::link::{Facts, Holding, KeepersEnd, Order, Report};
use crate::supervise::signals::{Delivered, Signals};
use crate::supervise::{End, tree};
use crate::sys::signals::set_ignored;
use crate::sys::spawn::{NotStarted, Program, Started};

/// Between two rounds of killing what is left: somebody may be forking.
const AGAIN: Duration = Duration::from_millis(5);

/// What is asked of a keeper.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Duties {
    /// When COMMAND has ended, wait for everything that it started; without it, that is killed then.
    pub(crate) tree: bool,
    /// Kill, so long after a SIGTERM was passed on.
    pub(crate) kill_after: Option<Duration>,
    /// Kill, so long after COMMAND was told to stop because the claim is lost.
    pub(crate) grace: Duration,
    /// All must have been killed so long before trust ends: the time that dying takes, on a busy machine too.
    pub(crate) margin: Duration,
}

/// How COMMAND comes to be.
pub(crate) struct Work<'a> {
    /// What to run, when it is known what is held.
    pub(crate) program: &'a dyn Fn(Facts) -> Program,
    /// Runs in the child before it becomes COMMAND.
    pub(crate) register: &'a mut dyn FnMut() -> bool,
}

/// The keeper, in its own process.
pub(super) struct Keeper<'a> {
    pub(super) link: KeepersEnd,
    pub(super) holding: Holding,
    /// The session's process.
    pub(super) session: OwnedFd,
    pub(super) session_pid: i32,
    pub(super) signals: &'a Signals,
    pub(super) duties: Duties,
    pub(super) work: Work<'a>,
}

/// COMMAND as the keeper has it.
struct Kept<'a> {
    keeper: Keeper<'a>,
    command: Started,
    alarm: Alarm,
    end: Option<End>,
    /// The last moment of trust that was told.
    trusted_until: u64,
    /// The claim is lost: COMMAND was told to stop, and is killed at that boot time, in nanoseconds.
    kill_by: Option<u64>,
    /// COMMAND is killed then, because it was sent a SIGTERM by somebody.
    kill_at: Deadline,
    /// COMMAND has stopped by job control; if it still is then, the session is to stop too.
    look_at_stop: Deadline,
    /// What the terminal has sent to all of us.
    interrupt: Option<Signal>,
}

impl<'a> Keeper<'a> {
    /// Waits for the order to start, runs COMMAND, and returns when nothing of it is left.
    pub(super) fn run(self) -> Result<()> {
        tree::adopt_orphans().map_err(|error| Error::system("adopt the orphans of", "COMMAND", error))?;
        // Ctrl-Z stops COMMAND and the session: somebody has to be awake when trust ends.
        let job_control =
            [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU].map(|signal| (signal, set_ignored(signal, true)));
        loop {
            match self.link.next() {
                Some(Order::Start) => break,
                Some(_) => continue,
                None if has_ended(self.session.as_fd())? => return Ok(()),
                None => {}
            }
            let mut reasons = Reasons::default();
            reasons.readable(self.link.orders()).readable(self.session.as_fd()).readable(self.signals.as_fd());
            reasons.sleep(Deadline::NEVER)?;
            while self.signals.next().is_some() {}
        }
        let trusted_until = self.holding.trusted_until();
        let needed = as_ns(self.duties.grace + self.duties.margin);
        if trusted_until < clock::boot_ns().saturating_add(needed) {
            self.link.report(&Report::NotStarted(NotStarted::Withdrawn));
            return Ok(());
        }
        let mut program = (self.work.program)(self.holding.facts());
        program.dispositions.extend(job_control);
        let command = match program.spawn(self.work.register) {
            Ok(started) => started,
            Err(why) => {
                self.link.report(&Report::NotStarted(why));
                return Ok(());
            }
        };
        self.link.report(&Report::Started(command.pid.as_raw_nonzero().get()));
        let alarm = Alarm::new()?;
        let never = Deadline::NEVER;
        Kept {
            keeper: self,
            command,
            alarm,
            end: None,
            trusted_until,
            kill_by: None,
            kill_at: never,
            look_at_stop: never,
            interrupt: None,
        }
        .until_nothing_is_left()
    }
}

impl Kept<'_> {
    fn until_nothing_is_left(mut self) -> Result<()> {
        loop {
            if has_ended(self.keeper.session.as_fd())? {
                return tree::kill_all();
            }
            while let Some(order) = self.keeper.link.next() {
                self.obey(order)?;
            }
            while let Some(delivered) = self.keeper.signals.next() {
                self.note_interrupt(delivered);
            }
            let childless = self.reap()?;
            if let Some(end) = self.end
                && childless
            {
                self.keeper.link.report(&Report::Ended { end, lost: self.kill_by.is_some() });
                return Ok(());
            }
            self.mind_trust()?;
            let mut wake = self.mind_kills()?;
            if self.look_at_stop.has_passed() {
                self.look_at_stop = Deadline::NEVER;
                self.stop_session_too()?;
            }
            wake = wake.or_sooner(self.kill_at).or_sooner(self.look_at_stop);
            let mut reasons = Reasons::default();
            reasons
                .readable(self.keeper.link.orders())
                .readable(self.keeper.session.as_fd())
                .readable(self.keeper.signals.as_fd())
                .readable(self.alarm.as_fd());
            reasons.sleep(wake)?;
        }
    }

    fn obey(&mut self, order: Order) -> Result<()> {
        match order {
            Order::Start => Ok(()),
            Order::Stop => self.stop(clock::boot_ns().saturating_add(as_ns(self.keeper.duties.grace))),
            Order::Signal(signal) => {
                if signal == Signal::SIGTERM
                    && let Some(after) = self.keeper.duties.kill_after
                {
                    self.kill_at = self.kill_at.or_sooner(Deadline::after(after));
                }
                self.send(signal)
            }
        }
    }

    /// What somebody sends to this process alone, or to all of ours, is the session's to pass on, once.
    fn note_interrupt(&mut self, Delivered { signal, from_kernel }: Delivered) {
        if from_kernel && signal != Signal::SIGCHLD {
            self.interrupt = Some(signal);
        }
    }

    /// Takes note of children that have ended, COMMAND among them, and of COMMAND stopping. True: none is left.
    fn reap(&mut self) -> Result<bool> {
        loop {
            let (pid, status) = match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some(some)) => some,
                Ok(None) => return Ok(false),
                Err(rustix::io::Errno::CHILD) => {
                    // Were SIGCHLD not as it should be, the kernel would have reaped COMMAND.
                    self.end.get_or_insert(End::Unseen);
                    return Ok(true);
                }
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(Error::system("wait for", "COMMAND", errno)),
            };
            if pid != self.command.pid || self.end.is_some() {
                continue;
            }
            if let Some(code) = status.exit_status() {
                self.end = Some(End::Exited(code));
            } else if let Some(signal) = status.terminating_signal() {
                let by_terminal = self.interrupt.is_some_and(|interrupt| interrupt as i32 == signal);
                self.end = Some(End::Killed { signal, by_terminal });
            } else if status.stopping_signal().is_some_and(super::is_job_control) {
                self.look_at_stop = Deadline::after(super::BEFORE_STOPPING_TOO);
            }
        }
    }

    /// Stops COMMAND in time before trust ends, and sees to being woken for it.
    fn mind_trust(&mut self) -> Result<()> {
        if self.kill_by.is_some() {
            return Ok(());
        }
        let Duties { grace, margin, .. } = self.keeper.duties;
        match self.keeper.holding.trusted_until() {
            // Lost, and the order to stop may never come from a session that is stopped.
            0 => self.stop(clock::boot_ns().saturating_add(as_ns(grace))),
            trusted_until => {
                self.trusted_until = trusted_until;
                let stop_at = trusted_until.saturating_sub(as_ns(grace + margin));
                if clock::boot_ns() < stop_at {
                    return self.alarm.set(stop_at);
                }
                self.stop(u64::MAX)
            }
        }
    }

    /// Tells COMMAND to stop, and has it killed at that time, or in time before trust ends if that is sooner. From here on
    /// the claim is lost, whatever renewal may yet be answered.
    fn stop(&mut self, kill_by: u64) -> Result<()> {
        if self.kill_by.is_some() {
            return Ok(());
        }
        let kill_by = kill_by.min(self.trusted_until.saturating_sub(as_ns(self.keeper.duties.margin)));
        self.kill_by = Some(kill_by);
        self.alarm.set(kill_by)?;
        if self.keeper.duties.tree { tree::signal_all(RawSignal::TERM) } else { self.send(Signal::SIGTERM) }
    }

    /// Kills what is to be killed by now; says when to look again.
    fn mind_kills(&mut self) -> Result<Deadline> {
        let is_lost = self.kill_by.is_some_and(|kill_by| clock::boot_ns() >= kill_by);
        // Without --tree nothing outlives COMMAND.
        let is_left_over = self.end.is_some() && !self.keeper.duties.tree;
        if is_lost || is_left_over || (self.kill_at.has_passed() && self.keeper.duties.tree) {
            tree::signal_all(RawSignal::KILL)?;
            // It has rung, and would go on doing so.
            self.alarm.set(u64::MAX)?;
            return Ok(Deadline::after(AGAIN));
        }
        if self.kill_at.has_passed() {
            self.kill_at = Deadline::NEVER;
            self.send(Signal::SIGKILL)?;
        }
        Ok(Deadline::NEVER)
    }

    fn send(&self, signal: Signal) -> Result<()> {
        let Some(number) = RawSignal::from_named_raw(signal as i32) else { return Ok(()) };
        if self.end.is_some() {
            return tree::signal_all(number);
        }
        match pidfd_send_signal(&self.command.pidfd, number) {
            // ESRCH: it has just ended. EPERM: it has become somebody else.
            Ok(()) | Err(rustix::io::Errno::SRCH | rustix::io::Errno::PERM) => Ok(()),
            Err(errno) => Err(Error::system("send a signal to", "COMMAND", errno)),
        }
    }

    /// COMMAND has stopped by itself: the shell waits for the session's process, so it must see that stop.
    fn stop_session_too(&self) -> Result<()> {
        let is_stopped = |pid| Ok::<_, Error>(procfs::stat(pid)?.is_some_and(procfs::Stat::is_stopped));
        let command = self.command.pid.as_raw_nonzero().get();
        if self.end.is_none()
            && is_stopped(command)?
            && !is_stopped(self.keeper.session_pid)?
            && super::is_in_foreground()
        {
            let _ = pidfd_send_signal(&self.keeper.session, RawSignal::TSTP);
        }
        Ok(())
    }
}
