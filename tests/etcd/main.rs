//! Claims across hosts, against real etcd processes.

mod access;
mod chaos;
mod cli_access;
mod cli_look;
mod cli_loss;
mod cli_members;
mod cli_order;
mod cli_run;
mod cluster;
mod faults;
mod one;
mod support;
