//! The one place for `unsafe` and for calls that neither `rustix` nor `nix` wraps safely. It knows nothing of claims.
//!
//! All of it is Linux: a port is a second folder like this one.

#![allow(unsafe_code, reason = "this is the module that the rest of the crate is kept free of it for")]

#[cfg(all(feature = "cli", feature = "etcd"))]
pub(crate) mod fork;
mod forkmark;
mod ofd;
#[cfg(feature = "cli")]
pub(crate) mod signals;
mod sigpipe;
#[cfg(feature = "cli")]
pub(crate) mod spawn;
mod words;

pub(crate) use forkmark::ForkMark;
pub(crate) use ofd::{is_locked, lock};
#[cfg(feature = "etcd")]
pub(crate) use sigpipe::without_sigpipe;
pub(crate) use sigpipe::write_without_sigpipe;
pub(crate) use words::SharedWords;
