//! One process at a time (or N) holds a name, on this host.
//!
//! A *claim* is a name that at most N *holders* have at once. It is held until it is released, until its handle goes out of
//! scope, or until the process that holds it exits or dies in whatever way; nobody cleans up after a crash. There is no
//! daemon: unrelated processes meet in a [`Directory`], where a claim is a hard link to a file that says who holds it.
//!
//! ```
//! use hostclaim::{Claim, Directory, Outcome};
//!
//! # fn main() -> hostclaim::Result<()> {
//! # let scratch = tempfile::tempdir().unwrap();
//! # let dir = Directory::at(scratch.path().join("claims"))?;
//! // In earnest: Directory::from_env()?
//! let mut claim = Claim::new(&dir, "nightly-report")?;
//! if let Outcome::Acquired(fence) = claim.acquire(None)? {
//!     println!("nobody else is in here; our number is {fence}");
//! } // given back here
//! # Ok(())
//! # }
//! ```
//!
//! # What is guaranteed
//!
//! * At most N live holders at any instant, whatever dies, stalls or starts when.
//! * A slot whose holder is proven dead is had by the next comer, at once. Only *proven* dead is reclaimed: a holder that is
//!   stopped, or that cannot be asked from here, holds.
//! * The [`Fence`] grows with every change of custody, across crashes, reboots, and a removed directory.
//! * Waiters are served by [`Class`], then by arrival. A release wakes a bounded number of processes, however many wait.
//! * "Held by someone else" is an answer ([`Outcome::Refused`]); failures of the system are errors, with operation and path.
//! * No global state, no thread of ours, no signal handler, no panic on bad input.
//!
//! # Across hosts
//!
//! With the feature `etcd` (on by default), the module `etcd` has the same for several hosts that share an etcd: a lease that
//! tells its owner until when it can be trusted, and the moment it no longer can. It has a thread of its own for each lease.
//!
//! # What is not
//!
//! * Who removes the directory under living holders gives up the exclusion (not the growth of the fence).
//! * The directory must be on a file system of this host with hard links, FIFOs and shared memory mappings: tmpfs, ext4, xfs,
//!   btrfs. Network file systems are not for this.
//! * It needs Linux 5.4 or later, and /proc.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod class;
mod clock;
mod error;
mod events;
mod fence;
mod handle;
mod inspect;
mod local;
mod name;
mod record;
mod rule;
mod sys;

#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "cli")]
mod supervise;

pub use acquire::{Refusal, Refused};
pub use class::Class;
pub use error::{Error, ErrorKind, Result};
pub use events::{Event, Happening, Observer, Waiting, Who};
pub use fence::Fence;
pub use handle::{Claim, Outcome, Statistics};
pub use inspect::{Entry, Report, inspect};
pub use local::dir::Directory;
pub use local::master::Master;
pub use local::slots::Occupancy;
pub use name::{Capacity, Key, Name};
