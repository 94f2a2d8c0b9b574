//! The counter that fences, and places in queues, come from.
//!
//! One word in a file that everybody has mapped, taken by an atomic addition: no lock, so nobody who is stopped can hold it
//! up. It starts from the wall clock in microseconds, and catches up with it on each boot, so that it goes on growing when
//! the directory was lost: no host takes a million numbers a second for long.

use std::sync::atomic::Ordering;

use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
use rustix::io::Errno;

use crate::clock;
use crate::error::Result;
use crate::fence::Fence;
use crate::local::dir::Directory;
use crate::local::fresh::Fresh;
use crate::local::layout::FENCE;
use crate::sys::SharedWords;

const WORDS: usize = 4;
const SIZE: u64 = (WORDS * 8) as u64;
const MAGIC: u64 = u64::from_le_bytes(*b"claim-f1");

const MAGIC_AT: usize = 0;
const NEXT: usize = 1;
const BOOT: usize = 2;
/// What the counter was set to last; it cannot be less.
const FROM: usize = 3;

/// No clock shows this (the year 33658) and no counter grows to it: what is larger is damage.
const IMPLAUSIBLE: u64 = 1_000_000_000_000_000_000;

#[derive(Debug)]
pub(crate) struct Counter {
    fd: OwnedFd,
    words: SharedWords,
}

impl Counter {
    pub(crate) fn open(dir: &Directory, boot: &str) -> Result<Self> {
        let fd = open_file(dir)?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| dir.system("look at", FENCE, errno))?;
        if u64::try_from(stat.st_size).unwrap_or(0) < SIZE || stat.st_blocks == 0 {
            give_it_blocks(dir, &fd)?;
        }
        let words = SharedWords::map(rustix::fd::AsFd::as_fd(&fd), WORDS).map_err(|e| dir.system("map", FENCE, e))?;
        let counter = Self { fd, words };
        counter.mend(boot_word(boot));
        Ok(counter)
    }

    /// The next number. `None`: the file was removed or cut since it was mapped, and is to be opened anew; touching what
    /// was cut would be SIGBUS.
    pub(crate) fn next(&self) -> Option<Fence> {
        let stat = rustix::fs::fstat(&self.fd).ok()?;
        if stat.st_nlink == 0 || u64::try_from(stat.st_size).unwrap_or(0) < SIZE {
            return None;
        }
        let sound = self.is_sound(self.words[NEXT].load(Ordering::SeqCst));
        sound.then(|| Fence::new(self.words[NEXT].fetch_add(1, Ordering::SeqCst)))
    }

    fn is_sound(&self, next: u64) -> bool {
        let from = self.words[FROM].load(Ordering::SeqCst);
        self.words[MAGIC_AT].load(Ordering::SeqCst) == MAGIC && from > 0 && (from..IMPLAUSIBLE).contains(&next)
    }

    /// Brings a new or damaged counter, or one from before this boot, up to the clock. In place and without a lock: every
    /// step can be done twice, by two processes at once, or be left out by one that is killed before it.
    fn mend(&self, boot: u64) {
        let next = &self.words[NEXT];
        let seen = next.load(Ordering::SeqCst);
        if self.is_sound(seen) && self.words[BOOT].load(Ordering::SeqCst) == boot {
            return;
        }
        if seen < IMPLAUSIBLE {
            next.fetch_max(clock::unix_us(), Ordering::SeqCst);
        } else {
            // If this fails, another process has just put something plausible there.
            let _ = next.compare_exchange(seen, clock::unix_us(), Ordering::SeqCst, Ordering::SeqCst);
        }
        self.words[FROM].store(next.load(Ordering::SeqCst).min(clock::unix_us()).max(1), Ordering::SeqCst);
        self.words[MAGIC_AT].store(MAGIC, Ordering::SeqCst);
        self.words[BOOT].store(boot, Ordering::SeqCst);
    }
}

fn open_file(dir: &Directory) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    loop {
        match rustix::fs::openat(dir, FENCE, flags, Mode::empty()) {
            Ok(fd) => return Ok(fd),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(dir.system("open", FENCE, errno)),
        }
        let fresh = Fresh::new(dir, ".")?;
        fresh.write(&[0; SIZE as usize])?;
        fresh.keep_from_cleaners()?;
        match fresh.link(FENCE) {
            // EEXIST: another process was faster; its file is as good.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(dir.system("link", FENCE, errno)),
        }
    }
}

/// A full file system answers the first touch of a page without a block with SIGBUS, and a call with ENOSPC.
fn give_it_blocks(dir: &Directory, fd: &OwnedFd) -> Result<()> {
    match fallocate(fd, FallocateFlags::empty(), 0, SIZE) {
        Ok(()) => return Ok(()),
        Err(Errno::OPNOTSUPP) => {}
        Err(errno) => return Err(dir.system("give a block to", FENCE, errno)),
    }
    // Not on this file system: lengthen it by writing; what is there already stays.
    let size = rustix::fs::fstat(fd).map_err(|errno| dir.system("look at", FENCE, errno))?.st_size;
    let missing = SIZE.saturating_sub(u64::try_from(size).unwrap_or(0));
    let from = SIZE - missing;
    rustix::io::pwrite(fd, &[0; SIZE as usize][..missing as usize], from)
        .map(drop)
        .map_err(|errno| dir.system("write to", FENCE, errno))
}

/// A boot id in one word.
fn boot_word(boot: &str) -> u64 {
    let digits: String = boot.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers(dir: &Directory, count: usize) -> Vec<u64> {
        let counter = Counter::open(dir, "abc").unwrap();
        (0..count).map(|_| counter.next().unwrap().get()).collect()
    }

    #[test]
    fn grows_by_one_and_from_the_clock_when_it_was_removed() {
        let at = tempfile::tempdir().unwrap();
        let dir = Directory::at(at.path()).unwrap();
        let before = clock::unix_us();
        let first = numbers(&dir, 3);
        assert!(first[0] >= before && first[1] == first[0] + 1 && first[2] == first[1] + 1);
        std::fs::remove_file(at.path().join(FENCE)).unwrap();
        assert!(numbers(&dir, 1)[0] > first[2]);
    }

    #[test]
    fn what_is_mapped_is_checked_before_it_is_touched() {
        let at = tempfile::tempdir().unwrap();
        let dir = Directory::at(at.path()).unwrap();
        let counter = Counter::open(&dir, "abc").unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(at.path().join(FENCE)).unwrap();
        file.set_len(0).unwrap();
        assert_eq!(counter.next(), None);
        std::fs::remove_file(at.path().join(FENCE)).unwrap();
        assert_eq!(counter.next(), None);
    }

    #[test]
    fn a_boot_later_it_goes_on_from_where_it_was_or_from_the_clock() {
        let at = tempfile::tempdir().unwrap();
        let dir = Directory::at(at.path()).unwrap();
        let before = numbers(&dir, 1)[0];
        assert!(Counter::open(&dir, "def").unwrap().next().unwrap().get() > before);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn damage_makes_it_anew_from_the_clock(noise: Vec<u8>, keep: bool, zeros in 0_usize..4) {
            let at = tempfile::tempdir().unwrap();
            let dir = Directory::at(at.path()).unwrap();
            let before = numbers(&dir, 2)[1];
            let mut bytes = std::fs::read(at.path().join(FENCE)).unwrap();
            if keep { bytes[zeros * 8..zeros * 8 + 8].fill(0) } else { bytes = noise }
            std::fs::write(at.path().join(FENCE), &bytes).unwrap();
            prop_assert!(numbers(&dir, 1)[0] > before);
        }
    }
}
