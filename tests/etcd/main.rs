//! Claims across hosts, against real etcd processes.

mod access;
mod chaos;
mod cli_access;
mod cli_cut_off;
mod cli_look;
mod cli_loss;
mod cli_members;
mod cli_order;
mod cli_run;
mod cluster;
mod faults;
mod one;
#[path = "../support/mod.rs"]
mod suite;
mod support;
