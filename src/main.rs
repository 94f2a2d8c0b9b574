//! `claim`: let one process at a time (or N) hold a name. All of it is in the library's `cli`.

#![no_main]

#[path = "sys/entry.rs"]
mod entry;

use hostclaim::cli::main as run;
