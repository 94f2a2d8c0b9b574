//! What a contender asks for, and what it is answered.

use std::time::Duration;

use super::Custody;
use crate::class::Class;
use crate::events::Who;
use crate::record::ProcessId;

/// How a handle contends for its claim.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub(crate) class: Class,
    /// At most so many waiters; `None`: no bound.
    pub(crate) queue_size: Option<u32>,
    pub(crate) at_least: Duration,
    pub(crate) spread: bool,
    pub(crate) label: Vec<u8>,
    /// The holder, if that is not this process.
    pub(crate) on_behalf_of: Option<ProcessId>,
    /// See [`Body::lock_covers`].
    pub(crate) lock_covers: bool,
    /// See [`Body::tree`].
    pub(crate) tree: bool,
    /// The handle will be used again, so its record needs a name of its own.
    pub(crate) reusable: bool,
    /// Waits that cannot end are refused.
    pub(crate) look_for_rings: bool,
}

/// What ended an attempt.
#[derive(Debug)]
pub(crate) enum Ended {
    Acquired(Custody),
    Refused(Refused),
    /// An interrupt ended it.
    Interrupted,
}

/// Why a claim was not had. It is an answer, not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub reason: Refusal,
    /// One who has it, if that could be seen.
    pub holder: Option<Who>,
    /// How many wait.
    pub waiting: usize,
}

/// The reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// It was tried once, and others have it or are before us.
    Held,
    /// The time for waiting is over.
    TimedOut,
    /// The queue is full.
    QueueFull {
        /// When to come back, in seconds.
        retry_after: u64,
    },
    /// A newcomer of a higher class has taken our place in a bounded queue.
    Displaced {
        /// When to come back, in seconds.
        retry_after: u64,
    },
    /// It could never be had: a process above this one holds it, or this wait would close a ring. The text spells it out.
    Hopeless(String),
}
