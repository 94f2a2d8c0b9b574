//! Who is served before whom, before arrival counts.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The class of a waiter. A freed slot goes to the oldest waiter of the highest class that has one; there is no ageing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Class {
    /// Served first, and never displaced from a bounded queue.
    #[default]
    Interactive,
    /// Before normal and low.
    High,
    /// Before low.
    Normal,
    /// Served when nobody else waits.
    Low,
}

impl Class {
    /// All of them, highest first.
    pub const ALL: [Self; 4] = [Self::Interactive, Self::High, Self::Normal, Self::Low];

    /// 0 for the highest. Smaller is served earlier.
    pub fn rank(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_rank(rank: u8) -> Option<Self> {
        Self::ALL.get(usize::from(rank)).copied()
    }

    /// The word for it on the command line and in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Class {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|class| class.as_str() == text)
            .ok_or_else(|| crate::Error::usage(format!("no such class: {text}")))
    }
}
