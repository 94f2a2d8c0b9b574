//! The one loop of a contender: look, decide by the rule, act, wait.

mod admission;
mod beyond;
mod custody;
mod look;
mod terms;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;

use crate::clock::{self, Deadline};
use crate::error::Result;
use crate::events::{Event, Happening, Observer, Waiting, Who};
use crate::fence::Fence;
use crate::local::Place;
use crate::local::counter::Counter;
use crate::local::dir::Directory;
use crate::local::history::History;
use crate::local::holder::Holder;
use crate::local::layout::TicketName;
use crate::local::liveness::Liveness;
use crate::local::queue::Ticket;
use crate::local::ring::Lineage;
use crate::local::slots::{Attempt, Occupied};
use crate::local::wait::{Reasons, Woken};
use crate::name::Key;
use crate::record::{Body, LONGEST_LABEL};
use crate::rule::{self, Turn};

use look::{Suspicion, Why};
pub(crate) use terms::{Ended, Terms};
pub use terms::{Refusal, Refused};

/// What can end a wait from outside: descriptors, and what to make of one that has become readable.
pub(crate) trait Interrupts {
    fn fds(&self) -> Vec<BorrowedFd<'_>>;
    /// The descriptor with that number is readable. True: the wait is over.
    fn ends(&mut self, number: usize) -> bool;
}

/// Nothing does.
impl Interrupts for () {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn ends(&mut self, _: usize) -> bool {
        false
    }
}

/// A slot that is ours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Custody {
    pub(crate) slot: u32,
    pub(crate) fence: Fence,
    since: u64,
}

/// Everything one handle needs to contend for, hold and give back.
pub(crate) struct Contender {
    pub(crate) place: Place,
    pub(crate) terms: Terms,
    counter: Counter,
    history: Option<History>,
    lineage: Lineage,
    holder: Option<Holder>,
    /// The slot that our record is linked to, or was when something went wrong on the way: to be given back before it is
    /// used for anything else.
    slot: Option<u32>,
    /// The place in the queue that it has left and comes back to.
    rejoin: Option<Fence>,
}

impl Contender {
    pub(crate) fn new(dir: Directory, key: Key, terms: Terms) -> Result<Self> {
        let place = Place::new(dir, key)?;
        let counter = Counter::open(&place.dir, &place.me.boot)?;
        let (history, lineage) = (None, Lineage::default());
        Ok(Self { place, terms, counter, history, lineage, holder: None, slot: None, rejoin: None })
    }

    /// The record of this handle, made where there is none.
    fn holder(&mut self) -> Result<&Holder> {
        match self.holder {
            Some(ref holder) => Ok(holder),
            None => {
                let holder = self.make_holder()?;
                Ok(self.holder.insert(holder))
            }
        }
    }

    fn make_holder(&self) -> Result<Holder> {
        let Place { dir, key, layout, me } = &self.place;
        let mut label = self.terms.label.clone();
        label.truncate(LONGEST_LABEL);
        let process = self.terms.on_behalf_of.unwrap_or(me.process);
        let body = Body {
            process,
            boot: me.boot.clone(),
            pid_namespace: me.pid_namespace,
            time_namespace: me.time_namespace_of(process)?,
            host: me.host.clone(),
            name: key.name.as_bytes().to_vec(),
            max: key.max.get(),
            class: self.terms.class,
            label,
            lock_covers: self.terms.lock_covers,
            tree: self.terms.tree,
        };
        let mut holder = Holder::new(dir, &body)?;
        if self.terms.reusable {
            let path = layout.holder(&format!("h{:020}", self.number()?.get()));
            dir.make_folder(&layout.holders)?;
            while !holder.keep_as(path.clone())? {
                dir.make_folder(&layout.holders)?;
            }
        }
        Ok(holder)
    }

    /// Draws a number. The counter is opened anew if its file was lost or damaged.
    fn number(&self) -> Result<Fence> {
        if let Some(number) = self.counter.next() {
            return Ok(number);
        }
        let anew = Counter::open(&self.place.dir, &self.place.me.boot)?;
        anew.next().ok_or_else(|| self.place.dir.system("count in", "fence", Errno::STALE))
    }

    /// Contends until it holds, is refused, the deadline passes (`once`: without waiting at all), or an interrupt
    /// ends it.
    pub(crate) fn acquire(
        &mut self,
        once: bool,
        until: Deadline,
        interrupts: &mut dyn Interrupts,
        observer: &mut dyn Observer,
    ) -> Result<Ended> {
        /// Who removes the directory again and again is not to keep us busy for ever.
        const BEGINNINGS: u32 = 100;
        self.give_back_stray()?;
        let mut ticket: Option<Ticket> = None;
        let began = clock::monotonic_ns();
        let mut beginnings = 0;
        let ended = loop {
            let ended = self
                .holder()
                .map(drop)
                .and_then(|()| self.contend(&mut ticket, began, once, until, interrupts, observer));
            match ended {
                Err(_) if beginnings < BEGINNINGS && self.place.dir.is_removed()? => {
                    beginnings += 1;
                    self.begin_anew(&mut ticket)?;
                }
                ended => break ended,
            }
        };
        let had_ticket = ticket.is_some();
        // From here on what goes wrong does not change how it has ended.
        if let Some(mut ticket) = ticket
            && let Err(error) = ticket.leave()
        {
            observer.trouble(&error);
        }
        match &ended {
            Ok(Ended::Acquired(custody)) => {
                let wait = Duration::from_nanos(clock::monotonic_ns().saturating_sub(began));
                self.report(observer, Happening::Acquired { wait, fence: custody.fence })?;
            }
            other => {
                // Whoever was the last to hold may have seen us in the queue, and left the tidying to us.
                if had_ticket && let Err(error) = self.place.tidy() {
                    observer.trouble(&error);
                }
                match other {
                    Ok(Ended::Interrupted) if had_ticket => self.report(observer, Happening::Abandoned)?,
                    Ok(Ended::Refused(refused)) => self.report_refusal(refused, had_ticket, observer)?,
                    _ => {}
                }
            }
        }
        ended
    }

    fn contend(
        &mut self,
        ticket: &mut Option<Ticket>,
        began: u64,
        once: bool,
        until: Deadline,
        interrupts: &mut dyn Interrupts,
        observer: &mut dyn Observer,
    ) -> Result<Ended> {
        /// Rings are looked for when a wait begins, and then ever more rarely, for what was missed when two began at once.
        const RING_CHECK_FIRST: Duration = Duration::from_secs(1);
        const RING_CHECK_LAST: Duration = Duration::from_secs(60);
        let mut suspicion = Suspicion::default();
        let mut ring_check_every = RING_CHECK_FIRST;
        let mut next_ring_check = Deadline::after(Duration::ZERO);
        let mut next_report = Deadline::after(Duration::ZERO);
        let mut why = Why::default();
        loop {
            let look = self.look(ticket, &mut suspicion, why)?;
            if let Some(retry_after) = look.displaced {
                return self.refuse(Refusal::Displaced { retry_after }, &[], ticket.as_ref());
            }
            let mut occupied = Vec::new();
            if look.turn == Turn::Mine {
                match self.try_slots(observer)? {
                    Attempt::Taken(slot) => match self.take_custody(slot)? {
                        Some(custody) => return Ok(Ended::Acquired(custody)),
                        // Forced away before we knew our number.
                        None => continue,
                    },
                    Attempt::NoDirectory => {
                        if !self.renew_lost_record(ticket.as_ref())? {
                            self.begin_anew(ticket)?;
                        }
                        continue;
                    }
                    Attempt::Occupied(by) => occupied = by,
                }
            }

            let over = once || until.has_passed();
            if self.terms.look_for_rings && (ticket.is_none() || next_ring_check.has_passed()) {
                next_ring_check = Deadline::after(ring_check_every);
                ring_check_every = (ring_check_every * 2).min(RING_CHECK_LAST);
                let mine = ticket.as_ref().map(|ticket| &ticket.name);
                let alone = !self.terms.reusable;
                if let Some(hopeless) = self.place.hopeless(&mut self.lineage, mine, self.terms.spread, alone)? {
                    return self.refuse(Refusal::Hopeless(hopeless.0), &occupied, ticket.as_ref());
                }
            }
            if over {
                let reason = if once { Refusal::Held } else { Refusal::TimedOut };
                return self.refuse(reason, &occupied, ticket.as_ref());
            }
            if ticket.is_none() {
                match self.join()? {
                    Ok(joined) => *ticket = Some(joined),
                    Err(retry_after) => return self.refuse(Refusal::QueueFull { retry_after }, &occupied, None),
                }
                self.report(observer, Happening::Queued)?;
                // A slot may have become free before the ticket was there for its releaser to see.
                why = Why::default();
                continue;
            }

            if next_report.has_passed() && !observer.wants_waits() {
                next_report = Deadline::NEVER;
            }
            if next_report.has_passed() {
                let elapsed = Duration::from_nanos(clock::monotonic_ns().saturating_sub(began));
                let seen;
                let shown = if occupied.is_empty() {
                    seen = self.place.occupied(0..self.place.key.max.get())?;
                    &seen
                } else {
                    &occupied
                };
                let holder = shown.iter().find(|it| !it.is_beyond()).map(who);
                let again = observer.waiting(&Waiting { elapsed, before: look.before, holder });
                next_report = again.map_or(Deadline::NEVER, Deadline::after);
            }
            let pace = if look.turn == Turn::Mine { 0 } else { look.before.max(1) };
            let look_again = Deadline::after(rule::look_again_after(pace));
            let wake = until.or_sooner(look_again).or_sooner(next_report);
            let fds = interrupts.fds();
            let mut reasons = Reasons::default();
            for interrupt in &fds {
                reasons.readable(*interrupt);
            }
            if let Some(fifo) = ticket.as_ref().and_then(Ticket::fifo) {
                reasons.readable(fifo.as_fd());
            }
            if let Some(neighbour) = &look.behind {
                reasons.gone(neighbour.fifo.as_fd());
            }
            for pidfd in occupied.iter().filter_map(Occupied::pidfd) {
                reasons.readable(pidfd);
            }
            let woken = reasons.sleep(wake)?;
            why = Why {
                told: woken == Woken::By(fds.len()),
                slept_out: woken == Woken::Timeout && look_again.has_passed(),
            };
            let interrupt = match woken {
                Woken::By(number) if number < fds.len() => Some(number),
                _ => None,
            };
            drop(fds);
            if interrupt.is_some_and(|number| interrupts.ends(number)) {
                return Ok(Ended::Interrupted);
            }
        }
    }

    fn try_slots(&mut self, observer: &mut dyn Observer) -> Result<Attempt> {
        let at_least = self.terms.at_least;
        let until = if at_least.is_zero() { 0 } else { clock::boot_ns().saturating_add(clock::as_ns(at_least)) };
        let holder = self.holder()?;
        holder.live().prepare(clock::unix_us(), until);
        let Some(holder) = &self.holder else { return Ok(Attempt::NoDirectory) };
        let mut found_dead = 0;
        let attempt = self.place.take_any(holder, self.terms.spread, &mut || found_dead += 1)?;
        if let Attempt::Taken(slot) = attempt {
            self.slot = Some(slot);
        }
        for _ in 0..found_dead {
            self.report(observer, Happening::Reclaimed)?;
        }
        Ok(attempt)
    }

    /// The directory has been removed under us: there is nothing in it to come back to.
    fn begin_anew(&mut self, ticket: &mut Option<Ticket>) -> Result<()> {
        *ticket = None;
        self.slot = None;
        self.place.dir = self.place.dir.reopen()?;
        self.place.dir.furnish()?;
        self.place.dir.hold_off_cleaners()?;
        self.counter = Counter::open(&self.place.dir, &self.place.me.boot)?;
        self.history = None;
        self.holder = None;
        self.holder().map(drop)
    }

    fn refuse(&self, reason: Refusal, occupied: &[Occupied], ticket: Option<&Ticket>) -> Result<Ended> {
        let seen;
        let occupied = if occupied.is_empty() {
            seen = self.place.occupied(0..self.place.key.max.get())?;
            &seen
        } else {
            occupied
        };
        let is_other = |waiter: &TicketName| ticket.is_none_or(|mine| mine.name != *waiter);
        let beyond = occupied.iter().filter(|it| it.is_beyond()).count();
        let waiting = self.waiters()?.into_iter().filter(is_other).count() + beyond;
        let holder = occupied.iter().find(|it| !it.is_beyond()).map(who);
        Ok(Ended::Refused(Refused { reason, holder, waiting }))
    }

    fn report_refusal(&self, refused: &Refused, had_ticket: bool, observer: &mut dyn Observer) -> Result<()> {
        if !observer.wants_events() {
            return Ok(());
        }
        match refused.reason {
            Refusal::Displaced { retry_after } => self.report(observer, Happening::Displaced { retry_after }),
            Refusal::QueueFull { retry_after } => self.report(observer, Happening::Rejected { retry_after }),
            _ if had_ticket => self.report(observer, Happening::Abandoned),
            _ => {
                let retry_after = self.retry_after(None)?;
                self.report(observer, Happening::Rejected { retry_after })
            }
        }
    }

    pub(crate) fn report(&self, observer: &mut dyn Observer, what: Happening) -> Result<()> {
        if !observer.wants_events() {
            return Ok(());
        }
        match self.place.occupancy() {
            Ok(occupancy) => observer.event(&Event {
                at: clock::unix_us(),
                what,
                key: self.place.key.clone(),
                class: self.terms.class,
                pid: self.terms.on_behalf_of.unwrap_or(self.place.me.process).pid,
                occupancy,
            }),
            Err(error) => observer.trouble(&error),
        }
        Ok(())
    }

    /// Whether the slot was taken away by force since it was had.
    pub(crate) fn is_revoked(&self) -> bool {
        self.holder.as_ref().is_none_or(|holder| holder.live().is_revoked())
    }

    /// Our record, for what a supervisor does with it.
    #[cfg(feature = "cli")]
    pub(crate) fn record(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// Removes what only this handle needed.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.give_back_stray()?;
        self.holder = None;
        self.place.tidy()
    }

    /// Forgets everything without touching the directory: it was another process's before a fork.
    pub(crate) fn forget(self) {
        drop(self);
    }
}

/// A holder as it is shown to others.
pub(crate) fn who(occupied: &Occupied) -> Who {
    let record = &occupied.record;
    Who {
        slot: occupied.slot,
        // Of a run whose `claim` was killed, COMMAND: that is whom one can do something about.
        pid: occupied.alive.unwrap_or(record.body.process).pid,
        host: record.body.host.clone(),
        since: record.live.since,
        label: record.body.label.clone(),
        until: match occupied.liveness {
            Liveness::Resting(until) => {
                Some(clock::unix_us().saturating_add(until.saturating_sub(clock::boot_ns()) / 1000))
            }
            _ => None,
        },
    }
}

#[cfg(all(test, feature = "cli"))]
mod tests;
