//! A forked child's copy of a handle. In a program of its own, since it forks.
#![allow(unsafe_code)]

#[path = "etcd/support/mod.rs"]
mod support;

use hostclaim::etcd::{Lease, Outcome};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use support::etcd::Cluster;
use support::*;

#[test]
fn a_forked_child_holds_nothing_and_releases_nothing() {
    let cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    let lease = match Lease::acquire(&config, bid("job", 1), None).unwrap() {
        Outcome::Held(lease) => lease,
        Outcome::NotHad(others) => panic!("{others:?}"),
    };
    // SAFETY: the child calls nothing but what reads its own number and atomics, and leaves by `_exit`.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let wrong = lease.is_trusted() || lease.remaining() > std::time::Duration::ZERO;
            let released = lease.release().is_ok();
            // SAFETY: it only ends the process.
            unsafe { nix::libc::_exit(if released && !wrong { 0 } else { 1 }) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            let deadline = lease.held_until();
            until("a renewal", || lease.held_until() > deadline);
            assert!(lease.is_trusted());
            assert_eq!(counts(&config, "job"), (1, 0));
            lease.release().unwrap();
            assert_eq!(counts(&config, "job"), (0, 0));
        }
    }
}
