//! Claims across hosts, through etcd 3.4 or later.
//!
//! A claim of N slots is a queue of keys, each bound to its owner's lease; the first N by create revision hold, and that
//! revision is the fence. [`Contender`] goes through it event by event, for a program that polls descriptors; [`Lease`] is
//! the same as a handle; [`Inspector`] looks on.
//!
//! # Guarantees
//!
//! - At most N contenders are trusted ([`Lease::is_trusted`]) at any moment, as long as etcd keeps its word about leases
//!   and nobody deletes keys by hand. Trust ends by a clock of this host's alone; no message has to arrive for it.
//! - What is deleted or revoked is noticed at once, what cannot be reached when trust ends.
//! - Fences grow: for N = 1 with every custody; for N > 1 no two custodies have the same.
//! - Served in order of arrival. A waiter that loses its session goes to the back.
//! - No request and no release waits without an end.
//!
//! # What is not guaranteed
//!
//! That nobody works who was trusted a moment ago: between asking and acting a process may be stopped. Whatever can be
//! damaged by that has to look at the fence. Nor is anything decided about processes here: stopping them in time is for
//! the supervisor, which is told the deadline as it moves ([`Share`]).
//!
//! # Processes and threads
//!
//! A [`Contender`] has one thread, which blocks all signals, and makes it when it starts: fork before that. In a child that
//! is forked later, its copy holds nothing and releases nothing. There is no other state.

mod bid;
mod client;
mod clock;
mod config;
mod contend;
mod contender;
mod error;
mod hold;
mod inspect;
mod keys;
mod lease;
mod leases;
mod record;
mod rule;
mod session;
mod settle;
mod trail;
mod txn;
mod watch;
mod wire;

pub use bid::Bid;
pub use clock::Moment;
pub use config::{Config, DEFAULT_PREFIX, Endpoint, Options, Secret};
pub use contender::{Contender, Event, Held};
pub use error::{Error, ErrorKind};
pub use inspect::{Entry, Follow, Inspector, Standing};
pub use lease::{Lease, Outcome};
pub use record::{Record, host};
pub use session::{Loss, Share};
