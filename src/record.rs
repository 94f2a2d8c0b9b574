//! The record of a holder or waiter: what is written, and how it is read back.
//!
//! A record is one small file. Its first words are shared memory, changed by its owner (and, for `state`, by who takes
//! the slot away by force); its body, a line of JSON, is complete before the file gets a name and never changes. All of it
//! is checked when it is read: what does not fit is *unreadable*, which is never the same as free.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::local::layout::{decode, encode};
use crate::name::{Capacity, Key, Name};

/// First bytes of a record of this version.
const MAGIC: u64 = u64::from_le_bytes(*b"claim-r1");
/// Words before the body.
pub(crate) const WORDS: usize = 16;
const BODY_AT: usize = WORDS * 8 + 8;
/// No record is larger: a name of 4096 bytes encoded is 12 KiB, a label is cut.
pub(crate) const LARGEST: usize = 64 * 1024;
/// A label longer than this is cut when the record is made.
pub(crate) const LONGEST_LABEL: usize = 1024;

/// The words, by their place.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Word {
    Magic = 0,
    State,
    Fence,
    Since,
    Until,
    CommandPid,
    CommandMark,
    CommandCheck,
    Queued,
    /// The slot is held only to wait elsewhere: across hosts, the one contender that goes there for it.
    Beyond,
    /// What is held there: until when that can be trusted (boot time, in nanoseconds), its fence, and its lease.
    Trusted,
    FarFence,
    FarLease,
    /// To one who waits elsewhere: it is displaced, and to come back after that many seconds; one more, so that 0 is
    /// nothing.
    Displaced,
}

/// Who may unlink the slot that names this record: its holder while HELD, which says so by RELEASING; whoever has turned
/// HELD into REVOKED, and only through the door that reclaiming uses. One atomic exchange decides between them.
pub(crate) const HELD: u64 = 0;
pub(crate) const RELEASING: u64 = 1;
pub(crate) const REVOKED: u64 = 2;
/// Given up by its holder before its time: nobody's, and held until `until` all the same.
pub(crate) const RESTING: u64 = 3;

/// A process, for as long as the host is up: pids come back, the pair does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub(crate) pid: i32,
    /// What tells it from others that have had the pid: see [`process`](crate::local::process).
    pub(crate) mark: u64,
}

/// The part of a record that never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Body {
    pub(crate) process: ProcessId,
    pub(crate) boot: String,
    pub(crate) pid_namespace: u64,
    pub(crate) time_namespace: u64,
    pub(crate) host: String,
    #[serde(with = "percent")]
    pub(crate) name: Vec<u8>,
    pub(crate) max: u32,
    pub(crate) class: Class,
    #[serde(with = "percent")]
    pub(crate) label: Vec<u8>,
    /// The kernel's lock on this file lives at least as long as the holder: once it is gone, so is the holder.
    pub(crate) lock_covers: bool,
    /// The holder is everything that has inherited the lock, not only the processes named here.
    pub(crate) tree: bool,
}

mod percent {
    use super::{decode, encode};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        decode(&String::deserialize(from)?).ok_or_else(|| D::Error::custom("not percent-encoded"))
    }
}

impl Body {
    /// The claim this is a record of, if its name is one.
    pub(crate) fn key(&self) -> Option<Key> {
        Some(Key { name: Name::new(self.name.clone()).ok()?, max: Capacity::new(self.max).ok()? })
    }
}

/// The part that changes, as it was when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Live {
    pub(crate) state: u64,
    /// 0 between the link and the taking of the fence.
    pub(crate) fence: u64,
    /// Unix time, in microseconds, at which the slot was had.
    pub(crate) since: u64,
    /// Boot time, in nanoseconds, until which the slot stays taken whoever is gone; 0: not at all.
    pub(crate) until: u64,
    /// Unix time, in microseconds, at which it began to wait.
    pub(crate) queued: u64,
    /// COMMAND of a supervised run, once it has registered.
    pub(crate) command: Option<ProcessId>,
    /// Not a holder but a waiter, though it has the slot on this host: it waits for the claim across hosts.
    pub(crate) beyond: bool,
    /// What is held across hosts.
    pub(crate) far: Far,
}

/// A custody across hosts, as the session that keeps it alive has put it on record. All nought: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Far {
    /// Boot time, in nanoseconds.
    pub(crate) trusted_until: u64,
    pub(crate) fence: u64,
    pub(crate) lease: u64,
}

/// A record as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) body: Body,
    pub(crate) live: Live,
}

/// What was read is no record of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unreadable;

/// The bytes of a new record, of nobody yet.
pub(crate) fn encode_record(body: &Body) -> Vec<u8> {
    // A struct of strings and numbers always serialises.
    let json = serde_json::to_vec(body).unwrap_or_default();
    let mut bytes = vec![0; BODY_AT];
    bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
    let length = u32::try_from(json.len()).unwrap_or(u32::MAX);
    bytes[WORDS * 8..WORDS * 8 + 4].copy_from_slice(&length.to_le_bytes());
    bytes[WORDS * 8 + 4..].copy_from_slice(&checksum(&json).to_le_bytes());
    bytes.extend_from_slice(&json);
    bytes.push(b'\n');
    bytes
}

/// Reads a record from all bytes of its file.
pub(crate) fn decode_record(bytes: &[u8]) -> Result<Record, Unreadable> {
    let head = bytes.get(..BODY_AT).ok_or(Unreadable)?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&head[at * 8..at * 8 + 8]);
        u64::from_le_bytes(word)
    };
    let tail = word(WORDS);
    let (length, check) = ((tail & 0xffff_ffff) as usize, (tail >> 32) as u32);
    let json = bytes.get(BODY_AT..BODY_AT + length).ok_or(Unreadable)?;
    let ends_well = bytes.get(BODY_AT + length..) == Some(b"\n");
    if word(Word::Magic as usize) != MAGIC || !ends_well || checksum(json) != check {
        return Err(Unreadable);
    }
    let body: Body = serde_json::from_slice(json).map_err(|_| Unreadable)?;
    if body.key().is_none() || body.process.pid <= 0 {
        return Err(Unreadable);
    }
    let state = word(Word::State as usize);
    if state > RESTING {
        return Err(Unreadable);
    }
    let command = match word(Word::CommandCheck as usize) {
        0 => None,
        check => {
            let (pid, mark) = (word(Word::CommandPid as usize), word(Word::CommandMark as usize));
            if check != command_check(pid, mark) {
                return Err(Unreadable);
            }
            Some(ProcessId { pid: i32::try_from(pid).map_err(|_| Unreadable)?, mark })
        }
    };
    let live = Live {
        state,
        fence: word(Word::Fence as usize),
        since: word(Word::Since as usize),
        until: word(Word::Until as usize),
        queued: word(Word::Queued as usize),
        command,
        beyond: word(Word::Beyond as usize) != 0,
        far: Far {
            trusted_until: word(Word::Trusted as usize),
            fence: word(Word::FarFence as usize),
            lease: word(Word::FarLease as usize),
        },
    };
    Ok(Record { body, live })
}

/// By table: asking the processor for an instruction that does it costs more than it saves, above all in a virtual machine,
/// where each such question is answered by the host.
fn checksum(bytes: &[u8]) -> u32 {
    static CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC);
    CRC.checksum(bytes)
}

/// Never 0, which stands for "no command yet".
fn command_check(pid: u64, mark: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&pid.to_le_bytes());
    bytes[8..].copy_from_slice(&mark.to_le_bytes());
    u64::from(checksum(&bytes)) | 1 << 63
}

/// The words of a mapped record, by name.
pub(crate) struct LiveWords<'a>(pub(crate) &'a [AtomicU64]);

impl LiveWords<'_> {
    fn at(&self, word: Word) -> &AtomicU64 {
        &self.0[word as usize]
    }

    /// Before each attempt at a slot: who finds the record linked finds this complete.
    pub(crate) fn prepare(&self, since: u64, until: u64) {
        self.at(Word::State).store(HELD, Ordering::Relaxed);
        self.at(Word::Fence).store(0, Ordering::Relaxed);
        self.at(Word::Since).store(since, Ordering::Relaxed);
        self.at(Word::Until).store(until, Ordering::SeqCst);
    }

    /// Nothing came of the custody: its slot is not to be kept any longer than it is held.
    #[cfg(feature = "cli")]
    pub(crate) fn waive_rest(&self) {
        self.at(Word::Until).store(0, Ordering::SeqCst);
    }

    pub(crate) fn set_queued(&self, at: u64) {
        self.at(Word::Queued).store(at, Ordering::SeqCst);
    }

    /// Gives the custody its number, unless somebody has done that for us. False: it was revoked before, and so has none.
    pub(crate) fn set_fence(&self, fence: u64) -> bool {
        let _ = self.at(Word::Fence).compare_exchange(0, fence, Ordering::SeqCst, Ordering::SeqCst);
        !self.is_revoked()
    }

    /// The number as it is.
    pub(crate) fn fence(&self) -> u64 {
        self.at(Word::Fence).load(Ordering::SeqCst)
    }

    pub(crate) fn until(&self) -> u64 {
        self.at(Word::Until).load(Ordering::SeqCst)
    }

    /// The check comes last: a reader that sees it sees the rest.
    #[cfg(feature = "cli")]
    pub(crate) fn set_command(&self, command: ProcessId) {
        let pid = u64::try_from(command.pid).unwrap_or(0);
        self.at(Word::CommandPid).store(pid, Ordering::SeqCst);
        self.at(Word::CommandMark).store(command.mark, Ordering::SeqCst);
        self.at(Word::CommandCheck).store(command_check(pid, command.mark), Ordering::SeqCst);
    }

    #[cfg(all(feature = "cli", feature = "etcd"))]
    pub(crate) fn set_beyond(&self, beyond: bool) {
        self.at(Word::Beyond).store(u64::from(beyond), Ordering::SeqCst);
    }

    /// The wait elsewhere has ended with that custody.
    #[cfg(all(feature = "cli", feature = "etcd"))]
    pub(crate) fn set_far(&self, fence: u64, lease: u64) {
        self.at(Word::FarLease).store(lease, Ordering::SeqCst);
        self.at(Word::FarFence).store(fence, Ordering::SeqCst);
        self.set_beyond(false);
    }

    #[cfg(all(feature = "cli", feature = "etcd"))]
    pub(crate) fn set_trusted_until(&self, boot_ns: u64) {
        self.at(Word::Trusted).store(boot_ns, Ordering::SeqCst);
    }

    /// Tells one who waits elsewhere what a ticket in the queue would be told.
    pub(crate) fn displace(&self, retry_after: u64) {
        self.at(Word::Displaced).store(retry_after.saturating_add(1), Ordering::SeqCst);
    }

    #[cfg(all(feature = "cli", feature = "etcd"))]
    pub(crate) fn displaced(&self) -> Option<u64> {
        self.at(Word::Displaced).load(Ordering::SeqCst).checked_sub(1)
    }

    /// The holder is about to unlink. False: somebody has revoked it, and the slot may be another's by now.
    pub(crate) fn begin_release(&self) -> bool {
        self.at(Word::State).compare_exchange(HELD, RELEASING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// The holder leaves the slot to the clock. False: somebody has revoked it.
    pub(crate) fn begin_rest(&self) -> bool {
        self.at(Word::State).compare_exchange(HELD, RESTING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether the slot was, or is about to be, taken away.
    pub(crate) fn is_revoked(&self) -> bool {
        self.at(Word::State).load(Ordering::SeqCst) == REVOKED
    }

    /// Whether it was left to the clock, by us or for us.
    pub(crate) fn is_resting(&self) -> bool {
        self.at(Word::State).load(Ordering::SeqCst) == RESTING
    }

    #[cfg(feature = "cli")]
    /// Takes the right to unlink from a living holder. False: it is releasing by itself.
    pub(crate) fn revoke(&self) -> bool {
        match self.at(Word::State).compare_exchange(HELD, REVOKED, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) | Err(REVOKED | RESTING) => true,
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn body(name: Vec<u8>, label: Vec<u8>) -> Body {
        Body {
            process: ProcessId { pid: 4242, mark: 99 },
            boot: "b".into(),
            pid_namespace: 1,
            time_namespace: 2,
            host: "node2".into(),
            name,
            max: 3,
            class: Class::Normal,
            label,
            lock_covers: true,
            tree: false,
        }
    }

    proptest! {
        #[test]
        fn reads_back(name in proptest::collection::vec(1_u8.., 1..200), label: Vec<u8>) {
            let body = body(name, label);
            let bytes = encode_record(&body);
            prop_assert!(bytes.len() <= LARGEST);
            let read = decode_record(&bytes).unwrap();
            prop_assert_eq!(read.body, body);
            prop_assert_eq!(read.live, Live::default());
        }

        #[test]
        fn a_cut_or_changed_record_is_unreadable_and_never_another(at: prop::sample::Index, to: u8, cut: bool) {
            let whole = encode_record(&body(b"x".to_vec(), b"true".to_vec()));
            let mut bytes = whole.clone();
            let at = at.index(bytes.len());
            if cut { bytes.truncate(at) } else { bytes[at] = to }
            // Only words that are free to take any value may differ and still read.
            if let Ok(read) = decode_record(&bytes) {
                prop_assert_eq!(read.body, decode_record(&whole).unwrap().body);
                prop_assert!(!cut);
            }
        }

        #[test]
        fn noise_is_unreadable(bytes: Vec<u8>) {
            prop_assert_eq!(decode_record(&bytes), Err(Unreadable));
        }
    }

    #[test]
    fn a_command_is_seen_whole_or_not_at_all() {
        let mut bytes = encode_record(&body(b"x".to_vec(), vec![]));
        let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        LiveWords(&words).set_command(ProcessId { pid: 7, mark: 11 });
        for at in [Word::CommandPid, Word::CommandMark, Word::CommandCheck] {
            let seen = decode_record(&bytes).map(|r| r.live.command);
            assert_eq!(seen, Ok(None));
            let value = words[at as usize].load(Ordering::SeqCst).to_le_bytes();
            bytes[at as usize * 8..at as usize * 8 + 8].copy_from_slice(&value);
        }
        assert_eq!(decode_record(&bytes).unwrap().live.command, Some(ProcessId { pid: 7, mark: 11 }));
    }

    #[test]
    fn one_of_releasing_and_revoking_wins() {
        let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let live = LiveWords(&words);
        assert!(live.begin_release());
        assert!(!live.revoke());
        live.prepare(0, 0);
        assert!(live.revoke());
        assert!(live.revoke());
        assert!(!live.begin_release());
    }
}
