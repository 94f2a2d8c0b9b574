//! Joining the queue, within its bound.

use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Contender;
use crate::clock::{self, Deadline};
use crate::error::Result;
use crate::local::Place;
use crate::local::holder::try_flock;
use crate::local::layout::TicketName;
use crate::local::queue::Ticket;
use crate::rule;

impl Contender {
    /// Joins the queue; or says when to come back, because it is full.
    pub(super) fn join(&mut self) -> Result<std::result::Result<Ticket, u64>> {
        self.holder()?;
        let Some(holder) = &self.holder else { return self.retry_after(None).map(Err) };
        let class = self.terms.class;
        if self.terms.queue_size == Some(0) {
            return self.retry_after(None).map(Err);
        }
        // Only those who mind the bound exclude each other while they count and join, and not for long: order, safety
        // and progress hang on nothing here, so that nobody who is stopped in the middle can hold up the others.
        let minds = self.terms.queue_size.is_some() && self.rejoin.is_none();
        let _lock = if minds { self.lock_queue()? } else { None };
        if minds && let Some(retry_after) = self.admit()? {
            return Ok(Err(retry_after));
        }
        holder.live().set_queued(clock::unix_us());
        loop {
            let rev = self.rejoin.map_or_else(|| self.number(), Ok)?;
            if let Some(ticket) = self.place.enqueue(holder, class, rev)? {
                // With our ticket in the queue, nobody takes it for idle.
                self.place.begin_history(&mut self.history)?;
                return Ok(Ok(ticket));
            }
        }
    }

    /// Closing the descriptor lets go of the lock; should a fork by another thread have kept it open, others wait for it
    /// in vain, and go on without after [their patience](PATIENCE).
    pub(super) fn lock_queue(&self) -> Result<Option<rustix::fd::OwnedFd>> {
        const PATIENCE: Duration = Duration::from_secs(1);
        let Place { dir, layout, .. } = &self.place;
        let give_up = Deadline::after(PATIENCE);
        loop {
            dir.make_folder(&layout.queue)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let folder = match rustix::fs::openat(dir, layout.queue.as_str(), flags, Mode::empty()) {
                Ok(folder) => folder,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(dir.system("open directory", &layout.queue, errno)),
            };
            loop {
                // Kept until the descriptor is closed.
                match try_flock(dir, &layout.queue, &folder)? {
                    Some(locked) => {
                        std::mem::forget(locked);
                        break;
                    }
                    None if give_up.has_passed() => return Ok(None),
                    None => clock::pause(Duration::from_millis(1)),
                }
            }
            // The directory may have been removed, and another made, before we had the lock.
            let ours = rustix::fs::fstat(&folder).map_err(|errno| dir.system("look at", &layout.queue, errno))?;
            let there = dir.stat(&layout.queue)?;
            if there.is_some_and(|there| there.st_ino == ours.st_ino) {
                return Ok(Some(folder));
            }
        }
    }

    /// The waiters that are alive.
    pub(super) fn waiters(&self) -> Result<Vec<TicketName>> {
        let mut alive = Vec::new();
        for ticket in self.place.tickets()? {
            if self.place.visit(ticket)?.is_some() {
                alive.push(ticket);
            }
        }
        Ok(alive)
    }

    pub(crate) fn retry_after(&self, waiters: Option<usize>) -> Result<u64> {
        let waiters = match waiters {
            Some(waiters) => waiters,
            None => self.waiters()?.len() + self.place.beyond()?.len(),
        };
        Ok(rule::retry_after(self.place.mean_hold()?, waiters, self.place.key.max.get()))
    }
}
