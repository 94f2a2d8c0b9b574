//! The number that tells custodies apart.

use std::fmt;

/// A number that only grows for a name: on every change of custody, across releases, crashes, reboots and a removed
/// claim directory.
///
/// Hand it to whatever the work writes to, and let that refuse a number smaller than the largest it has seen: then a
/// holder that slept through its own replacement can do no harm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Fence(u64);

impl Fence {
    pub(crate) fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
