//! The clock that trust is counted on: CLOCK_BOOTTIME, which goes on while the machine is suspended. A lease does so
//! too, on machines that are not suspended; CLOCK_MONOTONIC would let a holder wake up and still believe.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A moment on CLOCK_BOOTTIME, in nanoseconds. Comparable across the processes of one host, until it boots again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The moment that never has been: before all others.
    pub const ZERO: Moment = Moment(0);

    /// Now.
    pub fn now() -> Moment {
        let now = clock_gettime(ClockId::Boottime);
        Moment((now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64))
    }

    /// From nanoseconds, as they were shared between processes.
    pub fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    /// As nanoseconds.
    pub fn nanos(self) -> u64 {
        self.0
    }

    /// Later by `by`; at the end of time at the latest.
    pub fn after(self, by: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Earlier by `by`; at boot at the earliest.
    pub fn before(self, by: Duration) -> Moment {
        Moment(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long since `earlier`; zero if that is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Sleeps until a [`Moment`]. A timer of the runtime's would sleep through a suspend and then sleep the rest.
pub(crate) struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    // `AsyncFd::register` asks for a promise that `as_raw_fd` does not change; of an `OwnedFd` that is known without.
    #[expect(deprecated)]
    pub(super) fn new() -> io::Result<Alarm> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Alarm(AsyncFd::new(timerfd_create(TimerfdClockId::Boottime, flags)?)?))
    }

    /// Returns at `moment` or a little later; at once if that is past. May be dropped and called again.
    pub(super) async fn at(&self, moment: Moment) -> io::Result<()> {
        let nanos = moment.nanos().min(i64::MAX as u64);
        let at = Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: never, it_value: at };
        // A zero time would disarm it; the past is now.
        if Moment::now() >= moment {
            return Ok(());
        }
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::ABSTIME, &spec)?;
        loop {
            let mut ready = self.0.readable().await?;
            if Moment::now() >= moment {
                return Ok(());
            }
            // Readiness that an earlier setting left behind: setting the time anew has reset the count.
            ready.clear_ready();
        }
    }
}

/// Milliseconds since 1970, for people.
pub(crate) fn wall_ms() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    (now.tv_sec as u64).saturating_mul(1000).saturating_add(now.tv_nsec as u64 / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_neither_wrap_nor_underflow() {
        let second = Duration::from_secs(1);
        assert_eq!(Moment::ZERO.before(second), Moment::ZERO);
        assert_eq!(Moment::from_nanos(u64::MAX).after(second).nanos(), u64::MAX);
        assert_eq!(Moment::ZERO.since(Moment::now()), Duration::ZERO);
        assert!(Moment::now().after(second) > Moment::now());
    }

    #[test]
    fn an_alarm_rings_not_before_its_moment_and_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let alarm = Alarm::new().unwrap();
            for _ in 0..3 {
                let moment = Moment::now().after(Duration::from_millis(5));
                alarm.at(moment).await.unwrap();
                assert!(Moment::now() >= moment);
            }
            alarm.at(Moment::ZERO).await.unwrap();
        });
    }
}
