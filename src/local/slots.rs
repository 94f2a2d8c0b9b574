//! The slots of one claim taken together.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::OFlags;

use crate::class::Class;
use crate::error::Result;
use crate::local::Place;
use crate::local::holder::{FileId, Holder, Opened, open};
use crate::local::layout::{CLAIMS, Layout, SlotName};
use crate::local::link::Take;
use crate::local::liveness::{Liveness, comparable};
use crate::local::process::{Watch, has_ended, watch};
use crate::local::reclaim::{Occupant, Reclaim};
use crate::record::{self, LiveWords, ProcessId};
use crate::sys::SharedWords;

/// A slot that somebody has, as it was seen.
#[derive(Debug)]
pub(crate) struct Occupied {
    pub(crate) slot: u32,
    pub(crate) holder: Box<Opened>,
    pub(crate) liveness: Liveness,
    /// A process that proves the holder alive, and the descriptor that will tell of its end.
    pub(crate) alive: Option<(ProcessId, OwnedFd)>,
}

impl Occupied {
    /// Whoever has it waits elsewhere.
    pub(crate) fn is_beyond(&self) -> bool {
        self.holder.record.live.beyond
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
    /// `reclaimed` hears of each holder found dead.
    pub(crate) fn take_any(
        &self,
        holder: &Holder,
        spread: bool,
        reclaimed: &mut dyn FnMut(&Opened),
    ) -> Result<Attempt> {
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
                        reclaimed(&dead);
                    }
                    if self.take(holder, slot)? == Take::Taken {
                        return Ok(Attempt::Taken(slot));
                    }
                }
                Occupant::Remnant(remnant) => {
                    self.reclaim_remnant(slot, &remnant)?;
                    if self.take(holder, slot)? == Take::Taken {
                        return Ok(Attempt::Taken(slot));
                    }
                }
            }
        }
        Ok(Attempt::Occupied(occupied))
    }

    /// The slots that somebody has. Dead holders are none.
    pub(crate) fn occupied(&self, slots: std::ops::Range<u32>) -> Result<Vec<Occupied>> {
        let mut occupied = Vec::new();
        for slot in self.slots_in_use(&self.layout, slots)? {
            if let Occupant::Holder(holder) = self.occupant(slot)? {
                occupied.push(holder);
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
            freed |= match self.occupant(slot)? {
                Occupant::Dead(dead) => self.reclaim(slot, &dead)? == Reclaim::Reclaimed,
                Occupant::Remnant(remnant) => self.reclaim_remnant(slot, &remnant)? == Reclaim::Reclaimed,
                Occupant::Nobody | Occupant::Holder(_) => false,
            };
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
        let path = self.layout.slot(waiter.slot);
        let Some(file) = open(&self.dir, &path, OFlags::RDWR)? else { return Ok(()) };
        let stat = rustix::fs::fstat(&file).map_err(|errno| self.dir.system("look at", &path, errno))?;
        if FileId::of(&stat) == waiter.holder.id {
            let words =
                SharedWords::map(file.as_fd(), record::WORDS).map_err(|error| self.dir.system("map", &path, error))?;
            LiveWords(&words).displace(retry_after);
        }
        Ok(())
    }

    /// Counts holders and waiters as they are now.
    pub(crate) fn occupancy(&self) -> Result<Occupancy> {
        let mut occupancy = Occupancy::default();
        for occupied in self.occupied(0..self.key.max.get())? {
            match occupied.is_beyond() {
                true => occupancy.queued[usize::from(occupied.holder.record.body.class.rank())] += 1,
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

/// Descriptors that tell when holders end, kept from one look to the next: by the inode of the record and the process.
#[derive(Debug, Default)]
pub(crate) struct Watched(Vec<(FileId, i32, OwnedFd)>);

impl Watched {
    /// Watches the processes of these holders and of no others. For who cannot be watched there is the next look.
    pub(crate) fn follow(&mut self, occupied: &mut [Occupied], place: &Place) -> Result<()> {
        /// More would tell no more: any of them that ends makes us look at all.
        const MOST: usize = 64;
        let mut kept = Vec::new();
        for Occupied { holder, liveness, alive, .. } in occupied.iter_mut().take(MOST) {
            let body = &holder.record.body;
            if *liveness != Liveness::Alive || body.pid_namespace != place.me.pid_namespace {
                continue;
            }
            for process in [Some(body.process), holder.record.live.command].into_iter().flatten() {
                if let Some((_, pidfd)) = alive.take_if(|(seen, _)| *seen == process) {
                    kept.push((holder.id, process.pid, pidfd));
                    continue;
                }
                let known = self.0.iter().position(|(id, pid, _)| (*id, *pid) == (holder.id, process.pid));
                let known = known.map(|known| self.0.swap_remove(known));
                if let Some(known) = known
                    && !has_ended(known.2.as_fd())?
                {
                    kept.push(known);
                } else if let Watch::Alive(pidfd) = watch(process, comparable(body, process, &place.me)?)? {
                    kept.push((holder.id, process.pid, pidfd));
                }
            }
        }
        self.0 = kept;
        Ok(())
    }

    pub(crate) fn fds(&self) -> impl Iterator<Item = rustix::fd::BorrowedFd<'_>> {
        self.0.iter().map(|(_, _, pidfd)| pidfd.as_fd())
    }
}
