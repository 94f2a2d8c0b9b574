//! What happens to a claim, for those who want to know.

use std::time::Duration;

use serde::Serialize;

use crate::class::Class;
use crate::clock;
use crate::fence::Fence;
use crate::local::slots::Occupancy;
use crate::name::Key;

/// Something that happened to a contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Happening {
    /// It waits.
    Queued,
    /// It holds.
    Acquired {
        /// How long it waited.
        wait: Duration,
        /// The number of this custody.
        fence: Fence,
    },
    /// It has given back what it held.
    Released {
        /// How long it held.
        duration: Duration,
        /// The number of that custody.
        fence: Fence,
    },
    /// It was not let in, or asked only once and the name was held.
    Rejected {
        /// When to come back, in seconds.
        retry_after: u64,
    },
    /// It waited in a bounded queue, and had to make room for a higher class.
    Displaced {
        /// When to come back, in seconds.
        retry_after: u64,
    },
    /// It waited, and gave up.
    Abandoned,
    /// What it held was taken away.
    Lost,
    /// It has met a dead holder and freed the slot.
    Reclaimed,
}

/// What happened, to which claim, and how that stands after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Unix time, in microseconds.
    pub at: u64,
    /// What.
    pub what: Happening,
    /// To which claim.
    pub key: Key,
    /// The class of the contender.
    pub class: Class,
    /// The process it happened to.
    pub pid: i32,
    /// Holders and waiters after it.
    pub occupancy: Occupancy,
}

/// Is told what happens to a handle. It is called on the thread that acquires or releases, between two steps: what takes
/// long here is taken from the work.
pub trait Observer: Send {
    /// Something happened. Only called if [`wants_events`](Self::wants_events).
    fn event(&mut self, event: &Event) {
        let _ = event;
    }

    /// Whether events are wanted. Counting holders and waiters for each costs some system calls.
    fn wants_events(&self) -> bool {
        true
    }

    /// Something went wrong that does not change what the handle does or says: a waiter could not be woken, or something
    /// be tidied away.
    fn trouble(&mut self, error: &crate::Error) {
        let _ = error;
    }

    /// Whether waits are wanted. Looking who holds costs some system calls.
    fn wants_waits(&self) -> bool {
        true
    }

    /// It still waits. Returns when it wants to be told again. Only called if [`wants_waits`](Self::wants_waits).
    fn waiting(&mut self, waiting: &Waiting) -> Option<Duration> {
        let _ = waiting;
        None
    }
}

/// How a wait stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// For how long.
    pub elapsed: Duration,
    /// How many are served before.
    pub before: usize,
    /// One who has it, if that could be seen.
    pub holder: Option<Who>,
}

/// Who has a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// The slot it has, from 0.
    pub slot: u32,
    /// The holder's process, in its own pid namespace: of a run `claim` itself, or COMMAND if that is all that is left.
    pub pid: i32,
    /// The host, or container, it runs on.
    pub host: String,
    /// Unix time, in microseconds, since when.
    pub since: u64,
    /// What it runs, as bytes.
    pub label: Vec<u8>,
    /// Nobody need be alive: the slot is taken until then (Unix time, in microseconds).
    pub until: Option<u64>,
}

impl Event {
    /// The event as the one line of JSON that `claim --events` writes, without the newline.
    pub fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct Line<'a> {
            ts: String,
            event: &'a str,
            name: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            name_b64: Option<String>,
            max: u32,
            class: Class,
            pid: i32,
            held: u32,
            queued: u32,
            queued_interactive: u32,
            queued_high: u32,
            queued_normal: u32,
            queued_low: u32,
            #[serde(skip_serializing_if = "Option::is_none")]
            wait_ms: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            duration_ms: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            fence: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            retry_after: Option<u64>,
        }
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (mut wait_ms, mut duration_ms, mut number, mut again) = (None, None, None, None);
        let event = match self.what {
            Happening::Queued => "queued",
            Happening::Acquired { wait, fence } => {
                (wait_ms, number) = (Some(ms(wait)), Some(fence.get()));
                "acquired"
            }
            Happening::Released { duration, fence } => {
                (duration_ms, number) = (Some(ms(duration)), Some(fence.get()));
                "released"
            }
            Happening::Rejected { retry_after } => {
                again = Some(retry_after);
                "rejected"
            }
            Happening::Displaced { retry_after } => {
                again = Some(retry_after);
                "displaced"
            }
            Happening::Abandoned => "abandoned",
            Happening::Lost => "lost",
            Happening::Reclaimed => "reclaimed",
        };
        let (name, name_b64) = json_name(self.key.name.as_bytes());
        let line = Line {
            ts: clock::utc_ms(self.at),
            event,
            name,
            name_b64,
            max: self.key.max.get(),
            class: self.class,
            pid: self.pid,
            held: self.occupancy.held,
            queued: self.occupancy.queued(),
            queued_interactive: self.occupancy.queued_of(Class::Interactive),
            queued_high: self.occupancy.queued_of(Class::High),
            queued_normal: self.occupancy.queued_of(Class::Normal),
            queued_low: self.occupancy.queued_of(Class::Low),
            wait_ms,
            duration_ms,
            fence: number,
            retry_after: again,
        };
        // Strings and numbers always serialise.
        serde_json::to_string(&line).unwrap_or_default()
    }
}

/// A name for JSON, and in base64 too where JSON cannot have it.
pub(crate) fn json_name(name: &[u8]) -> (String, Option<String>) {
    use base64::Engine;
    match std::str::from_utf8(name) {
        Ok(name) => (name.to_owned(), None),
        Err(_) => {
            let whole = base64::engine::general_purpose::STANDARD.encode(name);
            (String::from_utf8_lossy(name).into_owned(), Some(whole))
        }
    }
}
