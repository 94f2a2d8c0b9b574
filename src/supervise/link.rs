//! What goes between the two processes of a run across hosts: the one that keeps the session, and the keeper, which has
//! COMMAND. Both sides of every message are here.
//!
//! Orders are single bytes and reports sixteen, so each is written and read whole (pipe(7)).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::sys::signal::Signal;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::error::{Error, Result};
use crate::supervise::End;
use crate::sys::SharedWords;
use crate::sys::spawn::NotStarted;

const TRUSTED_UNTIL: usize = 0;
const FENCE: usize = 1;
const SLOT: usize = 2;
const LEASE: usize = 3;
const WORDS: usize = 4;

/// What is held across hosts, in memory that both processes see.
#[derive(Debug, Clone)]
pub(crate) struct Holding(Arc<SharedWords>);

impl Holding {
    pub(crate) fn new() -> Result<Self> {
        let words = SharedWords::anonymous(WORDS).map_err(|e| Error::system("map memory for", "a session", e))?;
        Ok(Self(Arc::new(words)))
    }

    /// Boot time, in nanoseconds, until which the holder can be trusted; 0: not any more.
    pub(crate) fn trusted_until(&self) -> u64 {
        self.0[TRUSTED_UNTIL].load(Ordering::SeqCst)
    }

    pub(crate) fn set_trusted_until(&self, boot_ns: u64) {
        self.0[TRUSTED_UNTIL].store(boot_ns, Ordering::SeqCst);
    }

    pub(crate) fn set(&self, facts: Facts) {
        self.0[FENCE].store(facts.fence, Ordering::SeqCst);
        self.0[SLOT].store(u64::from(facts.slot), Ordering::SeqCst);
        self.0[LEASE].store(facts.lease, Ordering::SeqCst);
    }

    pub(crate) fn facts(&self) -> Facts {
        let word = |at: usize| self.0[at].load(Ordering::SeqCst);
        Facts { fence: word(FENCE), slot: u32::try_from(word(SLOT)).unwrap_or(u32::MAX), lease: word(LEASE) }
    }
}

/// What COMMAND is told of a custody across hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) fence: u64,
    pub(crate) slot: u32,
    pub(crate) lease: u64,
}

/// What the keeper is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The claim is held: run COMMAND.
    Start,
    /// The claim is lost: stop COMMAND.
    Stop,
    /// Pass that on.
    Signal(Signal),
}

/// Above all signals.
const START: u8 = 200;
const STOP: u8 = 201;

/// What the keeper tells.
#[derive(Debug)]
pub(crate) enum Report {
    /// COMMAND runs, as that process.
    Started(i32),
    NotStarted(NotStarted),
    /// COMMAND has ended, and nothing that it started is left. `lost`: it was told to, because the claim was lost.
    Ended {
        end: End,
        lost: bool,
    },
}

const STARTED: u64 = 1;
const WITHDRAWN: u64 = 2;
const NO_PROCESS: u64 = 3;
const NO_EXEC: u64 = 4;
const ENDED: u64 = 5;
/// Bits beside an exit status or signal.
const KILLED: u64 = 1 << 32;
const BY_TERMINAL: u64 = 1 << 33;
const WAS_LOST: u64 = 1 << 34;
const UNSEEN: u64 = 1 << 35;

impl Report {
    fn encode(&self) -> (u64, u64) {
        let low = |number: i32| u64::from(number.cast_unsigned());
        let errno = |error: &std::io::Error| low(error.raw_os_error().unwrap_or(0));
        match self {
            Self::Started(pid) => (STARTED, low(*pid)),
            Self::NotStarted(NotStarted::Withdrawn) => (WITHDRAWN, 0),
            Self::NotStarted(NotStarted::NoProcess(error)) => (NO_PROCESS, errno(error)),
            Self::NotStarted(NotStarted::NoExec(error)) => (NO_EXEC, errno(error)),
            Self::Ended { end, lost } => {
                let end = match *end {
                    End::Exited(code) => low(code),
                    End::Killed { signal, by_terminal } => {
                        low(signal) | KILLED | if by_terminal { BY_TERMINAL } else { 0 }
                    }
                    End::Unseen => UNSEEN,
                };
                (ENDED, end | if *lost { WAS_LOST } else { 0 })
            }
        }
    }

    fn decode(kind: u64, value: u64) -> Option<Self> {
        let low = ((value & u64::from(u32::MAX)) as u32).cast_signed();
        let error = || std::io::Error::from_raw_os_error(low);
        Some(match kind {
            STARTED => Self::Started(low),
            WITHDRAWN => Self::NotStarted(NotStarted::Withdrawn),
            NO_PROCESS => Self::NotStarted(NotStarted::NoProcess(error())),
            NO_EXEC => Self::NotStarted(NotStarted::NoExec(error())),
            ENDED => {
                let end = match value {
                    _ if value & UNSEEN != 0 => End::Unseen,
                    _ if value & KILLED != 0 => End::Killed { signal: low, by_terminal: value & BY_TERMINAL != 0 },
                    _ => End::Exited(low),
                };
                Self::Ended { end, lost: value & WAS_LOST != 0 }
            }
            _ => return None,
        })
    }
}

/// The keeper's end.
pub(super) struct KeepersEnd {
    orders: OwnedFd,
    reports: OwnedFd,
}

/// The session's end.
pub(super) struct SessionsEnd {
    orders: OwnedFd,
    reports: OwnedFd,
}

/// Both ends. COMMAND inherits neither.
pub(super) fn link() -> Result<(KeepersEnd, SessionsEnd)> {
    let pipe =
        || pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(|errno| Error::system("make", "a pipe", errno));
    let ((take_orders, give_orders), (take_reports, give_reports)) = (pipe()?, pipe()?);
    Ok((
        KeepersEnd { orders: take_orders, reports: give_reports },
        SessionsEnd { orders: give_orders, reports: take_reports },
    ))
}

impl KeepersEnd {
    pub(super) fn orders(&self) -> BorrowedFd<'_> {
        self.orders.as_fd()
    }

    pub(super) fn next(&self) -> Option<Order> {
        let mut byte = [0];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.orders, &mut byte)) {
            Ok(1) => match byte[0] {
                START => Some(Order::Start),
                STOP => Some(Order::Stop),
                number => Signal::try_from(i32::from(number)).ok().map(Order::Signal),
            },
            _ => None,
        }
    }

    /// A session that is gone hears nothing; that it is gone is seen elsewhere.
    pub(super) fn report(&self, report: &Report) {
        let (kind, value) = report.encode();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&kind.to_ne_bytes());
        bytes[8..].copy_from_slice(&value.to_ne_bytes());
        let _ = crate::sys::write_without_sigpipe(self.reports.as_fd(), &bytes);
    }
}

impl SessionsEnd {
    pub(super) fn reports(&self) -> BorrowedFd<'_> {
        self.reports.as_fd()
    }

    pub(super) fn next(&self) -> Option<Report> {
        let mut bytes = [0; 16];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.reports, &mut bytes)) {
            Ok(16) => {
                let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
                Report::decode(word(0), word(8))
            }
            _ => None,
        }
    }

    /// EAGAIN: a keeper that is stopped has a pipe full of orders to read first. EPIPE: it is gone, which is seen elsewhere.
    pub(super) fn order(&self, order: Order) -> Result<()> {
        let byte = match order {
            Order::Start => START,
            Order::Stop => STOP,
            Order::Signal(signal) => u8::try_from(signal as i32).unwrap_or(0),
        };
        match crate::sys::write_without_sigpipe(self.orders.as_fd(), &[byte]) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::PIPE | Errno::AGAIN) => Ok(()),
                _ => Err(Error::system("give orders to", "the keeper", error)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_arrive_as_they_were_sent() {
        let (keeper, session) = link().unwrap();
        let ends = [
            End::Exited(0),
            End::Exited(255),
            End::Killed { signal: 9, by_terminal: false },
            End::Killed { signal: 2, by_terminal: true },
            End::Unseen,
        ];
        for (end, lost) in ends.into_iter().flat_map(|end| [(end, false), (end, true)]) {
            keeper.report(&Report::Ended { end, lost });
            let Some(Report::Ended { end: seen, lost: seen_lost }) = session.next() else { panic!("not an end") };
            assert_eq!((seen, seen_lost), (end, lost));
        }
        keeper.report(&Report::Started(4_194_304));
        assert!(matches!(session.next(), Some(Report::Started(4_194_304))));
        keeper.report(&Report::NotStarted(NotStarted::NoExec(std::io::Error::from_raw_os_error(2))));
        let Some(Report::NotStarted(NotStarted::NoExec(error))) = session.next() else { panic!("not a failure") };
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        assert!(session.next().is_none());
    }

    #[test]
    fn orders_arrive_as_they_were_given() {
        let (keeper, session) = link().unwrap();
        for order in [Order::Start, Order::Signal(Signal::SIGTERM), Order::Stop] {
            session.order(order).unwrap();
            assert_eq!(keeper.next(), Some(order));
        }
        assert_eq!(keeper.next(), None);
    }
}
