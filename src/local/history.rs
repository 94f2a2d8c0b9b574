//! How long the last holders of a claim held it, since it was last idle: what retry-after is reckoned from.
//!
//! It lies in the queue's directory and goes with it. Nothing but that estimate hangs on it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, Mode, OFlags, Stat, fallocate};
use rustix::io::Errno;

use crate::error::Result;
use crate::local::Place;
use crate::sys::SharedWords;

/// As many hold times are remembered.
const LAST: usize = 20;
const WORDS: usize = LAST + 1;
const SIZE: u64 = (WORDS * 8) as u64;

/// The file of hold times, opened to add to it.
#[derive(Debug)]
pub(crate) struct History {
    fd: OwnedFd,
    words: SharedWords,
}

impl History {
    /// Whether it is still the one that others read: it goes when the claim is idle.
    fn is_current(&self) -> bool {
        rustix::fs::fstat(&self.fd).is_ok_and(|stat| stat.st_nlink > 0 && is_whole(&stat))
    }

    fn add(&self, nanoseconds: u64) {
        let count = self.words[0].fetch_add(1, Ordering::Relaxed);
        // Never 0, which stands for "none yet".
        self.words[1 + (count % LAST as u64) as usize].store(nanoseconds.max(1), Ordering::Relaxed);
    }
}

fn is_whole(stat: &Stat) -> bool {
    u64::try_from(stat.st_size).unwrap_or(0) >= SIZE
}

impl Place {
    /// Makes the place for hold times, where it is not there, and opens it. Whoever does that sees to it that it is tidied
    /// away: by having a ticket in the queue, or by tidying afterwards.
    pub(crate) fn begin_history(&self, history: &mut Option<History>) -> Result<()> {
        if !history.as_ref().is_some_and(History::is_current) {
            *history = self.open_history(OFlags::CREATE)?;
        }
        Ok(())
    }

    /// Adds a hold time, if anybody wants to know.
    pub(crate) fn remember_hold(&self, history: &mut Option<History>, nanoseconds: u64) -> Result<()> {
        if !history.as_ref().is_some_and(History::is_current) {
            *history = self.open_history(OFlags::empty())?;
        }
        if let Some(history) = history {
            history.add(nanoseconds);
        }
        Ok(())
    }

    /// `None`: it is not there, or is being made.
    fn open_history(&self, create: OFlags) -> Result<Option<History>> {
        let path = self.layout.stats();
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | create;
        let fd = match rustix::fs::openat(&self.dir, path.as_str(), flags, self.dir.file_mode()) {
            Ok(fd) => fd,
            // Tidied away, or cleaned, meanwhile: an estimate the less.
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.dir.system("open", &path, errno)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| self.dir.system("look at", &path, errno))?;
        if !is_whole(&stat) {
            if create.is_empty() {
                return Ok(None);
            }
            // The umask may have taken away what others need. EPERM: it is another's, who has seen to that.
            let _ = rustix::fs::fchmod(&fd, self.dir.file_mode());
            // Blocks before it is touched: see the counter. Where that cannot be had, there is no history.
            match fallocate(&fd, FallocateFlags::empty(), 0, SIZE) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP) => return Ok(None),
                Err(errno) => return Err(self.dir.system("give a block to", &path, errno)),
            }
        }
        let words = SharedWords::map(fd.as_fd(), WORDS).map_err(|e| self.dir.system("map", &path, e))?;
        Ok(Some(History { fd, words }))
    }

    /// The mean of the last hold times, in nanoseconds, if there are any.
    pub(crate) fn mean_hold(&self) -> Result<Option<u64>> {
        let path = self.layout.stats();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(&self.dir, path.as_str(), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.dir.system("open", &path, errno)),
        };
        let mut bytes = [0; SIZE as usize];
        let length = rustix::io::read(&file, &mut bytes).map_err(|errno| self.dir.system("read", &path, errno))?;
        let times: Vec<u64> = bytes[..length]
            .chunks_exact(8)
            .skip(1)
            .filter_map(|word| word.try_into().ok().map(u64::from_le_bytes))
            .filter(|&time| time > 0)
            .collect();
        Ok(mean(&times))
    }
}

fn mean(times: &[u64]) -> Option<u64> {
    let sum: u128 = times.iter().copied().map(u128::from).sum();
    (!times.is_empty()).then(|| u64::try_from(sum / times.len() as u128).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Capacity, Directory, Key, Name};

    #[test]
    fn the_mean_is_of_the_last_twenty() {
        let at = tempfile::tempdir().unwrap();
        let key = Key { name: Name::new("x").unwrap(), max: Capacity::ONE };
        let place = Place::new(Directory::at(at.path()).unwrap(), key).unwrap();
        let mut history = None;
        place.remember_hold(&mut history, 7).unwrap();
        assert_eq!(place.mean_hold().unwrap(), None, "no queue, no history");
        place.dir.make_folder(&place.layout.queue).unwrap();
        place.begin_history(&mut history).unwrap();
        for time in 1..=30 {
            place.remember_hold(&mut history, time * 100).unwrap();
        }
        assert_eq!(place.mean_hold().unwrap(), Some((1100 + 3000) / 2));

        // Idle in between: what was opened before is nobody's any more.
        place.tidy().unwrap();
        place.dir.make_folder(&place.layout.queue).unwrap();
        place.begin_history(&mut history).unwrap();
        place.remember_hold(&mut history, 5).unwrap();
        assert_eq!(place.mean_hold().unwrap(), Some(5));
    }
}
