//! Every path in a claim directory is made here, and read back here.
//!
//! ```text
//! format                the version of what follows
//! fence                 the counter that fences and places in queues come from
//! claims/KEY.SLOT       a hard link to the record of whoever holds that slot
//! holders/KEY/ID        names that records have besides: those of waiters and of handles that are used again
//! etcd/ID/              the same again, for this host's contenders for claims across hosts (by prefix and endpoints)
//! queues/KEY/           from the first wait until the name is idle: one FIFO per waiter, and the last hold times
//! ```
//!
//! KEY is `NAME@MAX`. What is not a letter, digit, `-`, `_` or `.` of the name stands as `%XX` (and so does a leading
//! `.`), so no two names share a key and none leads out of its directory. A name too long for that stands as its
//! beginning and its SHA-256; its record has it whole.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use crate::class::Class;
use crate::name::{Capacity, Key, Name};

pub(crate) const FORMAT: &str = "format";
pub(crate) const FENCE: &str = "fence";
pub(crate) const CLAIMS: &str = "claims";
pub(crate) const HOLDERS: &str = "holders";
pub(crate) const QUEUES: &str = "queues";
/// What name spaces of their own stand in: see [`space`](crate::local::space).
pub(crate) const SPACES: &str = "etcd";
/// The directories inside a claim directory.
pub(crate) const FOLDERS: [&str; 3] = [CLAIMS, HOLDERS, QUEUES];

/// `etcd/ID`
#[cfg(all(feature = "cli", feature = "etcd"))]
pub(crate) fn space(id: &str) -> String {
    format!("{SPACES}/{id}")
}

/// `claims/FILE`, whatever that is.
pub(crate) fn in_claims(file: &str) -> String {
    format!("{CLAIMS}/{file}")
}

/// Longer than this, encoded, a name stands as a hash: NAME_MAX is 255, and a capacity and a slot follow.
const LONGEST: usize = 180;
const KEPT_OF_LONG: usize = 100;

/// The paths of one claim, relative to its directory.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    key: String,
    /// `queues/KEY`
    pub(crate) queue: String,
    /// `holders/KEY`
    pub(crate) holders: String,
}

impl Layout {
    pub(crate) fn of(key: &Key) -> Self {
        let mut encoded = encode(key.name.as_bytes());
        if encoded.len() > LONGEST {
            encoded.truncate(KEPT_OF_LONG);
            encoded.push('~');
            for byte in Sha256::digest(key.name.as_bytes()) {
                let _ = write!(encoded, "{byte:02x}");
            }
        }
        Self::of_encoded(format!("{encoded}@{}", key.max))
    }

    /// Of a key as it stands in the directory. `None`: it is none.
    pub(crate) fn read(key: &str) -> Option<(Self, Capacity)> {
        let (_, max) = parse_key(key)?;
        Some((Self::of_encoded(key.to_owned()), max))
    }

    fn of_encoded(key: String) -> Self {
        Self { queue: format!("{QUEUES}/{key}"), holders: format!("{HOLDERS}/{key}"), key }
    }

    /// `claims/KEY.SLOT`
    pub(crate) fn slot(&self, slot: u32) -> String {
        format!("{CLAIMS}/{}.{slot}", self.key)
    }

    /// `holders/KEY/ID`
    pub(crate) fn holder(&self, id: &str) -> String {
        format!("{}/{id}", self.holders)
    }

    /// `queues/KEY/TICKET`
    pub(crate) fn ticket(&self, ticket: &TicketName) -> String {
        format!("{}/{ticket}", self.queue)
    }

    /// Where a ticket stands until its owner has it open: not in the queue yet.
    pub(crate) fn hidden_ticket(&self, ticket: &TicketName) -> String {
        format!("{}/.{ticket}", self.queue)
    }

    /// `queues/KEY/stats`
    pub(crate) fn stats(&self) -> String {
        format!("{}/stats", self.queue)
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }
}

/// The name of a waiter's FIFO. Sorted as text, tickets stand in the order of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TicketName {
    pub(crate) class: Class,
    /// The number that gives the place. Unique in the directory, never used again.
    pub(crate) rev: u64,
    /// The waiting process, and the pid namespace in which that is its pid: enough to see whether it is stopped
    /// without reading its record.
    pub(crate) pid: i32,
    pub(crate) pid_namespace: u64,
}

impl std::fmt::Display for TicketName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:020}-{}-{}", self.class.rank(), self.rev, self.pid, self.pid_namespace)
    }
}

impl TicketName {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let class = Class::from_rank(name.as_bytes().first()?.checked_sub(b'0')?)?;
        let (rev, rest) = name.get(1..)?.split_once('-')?;
        let (pid, pid_namespace) = rest.split_once('-')?;
        let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let canonical = |text: &str| all_digits(text) && (text == "0" || !text.starts_with('0'));
        if rev.len() != 20 || !all_digits(rev) || !canonical(pid) || !canonical(pid_namespace) {
            return None;
        }
        let (rev, pid) = (rev.parse().ok()?, pid.parse().ok()?);
        Some(Self { class, rev, pid, pid_namespace: pid_namespace.parse().ok()? })
    }

    /// What the waiter's record is called in `holders/KEY`.
    pub(crate) fn holder_id(&self) -> String {
        format!("w{:020}", self.rev)
    }
}

/// What a file in `claims` is, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotName {
    /// `NAME@MAX` as it stands there.
    pub(crate) key: String,
    pub(crate) max: Capacity,
    pub(crate) slot: u32,
}

impl SlotName {
    pub(crate) fn parse(file: &str) -> Option<Self> {
        let (key, slot) = file.rsplit_once('.')?;
        let (_, max) = parse_key(key)?;
        let slot = number(slot)?;
        (slot < max.get()).then(|| Self { key: key.to_owned(), max, slot })
    }
}

/// Splits what stands as a key; the name only where it does not stand as a hash.
pub(crate) fn parse_key(key: &str) -> Option<(Option<Name>, Capacity)> {
    let (encoded, max) = key.rsplit_once('@')?;
    let max = Capacity::new(number(max)?).ok()?;
    if encoded.contains('~') {
        return Some((None, max));
    }
    let name = Name::new(decode(encoded)?).ok()?;
    Some((Some(name), max))
}

/// A number as we write them: no sign, no leading nought.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|n: &u32| n.to_string() == text)
}

/// Percent-encoding, of names in paths and of any bytes in records.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 8);
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'.' if at == 0 => out.push_str("%2E"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            out.push(u8::from_str_radix(digits, 16).ok()?);
            rest = tail.get(2..)?;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(name: &[u8], max: u32) -> Key {
        Key { name: Name::new(name).unwrap(), max: Capacity::new(max).unwrap() }
    }

    #[test]
    fn a_plain_name_is_readable_and_a_strange_one_stays_inside() {
        assert_eq!(Layout::of(&key(b"nightly-report", 1)).slot(0), "claims/nightly-report@1.0");
        assert_eq!(Layout::of(&key(b"../x", 2)).slot(1), "claims/%2E.%2Fx@2.1");
        assert_eq!(Layout::of(&key(b"a@1.0", 1)).key(), "a%401.0@1");
    }

    #[test]
    fn long_names_with_one_beginning_are_told_apart() {
        let (mut a, mut b) = (vec![b'/'; 4096], vec![b'/'; 4096]);
        a[4095] = b'a';
        b[4095] = b'b';
        let (a, b) = (Layout::of(&key(&a, 1)), Layout::of(&key(&b, 1)));
        assert_ne!(a.key(), b.key());
        assert!(a.slot(u32::MAX).len() < 255);
        assert_eq!(parse_key(a.key()), Some((None, Capacity::ONE)));
    }

    proptest! {
        #[test]
        fn keys_and_slots_read_back(name in proptest::collection::vec(1_u8.., 1..60), max in 1_u32.., slot in 0_u32..) {
            let layout = Layout::of(&key(&name, max));
            let path = layout.slot(slot % max);
            let read = SlotName::parse(path.strip_prefix("claims/").unwrap()).unwrap();
            prop_assert_eq!(read.slot, slot % max);
            let (read, read_max) = parse_key(layout.key()).unwrap();
            prop_assert_eq!(read, Some(Name::new(name).unwrap()));
            prop_assert_eq!(read_max.get(), max);
        }

        #[test]
        fn tickets_read_back_and_sort_by_class_then_place(a in 0_u8..4, b in 0_u8..4, ra: u64, rb: u64, pid in 1_i32..) {
            let ticket = |class, rev| TicketName { class: Class::from_rank(class).unwrap(), rev, pid, pid_namespace: 7 };
            let (x, y) = (ticket(a, ra), ticket(b, rb));
            prop_assert_eq!(TicketName::parse(&x.to_string()), Some(x));
            prop_assert_eq!(x.to_string().cmp(&y.to_string()), (a, ra).cmp(&(b, rb)));
        }

        #[test]
        fn nothing_else_reads_as_a_ticket_or_slot(text in "\\PC{0,40}") {
            if let Some(ticket) = TicketName::parse(&text) {
                prop_assert_eq!(ticket.to_string(), text.clone());
            }
            if let Some(slot) = SlotName::parse(&text) {
                prop_assert_eq!(format!("{}.{}", slot.key, slot.slot), text);
            }
        }
    }
}
