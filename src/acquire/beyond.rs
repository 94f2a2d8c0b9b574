//! Contenders that have a slot of this host's only to wait elsewhere (across hosts, that is): they count as waiters here.

use super::Contender;
#[cfg(all(feature = "cli", feature = "etcd"))]
use super::Custody;
#[cfg(all(feature = "cli", feature = "etcd"))]
use crate::clock;
use crate::error::Result;
#[cfg(all(feature = "cli", feature = "etcd"))]
use crate::events::Observer;
use crate::local::layout::TicketName;
use crate::local::slots::Occupied;
use crate::rule::{self, Admission, Position};

/// One who waits: in the queue, or elsewhere with a slot of this host's.
enum Queued {
    Here(TicketName),
    Beyond(Occupied),
}

impl Queued {
    fn position(&self) -> Position {
        match self {
            Self::Here(ticket) => ticket.position(),
            Self::Beyond(it) => Position { class: it.record.body.class, rev: it.record.live.fence },
        }
    }
}

impl Contender {
    /// Room in a bounded queue, if need be at the cost of another; or says when to come back.
    pub(super) fn admit(&self) -> Result<Option<u64>> {
        let here = self.waiters()?.into_iter().map(Queued::Here);
        let mut queue: Vec<_> = here.chain(self.place.beyond()?.into_iter().map(Queued::Beyond)).collect();
        queue.sort_by_key(Queued::position);
        let positions: Vec<_> = queue.iter().map(Queued::position).collect();
        match rule::admit(self.terms.class, &positions, self.terms.queue_size) {
            Admission::Join => Ok(None),
            Admission::Displace(index) => {
                // The victim goes and the newcomer comes: as many wait as before.
                let retry_after = self.retry_after(Some(queue.len()))?;
                match &queue[index] {
                    Queued::Here(ticket) => self.place.displace(*ticket, retry_after)?,
                    Queued::Beyond(waiter) => self.place.displace_beyond(waiter, retry_after)?,
                }
                Ok(None)
            }
            Admission::Refuse => self.retry_after(Some(queue.len())).map(Some),
        }
    }

    /// With a slot of this host's, it turns out that the claim is to be waited for elsewhere. Says when to come back if that
    /// is one waiter too many; who has come through the queue (`admitted`) has been let in before.
    #[cfg(all(feature = "cli", feature = "etcd"))]
    pub(crate) fn wait_beyond(&self, admitted: bool) -> Result<Option<u64>> {
        let Some(holder) = &self.holder else { return Ok(None) };
        let minds = self.terms.queue_size.is_some() && !admitted;
        let _lock = if minds { self.lock_queue()? } else { None };
        if minds && let Some(retry_after) = self.admit()? {
            return Ok(Some(retry_after));
        }
        if !admitted {
            holder.live().set_queued(clock::unix_us());
        }
        holder.live().set_beyond(true);
        Ok(None)
    }

    /// Whether somebody of a higher class has come into the queue: of this host's contenders, that one is to go first.
    #[cfg(all(feature = "cli", feature = "etcd"))]
    pub(crate) fn is_overtaken(&self) -> Result<bool> {
        for ticket in self.place.tickets()? {
            if ticket.class >= self.terms.class {
                break;
            }
            if matches!(self.place.visit(ticket)?, Some((_, rule::Standing::Ready))) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Gives the slot to whom it is overtaken by. The next attempt has its old place among its own class: its number was
    /// drawn when the slot was had, so those who came later have larger ones.
    #[cfg(all(feature = "cli", feature = "etcd"))]
    pub(crate) fn step_back(&mut self, custody: Custody, observer: &mut dyn Observer) -> Result<()> {
        self.release(custody, observer)?;
        self.rejoin = Some(custody.fence);
        // A file without a name of its own is linked once.
        self.holder = None;
        Ok(())
    }
}
