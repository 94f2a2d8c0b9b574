//! Taking a slot away from a holder that is proven dead, or (by force) from a living one.
//!
//! Two processes that see the same dead holder must not both win. Removing the name and trying anew lets the slower one
//! remove the name of the faster one, who holds by then. So does renaming it aside, and with three processes also
//! putting back what was renamed wrongly. What holds is this door, in this order:
//!
//! 1. open the file: its inode cannot become another holder's while it is open;
//! 2. prove the holder dead;
//! 3. lock *that inode* with flock(2), without waiting: one process at a time goes on. The lock goes with its process, so
//!    nobody has to clean up after one that dies here;
//! 4. read the record again, and prove again: COMMAND may have registered since, under the same lock;
//! 5. see that the name still is that inode: whoever had the lock before us may have removed it, and somebody else may
//!    hold the slot by now;
//! 6. remove the name. Then the slot is free, and is taken as any free slot is.

use std::os::fd::{AsFd, BorrowedFd};

#[cfg(feature = "cli")]
use {
    crate::error::Error,
    crate::local::holder::open,
    crate::record::{LiveWords, Record, WORDS},
    crate::sys::SharedWords,
    rustix::fs::OFlags,
    std::os::fd::OwnedFd,
    std::time::Duration,
};

use crate::clock;
use crate::error::{ErrorKind, Result};
use crate::local::Place;
use crate::local::holder::{FileId, Opened, try_flock};
use crate::local::liveness::{Liveness, judge, judge_and_watch};
use crate::local::remnant::Remnant;
use crate::local::slots::Occupied;

/// What stands in a slot.
#[derive(Debug)]
pub(crate) enum Occupant {
    Nobody,
    /// Somebody holds it, or it rests, or nobody can tell.
    Holder(Occupied),
    /// A dead holder: steps 1 and 2 are done.
    Dead(Dead),
}

/// A dead holder, as it was found.
#[derive(Debug)]
pub(crate) enum Dead {
    Recorded(Box<Opened>),
    /// Of a boot before this one, whose record a power cut has left blank.
    Blank(Remnant),
}

impl Dead {
    pub(crate) fn id(&self) -> FileId {
        match self {
            Self::Recorded(opened) => opened.id,
            Self::Blank(remnant) => remnant.id,
        }
    }
}

impl AsFd for Dead {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Recorded(opened) => opened.as_fd(),
            Self::Blank(remnant) => remnant.as_fd(),
        }
    }
}

/// How reclaiming ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reclaim {
    /// The name is gone by our doing.
    Reclaimed,
    /// It is gone, or it is another's, by somebody else's.
    Gone,
    /// Somebody else is at it this moment.
    Busy,
    /// It is not dead after all.
    Alive,
}

impl Place {
    /// Looks at who has a slot.
    pub(crate) fn occupant(&self, slot: u32) -> Result<Occupant> {
        let path = self.layout.slot(slot);
        let opened = match Opened::at(&self.dir, &path) {
            Ok(Some(opened)) => opened,
            Ok(None) => return Ok(Occupant::Nobody),
            Err(error) if error.kind() == ErrorKind::Unreadable => {
                let remnant = Remnant::at(&self.dir, &path, clock::boot_began_us())?;
                return remnant.map(|it| Occupant::Dead(Dead::Blank(it))).ok_or(error);
            }
            Err(error) => return Err(error),
        };
        if opened.record.body.name != self.key.name.as_bytes() || opened.record.body.max != self.key.max.get() {
            return Err(crate::local::holder::unreadable(&self.dir, &path));
        }
        let (liveness, alive) = judge_and_watch(&opened.record, opened.as_fd(), &self.me)?;
        Ok(match liveness {
            Liveness::Dead => Occupant::Dead(Dead::Recorded(Box::new(opened))),
            liveness => Occupant::Holder(Occupied::new(slot, opened, liveness, alive)),
        })
    }

    /// Steps 3 to 6 for a holder that was found dead.
    pub(crate) fn reclaim(&self, slot: u32, dead: &Dead) -> Result<Reclaim> {
        let path = self.layout.slot(slot);
        let Some(_locked) = try_flock(&self.dir, &path, dead)? else { return Ok(Reclaim::Busy) };
        // A blank record is nobody's to register in, so there is nothing to read again.
        if let Dead::Recorded(opened) = dead {
            let again = opened.read_again(&self.dir, &path)?;
            if judge(&again, opened.as_fd(), &self.me)? != Liveness::Dead {
                return Ok(Reclaim::Alive);
            }
        }
        if !self.names(&path, dead.id())? {
            return Ok(Reclaim::Gone);
        }
        Ok(if self.dir.unlink(&path)? { Reclaim::Reclaimed } else { Reclaim::Gone })
    }

    /// Takes a slot away from whoever has it, living or not, if it is the one that `whose` accepts (or if its record cannot
    /// be read, for which `whose` gets `None`). True: done.
    ///
    /// # Errors
    /// Those of the system; and [`ErrorKind::System`] if whoever else is at that slot has stopped half-way.
    #[cfg(feature = "cli")]
    pub(crate) fn force(&self, slot: u32, whose: &dyn Fn(Option<&Record>) -> bool) -> Result<bool> {
        const PATIENCE: Duration = Duration::from_secs(2);
        let path = self.layout.slot(slot);
        let give_up = clock::Deadline::after(PATIENCE);
        loop {
            let file = match open(&self.dir, &path, OFlags::RDWR) {
                Ok(Some(file)) => file,
                Ok(None) => return Ok(false),
                // No file at all, and so nobody's record: a symbolic link, a socket, a directory.
                Err(error) if error.kind() == ErrorKind::Unreadable => {
                    return Ok(whose(None) && self.dir.remove_whatever(&path)?);
                }
                Err(error) => return Err(error),
            };
            let stat = rustix::fs::fstat(&file).map_err(|errno| self.dir.system("look at", &path, errno))?;
            let id = FileId::of(&stat);
            let record = match Opened::at(&self.dir, &path) {
                Ok(Some(opened)) if opened.id == id => Some(opened.record),
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::Unreadable => None,
                Err(error) => return Err(error),
            };
            if !whose(record.as_ref()) {
                return Ok(false);
            }
            let mine = record.is_none() || self.may_unlink(slot, id, &file)?;
            // The same door as for the dead: the lock on that inode, and the name still being that inode.
            if mine && let Some(_locked) = try_flock(&self.dir, &path, &file)? {
                return Ok(self.names(&path, id)? && self.dir.unlink(&path)?);
            }
            if give_up.has_passed() {
                let why = "its holder, or who reclaims it, has stopped half-way";
                return Err(Error::of(ErrorKind::System, "take away", self.dir.full(&path), why));
            }
            clock::pause(Duration::from_millis(2));
        }
    }

    /// Leaves the slot to the clock in place of a holder that wants no more of it (`--at-least`). False: its time is over.
    #[cfg(feature = "cli")]
    pub(crate) fn lay_to_rest(&self, slot: u32, whose: &dyn Fn(Option<&Record>) -> bool) -> Result<bool> {
        let path = self.layout.slot(slot);
        let Some(file) = open(&self.dir, &path, OFlags::RDWR)? else { return Ok(false) };
        let record = match crate::local::holder::read(&self.dir, &path, &file) {
            Ok((record, _)) => record,
            Err(error) if error.kind() == ErrorKind::Unreadable => return Ok(false),
            Err(error) => return Err(error),
        };
        if record.live.until <= clock::boot_ns() || !whose(Some(&record)) {
            return Ok(false);
        }
        let words = SharedWords::map(file.as_fd(), WORDS).map_err(|error| self.dir.system("map", &path, error))?;
        Ok(LiveWords(&words).begin_rest() || LiveWords(&words).is_resting())
    }

    /// A living holder must lose the right to unlink its slot before anybody else does it; a dead one has none.
    #[cfg(feature = "cli")]
    fn may_unlink(&self, slot: u32, id: FileId, file: &OwnedFd) -> Result<bool> {
        if matches!(self.occupant(slot)?, Occupant::Dead(dead) if dead.id() == id) {
            return Ok(true);
        }
        let words = SharedWords::map(file.as_fd(), WORDS)
            .map_err(|error| self.dir.system("map", &self.layout.slot(slot), error))?;
        Ok(LiveWords(&words).revoke())
    }
}

#[cfg(all(test, feature = "cli"))]
mod tests;
