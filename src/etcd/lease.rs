//! A handle for the library's users: what is held, and for how long that can be relied on.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::bid::Bid;
use super::clock::Moment;
use super::config::Config;
use super::contender::{Contender, Event, Held};
use super::error::{Error, ErrorKind};
use super::inspect::Entry;
use super::session::{Loss, Share};

/// What came of asking for a claim.
#[derive(Debug)]
pub enum Outcome {
    /// It is held.
    Held(Lease),
    /// Others hold it. Who contends, as far as it is known; empty where the cluster could not be asked at the end.
    NotHad(Vec<Entry>),
}

/// A claim that is held across hosts, kept alive by a thread of its own.
///
/// # Guarantees
///
/// While [`Lease::is_trusted`] says yes, nobody else has this slot, unless an operator deleted the key or revoked the
/// lease a moment ago. That answer is about the moment of asking: the next moment may be another one, after a suspend,
/// say. What must not be done twice carries the [`Lease::fence`], and its receiver refuses smaller ones.
///
/// Dropping it releases it, within about a second. A forked child's copy holds nothing and releases nothing.
///
/// ```no_run
/// use hostclaim::etcd::{Bid, Config, Lease, Outcome};
///
/// let config = Config::from_env()?;
/// match Lease::acquire(&config, Bid::new("nightly-report", 1), None)? {
///     Outcome::Held(lease) => {
///         while lease.is_trusted() {
///             // a piece of work, handed on with lease.fence()
/// #           break;
///         }
///         lease.release()?;
///     }
///     Outcome::NotHad(others) => println!("{} contend", others.len()),
/// }
/// # Ok::<(), hostclaim::etcd::Error>(())
/// ```
pub struct Lease {
    contender: Contender,
    held: Held,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("held", &self.held).finish_non_exhaustive()
    }
}

impl Lease {
    /// Asks for what `bid` says and waits as long as it says. `share` is told the deadline of trust whenever it changes.
    ///
    /// # Errors
    ///
    /// No session within the dial timeout, a refusal, a bid that makes no sense, no resources.
    pub fn acquire(config: &Config, bid: Bid, share: Option<Share>) -> Result<Outcome, Error> {
        let contender = Contender::start(config, bid, share)?;
        match contender.wait_decided() {
            Some(Event::Held(held)) => Ok(Outcome::Held(Lease { contender, held })),
            Some(Event::NotHad(entries)) => Ok(Outcome::NotHad(entries)),
            Some(Event::Failed(error)) => Err(error),
            _ => Err(Error::new(ErrorKind::System, "acquire claim", "the session's thread has ended")),
        }
    }

    /// Makes a handle of a contender that has told [`Event::Held`].
    pub fn new(contender: Contender, held: Held) -> Lease {
        Lease { contender, held }
    }

    /// The moment at which trust ends unless a renewal is answered before. After a loss, when it would have ended.
    pub fn held_until(&self) -> Moment {
        self.contender.deadline()
    }

    /// How long that is from now; zero once lost.
    pub fn remaining(&self) -> Duration {
        match self.is_trusted() {
            true => self.held_until().since(Moment::now()),
            false => Duration::ZERO,
        }
    }

    /// Whether the claim can be trusted at this moment.
    pub fn is_trusted(&self) -> bool {
        self.contender.is_trusted()
    }

    /// A descriptor that polls readable from the moment of the loss on.
    pub fn lost(&self) -> BorrowedFd<'_> {
        self.contender.lost_fd()
    }

    /// Why it was lost, if it was.
    pub fn loss(&self) -> Option<Loss> {
        self.contender.loss()
    }

    /// The key's create revision. For N = 1, every later holder has a larger one.
    pub fn fence(&self) -> u64 {
        self.held.fence
    }

    /// Which of the N slots: 0 to N-1.
    pub fn slot(&self) -> u32 {
        self.held.slot
    }

    /// The lease as etcdctl prints it.
    pub fn id(&self) -> &str {
        &self.held.lease
    }

    /// How many requests this has cost the cluster so far.
    pub fn requests(&self) -> u64 {
        self.contender.requests()
    }

    /// Writes into the record which process runs under the claim.
    pub fn set_command_pid(&self, pid: u32) {
        self.contender.set_command_pid(pid);
    }

    /// Gives it up.
    ///
    /// # Errors
    ///
    /// etcd could not be told within a second; the slot is free when the lease ends.
    pub fn release(mut self) -> Result<(), Error> {
        self.contender.release()
    }
}
