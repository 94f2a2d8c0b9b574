//! Sleeping until there is a reason to look again.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::clock::{self, Deadline};
use crate::error::{Error, Result};

/// What can end a sleep.
#[derive(Default)]
pub(crate) struct Reasons<'a> {
    fds: Vec<PollFd<'a>>,
}

/// What did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The descriptor with that number, in the order in which they were added.
    By(usize),
    /// Time.
    Timeout,
}

impl<'a> Reasons<'a> {
    /// Something to read: a ticket of one's own, a signal; or the end of a process (pidfd).
    pub(crate) fn readable(&mut self, fd: BorrowedFd<'a>) -> &mut Self {
        self.fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        self
    }

    /// The other end has gone: poll(2) reports that unasked.
    pub(crate) fn gone(&mut self, fd: BorrowedFd<'a>) -> &mut Self {
        self.fds.push(PollFd::from_borrowed_fd(fd, PollFlags::empty()));
        self
    }

    /// Sleeps until the first of them, or until the deadline.
    pub(crate) fn sleep(&mut self, until: Deadline) -> Result<Woken> {
        loop {
            let left = until.left().map(timespec);
            match poll(&mut self.fds, left.as_ref()) {
                Ok(0) => return Ok(Woken::Timeout),
                Ok(_) => {
                    let by = self.fds.iter().position(|fd| !fd.revents().is_empty());
                    return Ok(by.map_or(Woken::Timeout, Woken::By));
                }
                Err(Errno::INTR) if until.has_passed() => return Ok(Woken::Timeout),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::system("poll", "what wakes a waiter", errno)),
            }
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    let nanoseconds = i64::try_from(clock::as_ns(duration)).unwrap_or(i64::MAX);
    Timespec { tv_sec: nanoseconds / 1_000_000_000, tv_nsec: nanoseconds % 1_000_000_000 }
}
