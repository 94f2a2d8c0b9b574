//! A look at the queue: whose turn is it?

use super::Contender;
use crate::clock;
use crate::error::Result;
use crate::local::layout::TicketName;
use crate::local::queue::{Message, Neighbour, Ticket};
use crate::rule::{self, Contender as Asker, Turn};

/// What a look at the queue has shown.
pub(super) struct Look {
    pub(super) turn: Turn,
    /// The neighbour to wait for, if it is not our turn.
    pub(super) behind: Option<Neighbour>,
    /// Waiters before us, by their tickets.
    pub(super) before: usize,
    /// Our ticket was taken out of the queue: when to come back, in seconds.
    pub(super) displaced: Option<u64>,
}

/// Why a look is taken.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Why {
    /// There is something to read in our FIFO.
    pub(super) told: bool,
    /// Nothing but time.
    pub(super) slept_out: bool,
}

/// Waiters who stood first beside a free slot when we looked, and those who still did a good while later: whatever holds them
/// up (a frozen container shows no other sign), they are passed over.
#[derive(Default)]
pub(super) struct Suspicion {
    suspect: Option<u64>,
    convicted: Vec<u64>,
}

impl Contender {
    /// Whose turn it is, as far as the queue shows.
    pub(super) fn look(&mut self, ticket: &mut Option<Ticket>, suspicion: &mut Suspicion, why: Why) -> Result<Look> {
        let first = Look { turn: Turn::Mine, behind: None, before: 0, displaced: None };
        if ticket.is_none() && !self.place.has_queue()? {
            return Ok(first);
        }
        let tickets = self.place.tickets()?;
        if why.slept_out {
            self.renew_lost_record(ticket.as_ref())?;
        }
        if let Some(mine) = ticket {
            let is_there = tickets.contains(&mine.name);
            // After listing: who displaces us says so before the ticket goes, so one that is not there any more and
            // about which nothing was said was lost in another way.
            if (why.told || !is_there)
                && let Some(Message::Displaced(retry_after)) = mine.read()?
            {
                return Ok(Look { displaced: Some(retry_after), ..first });
            }
            if !is_there {
                self.come_back(mine)?;
                return self.look(ticket, suspicion, why);
            }
            if !mine.announced {
                self.place.wake_behind(mine.name.position(), &tickets)?;
                mine.announced = true;
            }
        }
        let me = match &ticket {
            Some(ticket) => Asker::Waiter(ticket.name.position()),
            None => Asker::Newcomer(self.terms.class),
        };
        let before: Vec<TicketName> = tickets.into_iter().filter(|other| me.is_behind(other.position())).collect();
        let mut neighbours = Vec::new();
        let standings = before.iter().rev().copied();
        let convicted = |name: &TicketName| suspicion.convicted.contains(&name.rev);
        let standings = self.place.standings(standings.filter(|name| !convicted(name)), &mut neighbours);
        let turn = rule::turn(standings)?;
        let before = before.len();
        let Turn::Behind(steps) = turn else { return Ok(Look { before: 0, ..first }) };
        let neighbour = neighbours.swap_remove(steps);
        if ticket.is_some() && why.slept_out {
            let rev = neighbour.name.rev;
            if !self.place.has_free_slot(self.terms.spread)? {
                // No slot was left lying: whoever was too slow then is judged anew.
                *suspicion = Suspicion::default();
            } else if suspicion.suspect == Some(rev) {
                // It has not moved beside a free slot for a whole sleep of ours.
                suspicion.convicted.push(rev);
                suspicion.suspect = None;
                return self.look(ticket, suspicion, why);
            } else {
                suspicion.suspect = Some(rev);
            }
        }
        Ok(Look { turn, behind: Some(neighbour), before, displaced: None })
    }

    /// A record that was cleaned away could not be linked to a slot any more, nor be seen by others. True: it was.
    pub(super) fn renew_lost_record(&mut self, ticket: Option<&Ticket>) -> Result<bool> {
        let Some(mine) = ticket else { return Ok(false) };
        let Some(holder) = &self.holder else { return Ok(false) };
        if !holder.is_lost()? {
            return Ok(false);
        }
        self.holder = None;
        let holder = self.holder()?;
        holder.live().set_queued(clock::unix_us());
        mine.link_record(holder)?;
        Ok(true)
    }

    /// Our ticket is not where it was: taken for dead, or cleaned away. The place is still ours.
    fn come_back(&mut self, ticket: &mut Ticket) -> Result<()> {
        let name = ticket.name;
        // Not by leaving: that would take the record's name, which may be its only one.
        ticket.abandon();
        loop {
            if self.holder()?.is_lost()? {
                self.holder = None;
            }
            let holder = self.holder()?;
            holder.live().set_queued(clock::unix_us());
            let Some(holder) = &self.holder else { continue };
            if let Some(back) = self.place.publish(holder, name)? {
                *ticket = back;
                return Ok(());
            }
        }
    }
}
