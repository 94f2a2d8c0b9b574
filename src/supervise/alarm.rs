//! A moment on the clock that also counts suspend: a timer of the running clock would sleep through one, and then sleep the
//! rest.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::error::{Error, Result};

/// Polls readable from its moment on.
pub(super) struct Alarm(OwnedFd);

impl Alarm {
    pub(super) fn new() -> Result<Self> {
        let made = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK);
        made.map(Self).map_err(|errno| Error::system("make", "a timer", errno))
    }

    /// Boot time, in nanoseconds. What is past rings at once; an earlier ring is forgotten.
    pub(super) fn set(&self, boot_ns: u64) -> Result<()> {
        // Nought would disarm it.
        let at = i64::try_from(boot_ns).unwrap_or(i64::MAX).max(1);
        let timer = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec { tv_sec: at / 1_000_000_000, tv_nsec: at % 1_000_000_000 },
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &timer)
            .map(drop)
            .map_err(|errno| Error::system("set", "a timer", errno))
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
