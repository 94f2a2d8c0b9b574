//! Where the program starts.
//!
//! The C library's `main`, not Rust's: what Rust's runtime does before `main` (ignoring SIGPIPE, opening /dev/null in
//! place of closed standard streams) would be seen by COMMAND, and costs a dozen system calls.

#![allow(unsafe_code, reason = "the symbol the C library starts a program by")]

use std::ffi::{c_char, c_int};

// SAFETY: the one definition of the symbol in the program, with the signature that C gives it.
#[unsafe(no_mangle)]
extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    super::run()
}
