//! What a power cut may leave of a record.
//!
//! A file system may have the name of a new file on disk before what is in it, so that after a cut there is a slot with an
//! empty file, or one of noughts. Whose it was cannot be read any more, but it need not be: a record is complete before it
//! is linked, so no living holder ever had such a one. Somebody may have emptied a living holder's record since, though;
//! therefore it also has to be older than this boot, and nobody may have the kernel's lock on it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, OFlags, Stat};

use crate::error::{Error, Result};
use crate::local::dir::Directory;
use crate::local::holder::{FileId, open};
use crate::local::liveness::is_local;
use crate::record::LARGEST;
use crate::sys;

#[derive(Debug)]
pub(crate) struct Remnant {
    pub(crate) id: FileId,
    fd: OwnedFd,
}

impl Remnant {
    /// What stands at `path`, if it is such a remnant from before this boot, which began at that Unix time.
    pub(crate) fn at(dir: &Directory, path: &str, boot_began_us: u64) -> Result<Option<Self>> {
        let fd = match open(dir, path, OFlags::RDONLY) {
            Ok(Some(fd)) => fd,
            // No file at all, or one that may not be read: that is for who wanted a record to say.
            Ok(None) | Err(_) => return Ok(None),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| dir.system("look at", path, errno))?;
        let is_it = is_older(&stat, boot_began_us)
            && is_blank(&fd, &stat)
            && is_local(fd.as_fd())?
            && !sys::is_locked(fd.as_fd()).map_err(|e| Error::system("ask for the lock on", "a record", e))?;
        Ok(is_it.then(|| Self { id: FileId::of(&stat), fd }))
    }
}

impl AsFd for Remnant {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// By the time of the last change (ctime), which nobody can set, and which anything that is done to a file brings up to date.
fn is_older(stat: &Stat, boot_began_us: u64) -> bool {
    i128::from(stat.st_ctime) * 1_000_000 + i128::from(stat.st_ctime_nsec) / 1000 < i128::from(boot_began_us)
}

fn is_blank(fd: &OwnedFd, stat: &Stat) -> bool {
    let size = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || size > LARGEST {
        return false;
    }
    let mut bytes = vec![0; size];
    let read = rustix::io::retry_on_intr(|| rustix::io::pread(fd, &mut bytes[..], 0));
    read == Ok(size) && bytes.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_blank_and_old_and_nobodys_is_a_remnant() {
        let at = tempfile::tempdir().unwrap();
        let dir = Directory::at(at.path()).unwrap();
        let path = "claims/x@1.0";
        let is_remnant = |boot_began| Remnant::at(&dir, path, boot_began).unwrap().is_some();
        let (before, after) = (0, u64::MAX);
        assert!(!is_remnant(after), "nothing is there");
        for (content, is_blank) in [(&b""[..], true), (&[0; 400], true), (b"\0\0x", false)] {
            std::fs::write(dir.full(path), content).unwrap();
            assert_eq!(is_remnant(after), is_blank);
            assert!(!is_remnant(before), "made since");
        }
        let file = std::fs::File::options().read(true).write(true).open(dir.full(path)).unwrap();
        file.set_len(0).unwrap();
        assert!(is_remnant(after));
        sys::lock(file.as_fd()).unwrap();
        assert!(!is_remnant(after), "its holder lives");
    }
}
