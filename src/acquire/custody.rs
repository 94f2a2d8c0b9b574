//! From the link to the end of a custody.

use std::time::Duration;

use super::{Contender, Custody};
use crate::clock;
use crate::error::Result;
use crate::events::{Happening, Observer};
use crate::fence::Fence;
use crate::local::link::Release;
#[cfg(feature = "cli")]
use crate::record::ProcessId;

impl Contender {
    /// The slot that process has already, if it has one, and its number: given to it here, if whoever had the slot for it
    /// died before that.
    #[cfg(feature = "cli")]
    pub(crate) fn held_by(&self, process: ProcessId) -> Result<Option<(u32, u64)>> {
        let occupied = self.place.occupied(0..self.place.key.max.get())?;
        let theirs = occupied.iter().find(|occupied| occupied.record.body.process == process);
        let Some(theirs) = theirs else { return Ok(None) };
        let fence = match theirs.record.live.fence {
            0 => {
                let number = self.number()?.get();
                let given = self.place.with_words_of(theirs, |words| {
                    words.set_fence(number);
                    words.fence()
                })?;
                given.unwrap_or(number)
            }
            fence => fence,
        };
        Ok(Some((theirs.slot, fence)))
    }

    /// The slot is linked: from here on it is ours, and only its number is missing. `None`: it was taken away by force
    /// before we had one, so somebody else may have a smaller one by now, and ours is told to nobody.
    pub(super) fn take_custody(&mut self, slot: u32) -> Result<Option<Custody>> {
        let since = clock::monotonic_ns();
        let fence = match self.number() {
            Ok(fence) => fence,
            Err(error) => {
                self.give_back_stray()?;
                return Err(error);
            }
        };
        let Some(holder) = &self.holder else { return Ok(None) };
        if holder.live().set_fence(fence.get()) {
            let fence = Fence::new(holder.live().fence());
            return Ok(Some(Custody { slot, fence, since }));
        }
        // Whoever revoked it may not be done yet; that file is never linked again.
        self.give_back_stray()?;
        Ok(None)
    }

    /// Gives back a slot that was had, but never came to be a custody: an error or a panic was in the way.
    pub(super) fn give_back_stray(&mut self) -> Result<()> {
        let (Some(slot), Some(holder)) = (self.slot, &self.holder) else { return Ok(()) };
        self.place.release(holder, slot)?;
        (self.slot, self.holder) = (None, None);
        self.after_release(0)
    }

    /// Gives the slot back, or leaves it to rest; then sees to whoever waits.
    pub(crate) fn release(&mut self, custody: Custody, observer: &mut dyn Observer) -> Result<Release> {
        let Some(holder) = &self.holder else { return Ok(Release::WasGone) };
        let rests = holder.live().until() > clock::boot_ns();
        let release = if rests && (holder.live().begin_rest() || holder.live().is_resting()) {
            // The record stays where it is, for the clock to end; the next custody needs another.
            self.holder = None;
            Release::Released
        } else {
            // If this fails, the slot is still noted, and tried again before anything else is done.
            self.place.release(holder, custody.slot)?
        };
        self.slot = None;
        if release == Release::WasGone {
            // Whoever revoked it may not be done yet; that file is never linked again.
            self.holder = None;
        }
        let duration = Duration::from_nanos(clock::monotonic_ns().saturating_sub(custody.since));
        if let Err(error) = self.after_release(clock::as_ns(duration)) {
            observer.trouble(&error);
        }
        let what = match release {
            Release::Released => Happening::Released { duration, fence: custody.fence },
            Release::WasGone => Happening::Lost,
        };
        self.report(observer, what)?;
        Ok(release)
    }

    /// Wakes the right waiter, or leaves nothing behind where nobody waits.
    fn after_release(&mut self, held_ns: u64) -> Result<()> {
        let queued = self.place.has_queue()?;
        let mut waiters = queued && self.place.wake_first(self.place.tickets()?)?;
        let has_more = self.place.key.max.get() > 1;
        if has_more && self.place.reclaim_dead()? && queued {
            waiters = self.place.wake_first(self.place.tickets()?)?;
        }
        let in_use = waiters || (has_more && self.place.is_held()?);
        match (in_use, queued) {
            // Whoever waits or holds now will tidy up.
            (true, true) => self.place.remember_hold(&mut self.history, held_ns),
            (true, false) => {
                self.place.dir.make_folder(&self.place.layout.queue)?;
                self.place.begin_history(&mut self.history)?;
                self.place.remember_hold(&mut self.history, held_ns)?;
                // The others may have gone, and looked, before that was there.
                self.place.tidy()
            }
            (false, true) => self.place.tidy(),
            (false, false) if self.terms.reusable => Ok(()),
            (false, false) => self.place.tidy_holders(),
        }
    }
}
