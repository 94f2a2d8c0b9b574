//! The session's side of a run across hosts: it makes the keeper, passes on what is to be passed on, and takes the keeper's
//! place if that is killed.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::Signal;
use rustix::process::{PidfdFlags, Signal as RawSignal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid};

use crate::clock::{self, Deadline, as_ns};
use crate::error::{Error, Result};
use crate::local::process::has_ended;
use crate::local::wait::Reasons;
use crate::supervise::keeper::{Duties, Keeper, Work};
use crate::supervise::link::{Facts, Holding, Order, Report, SessionsEnd, link};
use crate::supervise::signals::{Delivered, Signals};
use crate::supervise::{End, is_session_leader, tree};
use crate::sys::fork::{Forked, fork};
use crate::sys::spawn::NotStarted;

/// A keeper, as its parent has it. Dropping it ends the keeper, and all that it has.
pub(crate) struct Kept {
    process: Forked,
    link: SessionsEnd,
    holding: Holding,
    duties: Duties,
    reaped: bool,
}

/// How a run ended that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// COMMAND has ended by itself, and nothing that it started is left.
    Done(End),
    /// The claim was lost; COMMAND and all it started have been stopped.
    Lost,
    /// The keeper was killed, and COMMAND and all it started with it.
    KeeperKilled,
}

impl Kept {
    /// Makes a keeper, which waits for the order to start. To be called by a process with one thread.
    pub(crate) fn fork<'a>(duties: Duties, holding: &Holding, signals: &'a Signals, work: Work<'a>) -> Result<Self> {
        let cannot = |what| move |error: std::io::Error| Error::system(what, "COMMAND", error);
        // What the keeper leaves, should it be killed, comes to us.
        tree::adopt_orphans().map_err(cannot("adopt the orphans of"))?;
        let me = rustix::process::getpid();
        // Made before there is a keeper that could outlive us and find another process by our number.
        let session =
            pidfd_open(me, PidfdFlags::empty()).map_err(|errno| cannot("watch the session of")(errno.into()))?;
        let (keepers, sessions) = link()?;
        let shared = holding.clone();
        let process = fork(|| {
            let _ = rustix::thread::set_name(c"claim-keeper");
            let keeper = Keeper {
                link: keepers,
                holding: shared,
                session,
                session_pid: me.as_raw_nonzero().get(),
                signals,
                duties,
                work,
            };
            // Whatever fails here, the session sees to what is left.
            i32::from(keeper.run().is_err())
        })
        .map_err(cannot("start a keeper for"))?;
        Ok(Self { process, link: sessions, holding: holding.clone(), duties, reaped: false })
    }

    /// Polls readable when the keeper has ended.
    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.process.pidfd.as_fd()
    }

    /// Has COMMAND run, and returns when nothing of it is left. `lost` polls readable when the claim is lost; `started` is
    /// told COMMAND's pid.
    pub(crate) fn run(
        mut self,
        facts: Facts,
        signals: &Signals,
        lost: BorrowedFd<'_>,
        started: &mut dyn FnMut(i32),
    ) -> Result<std::result::Result<Ended, NotStarted>> {
        self.holding.set(facts);
        self.link.order(Order::Start)?;
        let mut trusted_until = self.holding.trusted_until();
        let mut told = false;
        loop {
            let gone = has_ended(self.pidfd())?;
            while let Some(report) = self.link.next() {
                match report {
                    Report::Started(pid) => started(pid),
                    Report::NotStarted(why) => return Ok(Err(why)),
                    Report::Ended { lost: true, .. } => return Ok(Ok(Ended::Lost)),
                    Report::Ended { end, .. } => return Ok(Ok(Ended::Done(end))),
                }
            }
            if gone {
                self.reaped = true;
                tree::kill_all()?;
                return Ok(Ok(if told { Ended::Lost } else { Ended::KeeperKilled }));
            }
            // The keeper minds the end of trust. If it does not, because somebody has stopped it, that is for us.
            trusted_until = Some(self.holding.trusted_until()).filter(|&it| it > 0).unwrap_or(trusted_until);
            let last = trusted_until.saturating_sub(as_ns(self.duties.margin / 2));
            let now = clock::boot_ns();
            if now >= last {
                told = true;
                tree::signal_all(RawSignal::KILL)?;
            }
            let wake = std::time::Duration::from_nanos(last.saturating_sub(now).max(5_000_000));
            let mut reasons = Reasons::default();
            reasons.readable(self.link.reports()).readable(self.pidfd()).readable(signals.as_fd());
            if !told {
                reasons.readable(lost);
            }
            reasons.sleep(Deadline::after(wake))?;
            if !told && is_readable(lost)? {
                told = true;
                self.link.order(Order::Stop)?;
            }
            while let Some(delivered) = signals.next() {
                self.pass_on(delivered)?;
            }
        }
    }

    fn pass_on(&self, Delivered { signal, from_kernel }: Delivered) -> Result<()> {
        match signal {
            Signal::SIGCHLD => Ok(()),
            // A terminal that hangs up tells the leader of its session alone; everything else it has sent to COMMAND too.
            Signal::SIGHUP if from_kernel && is_session_leader() => self.link.order(Order::Signal(signal)),
            _ if from_kernel => Ok(()),
            _ => self.link.order(Order::Signal(signal)),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // It has nothing to do any more, or has never been told to do anything; but for an error on our side.
        if !self.reaped {
            let _ = pidfd_send_signal(&self.process.pidfd, RawSignal::KILL);
            let _ = rustix::io::retry_on_intr(|| waitpid(Some(self.process.pid), WaitOptions::empty()));
        }
        let _ = tree::kill_all();
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> Result<bool> {
    let mut reasons = Reasons::default();
    let woken = reasons.readable(fd).sleep(Deadline::after(std::time::Duration::ZERO))?;
    Ok(woken == crate::local::wait::Woken::By(0))
}
