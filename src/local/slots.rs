//! The slots of one claim taken together.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;

use crate::class::Class;
use crate::error::Result;
use crate::local::Place;
use crate::local::holder::{FileId, Holder, Opened, open, read};
use crate::local::layout::{CLAIMS, Layout, SlotName};
use crate::local::link::Take;
use crate::local::liveness::Liveness;
use crate::local::reclaim::{Occupant, Reclaim};
use crate::record::{self, LiveWords, ProcessId, Record};
use crate::sys::SharedWords;

/// A slot that somebody has, as it was seen.
#[derive(Debug)]
pub(crate) struct Occupied {
    pub(crate) slot: u32,
    pub(crate) record: Box<Record>,
    pub(crate) id: FileId,
    pub(crate) liveness: Liveness,
    /// A process that proves the holder alive.
    pub(crate) alive: Option<ProcessId>,
    pidfd: Option<OwnedFd>,
}

/// To watch more of the holders of a claim would tell no more: any of them that ends makes us look at all. And no look has a
/// descriptor open for each.
const MOST_WATCHED: u32 = 64;

impl Occupied {
    pub(crate) fn new(slot: u32, opened: Opened, liveness: Liveness, alive: Option<(ProcessId, OwnedFd)>) -> Self {
        let (record, id) = (Box::new(opened.record), opened.id);
        let (alive, pidfd) = alive.unzip();
        Self { slot, record, id, liveness, alive, pidfd: pidfd.filter(|_| slot < MOST_WATCHED) }
    }

    /// Polls readable when the process ends that proves the holder alive; if another is left then (COMMAND, whose `claim` was
    /// killed), the next look finds that one. Not kept where there are [many](MOST_WATCHED) of them.
    pub(crate) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Whoever has it waits elsewhere.
    pub(crate) fn is_beyond(&self) -> bool {
        self.record.live.beyond
    }
}

/// What an attempt at all slots came to.
#[derive(Debug)]
pub(crate) enum Attempt {
    Taken(u32),
    /// All are taken, or about to be.
    Occupied(Vec<Occupied>),
    NoDirectory,
}

/// How many hold and wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Occupancy {
    /// Slots that are held, resting ones included.
    pub held: u32,
    /// Waiters, by class.
    pub queued: [u32; 4],
}

impl Occupancy {
    /// Waiters of all classes.
    pub fn queued(&self) -> u32 {
        self.queued.iter().sum()
    }

    /// Waiters of one class.
    pub fn queued_of(&self, class: Class) -> u32 {
        self.queued[usize::from(class.rank())]
    }
}

impl Place {
    /// Tries every slot, and those of dead holders after reclaiming them. `spread`: this host is to have one at most.
    /// `reclaimed` hears of each that was freed.
    pub(crate) fn take_any(&self, holder: &Holder, spread: bool, reclaimed: &mut dyn FnMut()) -> Result<Attempt> {
        let max = self.key.max.get();
        if spread {
            // Whatever slot of this host is taken, no second one may be.
            let others = self.occupied(1..max)?;
            if !others.is_empty() {
                return Ok(Attempt::Occupied(others));
            }
        }
        let slots = 0..if spread { 1 } else { max };
        for slot in slots.clone() {
            match self.take(holder, slot)? {
                Take::Taken => return Ok(Attempt::Taken(slot)),
                Take::Occupied => {}
                Take::NoDirectory => return Ok(Attempt::NoDirectory),
            }
        }
        let mut occupied = Vec::new();
        for slot in slots {
            match self.occupant(slot)? {
                Occupant::Holder(holder) => occupied.push(holder),
                Occupant::Nobody => match self.take(holder, slot)? {
                    Take::Taken => return Ok(Attempt::Taken(slot)),
                    Take::Occupied | Take::NoDirectory => {}
                },
                Occupant::Dead(dead) => {
                    if self.reclaim(slot, &dead)? == Reclaim::Reclaimed {
                        reclaimed();
                    }
                    if self.take(holder, slot)? == Take::Taken {
                        return Ok(Attempt::Taken(slot));
                    }
                }
            }
        }
        Ok(Attempt::Occupied(occupied))
    }

    /// The slots that somebody has, to be looked at and not to be watched. Dead holders are none.
    pub(crate) fn occupied(&self, slots: std::ops::Range<u32>) -> Result<Vec<Occupied>> {
        let mut occupied = Vec::new();
        for slot in self.slots_in_use(&self.layout, slots)? {
            if let Occupant::Holder(holder) = self.occupant(slot)? {
                occupied.push(Occupied { pidfd: None, ..holder });
            }
        }
        Ok(occupied)
    }

    /// Those of a claim's slots that have a name. With many, the directory is listed instead of asking for each.
    pub(crate) fn slots_in_use(&self, of: &Layout, slots: std::ops::Range<u32>) -> Result<Vec<u32>> {
        const FEW: usize = 16;
        if slots.len() <= FEW {
            return Ok(slots.collect());
        }
        let mut used: Vec<u32> = self
            .dir
            .list(CLAIMS)?
            .iter()
            .filter_map(|file| SlotName::parse(file))
            .filter(|name| name.key == of.key() && slots.contains(&name.slot))
            .map(|name| name.slot)
            .collect();
        used.sort_unstable();
        Ok(used)
    }

    /// Frees the slots of dead holders, which the next run might not need and so not meet. True: there were some.
    pub(crate) fn reclaim_dead(&self) -> Result<bool> {
        let mut freed = false;
        for slot in self.slots_in_use(&self.layout, 0..self.key.max.get())? {
            if let Occupant::Dead(dead) = self.occupant(slot)? {
                freed |= self.reclaim(slot, &dead)? == Reclaim::Reclaimed;
            }
        }
        Ok(freed)
    }

    /// Whether a slot can be had: it is free, or its holder is dead.
    pub(crate) fn has_free_slot(&self, spread: bool) -> Result<bool> {
        let held = self.occupied(0..self.key.max.get())?;
        Ok(if spread { held.is_empty() } else { held.len() < self.key.max.get() as usize })
    }

    /// Whether anybody holds.
    pub(crate) fn is_held(&self) -> Result<bool> {
        Ok(!self.occupied(0..self.key.max.get())?.is_empty())
    }

    /// Those who have a slot here and wait elsewhere.
    pub(crate) fn beyond(&self) -> Result<Vec<Occupied>> {
        let mut occupied = self.occupied(0..self.key.max.get())?;
        occupied.retain(Occupied::is_beyond);
        Ok(occupied)
    }

    /// Tells one of those that it is displaced. It gives up its slot by itself.
    pub(crate) fn displace_beyond(&self, waiter: &Occupied, retry_after: u64) -> Result<()> {
        self.with_words_of(waiter, |words| words.displace(retry_after)).map(drop)
    }

    /// Does something to the words of a record that was seen in a slot; `None`: it is not there any more.
    pub(crate) fn with_words_of<T>(&self, seen: &Occupied, work: impl FnOnce(LiveWords<'_>) -> T) -> Result<Option<T>> {
        let path = self.layout.slot(seen.slot);
        let Some(file) = open(&self.dir, &path, OFlags::RDWR)? else { return Ok(None) };
        let (record, id) = read(&self.dir, &path, &file)?;
        // An inode may be used again, by one and the same process too; then since another moment.
        let was = |record: &Record| (record.body.process, record.live.since);
        if id != seen.id || was(&record) != was(&seen.record) {
            return Ok(None);
        }
        let words =
            SharedWords::map(file.as_fd(), record::WORDS).map_err(|error| self.dir.system("map", &path, error))?;
        Ok(Some(work(LiveWords(&words))))
    }

    /// Counts holders and waiters as they are now.
    pub(crate) fn occupancy(&self) -> Result<Occupancy> {
        let mut occupancy = Occupancy::default();
        for occupied in self.occupied(0..self.key.max.get())? {
            match occupied.is_beyond() {
                true => occupancy.queued[usize::from(occupied.record.body.class.rank())] += 1,
                false => occupancy.held += 1,
            }
        }
        for ticket in self.tickets()? {
            if self.visit(ticket)?.is_some() {
                occupancy.queued[usize::from(ticket.class.rank())] += 1;
            }
        }
        Ok(occupancy)
    }
}
