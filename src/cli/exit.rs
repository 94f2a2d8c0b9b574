//! Exit statuses: the table of the manual, in one place.

use crate::error::{Error, ErrorKind};

pub(crate) const OK: i32 = 0;
/// The answer "no": of --available, --check, --release and --who.
pub(crate) const NO: i32 = 1;
pub(crate) const USAGE: i32 = 64;
/// The claim was lost while COMMAND ran.
#[cfg(feature = "etcd")]
pub(crate) const LOST: i32 = 70;
pub(crate) const HOPELESS: i32 = 78;
pub(crate) const CANNOT_RUN: i32 = 126;
pub(crate) const NOT_FOUND: i32 = 127;
/// A COMMAND that a signal has killed: this and the signal's number.
pub(crate) const KILLED: i32 = 128;

pub(crate) fn of(error: &Error) -> i32 {
    match error.kind() {
        ErrorKind::Usage => USAGE,
        ErrorKind::Unreadable => 65,
        ErrorKind::NoSession => 69,
        ErrorKind::System => 71,
        ErrorKind::NoDirectory => 73,
        ErrorKind::UnsafeDirectory => 77,
    }
}
