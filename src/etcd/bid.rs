//! What is contended for, and on what terms.

use std::time::Duration;

use super::error::Error;
use super::record::{Record, host};
use super::session::Terms;

const LONGEST_NAME: usize = 4096;

/// What is contended for, and on what terms. Made with [`Bid::new`], then changed where the defaults do not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bid {
    /// The name: 1 to 4096 bytes without NUL.
    pub name: Vec<u8>,
    /// At most so many holders; part of the claim's identity.
    pub max: u32,
    /// How long a silent holder stays the holder: at least a second, 10 s by default. etcd knows whole seconds, so the
    /// lease may last longer; trust never does.
    pub ttl: Duration,
    /// How long before the end of trust the work will be told to stop; renewals are timed by it. Less than `ttl`.
    pub reserve: Duration,
    /// At most one slot per host.
    pub spread: bool,
    /// The host's name, where `spread` goes by it.
    pub host: String,
    /// The slot stays taken so long at least, counted from when it is had.
    pub at_least: Duration,
    /// Give up after this; `None` waits for ever, zero tries once.
    pub wait: Option<Duration>,
    /// What others see. `since_ms`, `until_ms` and `slot` are filled in.
    pub record: Record,
}

impl Bid {
    /// A bid for `name` by this process, with the defaults.
    pub fn new(name: impl Into<Vec<u8>>, max: u32) -> Bid {
        Bid {
            name: name.into(),
            max,
            ttl: Duration::from_secs(10),
            reserve: Duration::from_secs(6),
            spread: false,
            host: host(),
            at_least: Duration::ZERO,
            wait: None,
            record: Record::here("interactive", ""),
        }
    }

    /// Whether the bid makes sense.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let bad = |why: &str| Err(Error::usage("claim", why));
        if self.name.is_empty() || self.name.len() > LONGEST_NAME || self.name.contains(&0) {
            return bad("a name has 1 to 4096 bytes and no NUL");
        }
        if self.max == 0 {
            return bad("a claim has at least one slot");
        }
        if self.ttl < Duration::from_secs(1) {
            return bad("a TTL is at least 1 s");
        }
        if self.reserve >= self.ttl {
            return bad("the TTL leaves no time to work in");
        }
        if self.spread && self.host.is_empty() {
            return bad("this host has no name");
        }
        Ok(())
    }

    pub(crate) fn terms(&self) -> Terms {
        Terms { ttl: self.ttl, reserve: self.reserve }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused() {
        assert!(Bid::new("job", 1).check().is_ok());
        let seconds = Duration::from_secs;
        for bid in [
            Bid::new("", 1),
            Bid::new("a\0b", 1),
            Bid::new(vec![b'x'; 4097], 1),
            Bid::new("job", 0),
            Bid { ttl: Duration::from_millis(999), reserve: Duration::ZERO, ..Bid::new("job", 1) },
            Bid { ttl: seconds(5), reserve: seconds(5), ..Bid::new("job", 1) },
            Bid { spread: true, host: String::new(), ..Bid::new("job", 1) },
        ] {
            assert!(bid.check().is_err(), "{bid:?}");
        }
    }
}
