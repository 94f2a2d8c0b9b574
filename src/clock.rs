//! The clocks, each for what it is for.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since boot, suspend included: what `until` is kept in, so that nobody who sets the wall clock can end or
/// prolong it.
pub(crate) fn boot_ns() -> u64 {
    nanoseconds(ClockId::Boottime)
}

/// When this boot began, as Unix time by the clock as it is set now, in microseconds.
pub(crate) fn boot_began_us() -> u64 {
    unix_us().saturating_sub(boot_ns() / 1000)
}

/// Unix time in microseconds, for people, and for a counter that has to be made anew.
pub(crate) fn unix_us() -> u64 {
    nanoseconds(ClockId::Realtime) / 1000
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    u64::try_from(now.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec.unsigned_abs())
}

/// A duration in whole nanoseconds, the longest that fits if it is longer.
pub(crate) fn as_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Unix time in microseconds as people read it, to the second.
#[cfg(feature = "cli")]
pub(crate) fn utc(unix_us: u64) -> String {
    let seconds = i64::try_from(unix_us / 1_000_000).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| unix_us.to_string(), |time| time.to_string())
}

/// The same, to the millisecond.
pub(crate) fn utc_ms(unix_us: u64) -> String {
    let milliseconds = i64::try_from(unix_us / 1000).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(milliseconds).map_or_else(|_| unix_us.to_string(), |time| format!("{time:.3}"))
}

/// A moment to give up at; `None` inside: never.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Option<u64>);

impl Deadline {
    pub(crate) const NEVER: Self = Self(None);

    pub(crate) fn after(duration: Duration) -> Self {
        Self(monotonic_ns().checked_add(as_ns(duration)))
    }

    pub(crate) fn has_passed(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// How long until then; `None`: for ever.
    pub(crate) fn left(self) -> Option<Duration> {
        self.0.map(|at| Duration::from_nanos(at.saturating_sub(monotonic_ns())))
    }

    /// The earlier of the two.
    pub(crate) fn or_sooner(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(a), Some(b)) => Self(Some(a.min(b))),
            (a, b) => Self(a.or(b)),
        }
    }
}

/// Nanoseconds of running time: what waits and hold times are measured by.
pub(crate) fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Between two tries at something the system gives no way to wait for with a time limit (a lock).
pub(crate) fn pause(duration: Duration) {
    let time = rustix::time::Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    };
    let _ = rustix::thread::nanosleep(&time);
}
