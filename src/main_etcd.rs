//! `claim-etcd`: what `claim` becomes for a claim across hosts. All that `claim` can, and that.
//!
//! A program of its own, because the size of what talks to etcd would slow down the start of every run on one host.

#![no_main]

#[path = "sys/entry.rs"]
mod entry;

use hostclaim::cli::main_across_hosts as run;
