//! Claims across hosts, against real etcd processes.

mod access;
mod cluster;
mod faults;
mod one;
mod support;
