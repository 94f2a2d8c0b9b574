//! Taking a slot, and giving it back: the two lines on which exclusion rests.

use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::error::Result;
use crate::local::Place;
use crate::local::holder::{FileId, Holder, cannot_link, open, try_flock};

/// How an attempt at one slot ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take {
    Taken,
    /// The name is there: somebody holds the slot, or has died holding it.
    Occupied,
    /// The directory for it is not there (any more).
    NoDirectory,
}

/// How a release ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    Released,
    /// It was taken away by force, or with its directory, before.
    WasGone,
}

impl Place {
    /// link(2) is atomic: of any number that try, one gets the name, and nobody does while it is there. No check comes
    /// before it and no lock is needed; whatever was seen before is only a reason to try.
    pub(crate) fn take(&self, holder: &Holder, slot: u32) -> Result<Take> {
        let path = self.layout.slot(slot);
        match holder.link(&path) {
            Ok(()) => Ok(Take::Taken),
            Err(Errno::EXIST) => Ok(Take::Occupied),
            Err(Errno::NOENT) => Ok(Take::NoDirectory),
            Err(errno) => Err(cannot_link(&self.dir, &path, errno)),
        }
    }

    /// Gives back a slot that this handle holds.
    ///
    /// A living holder that holds for itself may unlink its slot without looking, because nobody else does so before changing the state word
    /// from HELD to REVOKED, and `begin_release` is the same exchange: one of the two fails. If it is ours that fails, the
    /// name may be another holder's already, and only the door that everybody else uses is open to us too.
    pub(crate) fn release(&self, holder: &Holder, slot: u32) -> Result<Release> {
        let path = self.layout.slot(slot);
        if holder.is_own() && holder.live().begin_release() {
            return self
                .dir
                .unlink(&path)
                .map(|was_there| if was_there { Release::Released } else { Release::WasGone });
        }
        // Held for another process, which may have died and been reclaimed, or revoked.
        let Some(file) = self.open_own(&path, holder)? else { return Ok(Release::WasGone) };
        const PATIENCE_MS: u32 = 1000;
        for _ in 0..PATIENCE_MS {
            if let Some(_locked) = try_flock(&self.dir, &path, &file)? {
                let still_ours = self.names(&path, holder.id)? && self.dir.unlink(&path)?;
                return Ok(if still_ours && !holder.live().is_revoked() {
                    Release::Released
                } else {
                    Release::WasGone
                });
            }
            crate::clock::pause(std::time::Duration::from_millis(1));
        }
        // Whoever has had the lock for so long is about to remove it.
        Ok(Release::WasGone)
    }

    /// Our own record by the name of its slot, if that still is what it names. A description of its own: a lock taken through
    /// `holder`'s would belong to all who inherited that too.
    pub(crate) fn open_own(&self, path: &str, holder: &Holder) -> Result<Option<OwnedFd>> {
        let Some(file) = open(&self.dir, path, OFlags::RDONLY)? else { return Ok(None) };
        let stat = rustix::fs::fstat(&file).map_err(|errno| self.dir.system("look at", path, errno))?;
        Ok((FileId::of(&stat) == holder.id).then_some(file))
    }

    /// Whether the path still stands for that file. To be relied on only with the lock on that file.
    pub(crate) fn names(&self, path: &str, id: FileId) -> Result<bool> {
        Ok(self.dir.stat(path)?.is_some_and(|stat| FileId::of(&stat) == id))
    }

    /// In a child of ours, between fork and exec: records the COMMAND it is about to become, unless the slot is not ours any
    /// more. False: then COMMAND must not run.
    ///
    /// Under the lock that reclaimers take, so that of "this process is on record" and "the slot was reclaimed, because
    /// its recorded processes are dead" one comes first and the other sees it. Without it, a `claim` that is killed
    /// right here would leave a COMMAND running without its slot.
    #[cfg(feature = "cli")]
    pub(crate) fn register(&self, holder: &Holder, slot: u32, command: crate::record::ProcessId) -> Result<bool> {
        /// Who has the lock is taking the slot away by force, or is a cleaner of temporary files that looks at it.
        const PATIENCE_MS: u32 = 1000;
        self.register_within(holder, slot, command, PATIENCE_MS)
    }

    #[cfg(feature = "cli")]
    pub(crate) fn register_within(
        &self,
        holder: &Holder,
        slot: u32,
        command: crate::record::ProcessId,
        milliseconds: u32,
    ) -> Result<bool> {
        let path = self.layout.slot(slot);
        match self.open_own(&path, holder)? {
            Some(file) => self.register_opened(&path, &file, holder, command, milliseconds),
            None => Ok(false),
        }
    }

    #[cfg(feature = "cli")]
    pub(crate) fn register_opened(
        &self,
        path: &str,
        file: &OwnedFd,
        holder: &Holder,
        command: crate::record::ProcessId,
        milliseconds: u32,
    ) -> Result<bool> {
        for _ in 0..milliseconds {
            if let Some(_locked) = try_flock(&self.dir, path, file)? {
                let ours = self.names(path, holder.id)? && !holder.live().is_revoked();
                if ours {
                    holder.live().set_command(command);
                }
                return Ok(ours);
            }
            crate::clock::pause(std::time::Duration::from_millis(1));
        }
        Ok(false)
    }
}
