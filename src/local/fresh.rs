//! A file that is complete before it has a name.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::error::Result;
use crate::local::dir::Directory;
use crate::local::holder::FileId;
use crate::local::procfs;

/// A new file without a name (O_TMPFILE): whoever makes it may die at any point and leaves nothing. Where the file system
/// has no such files it has a private name instead, which goes with the value, and after a crash with the next one made.
#[derive(Debug)]
pub(crate) struct Fresh {
    dir: Directory,
    fd: OwnedFd,
    pub(crate) id: FileId,
    private: Option<String>,
}

impl Fresh {
    /// Makes one on the file system of `folder`, open for reading and writing.
    pub(crate) fn new(dir: &Directory, folder: &str) -> Result<Self> {
        // The sticky bit on a file means "leave it alone" to systemd-tmpfiles, and to nobody else.
        let mode = dir.file_mode() | Mode::SVTX;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let (fd, private) = match rustix::fs::openat(dir, folder, flags | OFlags::TMPFILE, mode) {
            Ok(fd) => (fd, None),
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
                let private = private_name(dir, folder)?;
                let made = rustix::fs::openat(dir, private.as_str(), flags | OFlags::CREATE | OFlags::EXCL, mode);
                (made.map_err(|errno| dir.system("make", &private, errno))?, Some(private))
            }
            Err(errno) => return Err(dir.system("make a file in", folder, errno)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| dir.system("look at a file in", folder, errno))?;
        let fresh = Self { dir: dir.clone(), fd, id: FileId::of(&stat), private };
        if !Mode::from_raw_mode(stat.st_mode).contains(dir.file_mode()) {
            // The umask took away what the others (or we) need.
            rustix::fs::fchmod(&fresh.fd, mode)
                .map_err(|errno| dir.system("set the mode of a file in", folder, errno))?;
        }
        Ok(fresh)
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::io::write(&self.fd, rest) {
                Ok(0) => return Err(self.dir.system("write to", "", Errno::IO)),
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.dir.system("write to", "", errno)),
            }
        }
        Ok(())
    }

    /// See [`keep_from_cleaners`].
    pub(crate) fn keep_from_cleaners(&self) -> Result<()> {
        keep_from_cleaners(&self.fd).map_err(|errno| self.dir.system("set the times of a file in", "", errno))
    }

    /// Gives it a name, with linkat(2) itself: nothing that would fall back to renaming or copying. EEXIST is for the
    /// caller to read.
    pub(crate) fn link(&self, path: &str) -> std::result::Result<(), Errno> {
        use std::os::fd::AsRawFd;
        match &self.private {
            Some(private) => rustix::fs::linkat(&self.dir, private.as_str(), &self.dir, path, AtFlags::empty()),
            // link(2): by the descriptor itself that is allowed to whoever opened it since Linux 6.10, before that to a
            // privileged process alone, with ENOENT for all others; and by the name that /proc has for it to everybody.
            None => match rustix::fs::linkat(&self.fd, "", &self.dir, path, AtFlags::EMPTY_PATH) {
                Err(Errno::NOENT) => {
                    let from = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
                    rustix::fs::linkat(CWD, from, &self.dir, path, AtFlags::SYMLINK_FOLLOW)
                }
                linked => linked,
            },
        }
    }
}

impl AsFd for Fresh {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if let Some(private) = &self.private {
            let _ = rustix::fs::unlinkat(&self.dir, private.as_str(), AtFlags::empty());
        }
    }
}

/// Dates a file into the future, for cleaners that go by age (tmpreaper, find): it is never old, also when nobody is left to
/// touch it. The time of reading lies after that of writing, or `relatime` would set it back.
pub(crate) fn keep_from_cleaners(file: impl AsFd) -> std::result::Result<(), Errno> {
    /// 2100-01-01: far, and still representable on file systems with 32-bit unsigned seconds.
    const FAR: i64 = 4_102_444_800;
    let times = Timestamps {
        last_access: Timespec { tv_sec: FAR + 1, tv_nsec: 0 },
        last_modification: Timespec { tv_sec: FAR, tv_nsec: 0 },
    };
    rustix::fs::futimens(file, &times)
}

/// A private name that tells whose it is, after those of the dead have been removed.
fn private_name(dir: &Directory, folder: &str) -> Result<String> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const MARK: &str = ".fresh-";

    for name in dir.list(folder)? {
        let Some(rest) = name.strip_prefix(MARK) else { continue };
        let mut parts = rest.split('-');
        if let (Some(Ok(pid)), Some(Ok(start))) =
            (parts.next().map(str::parse::<i32>), parts.next().map(str::parse::<u64>))
            && procfs::stat(pid)?.is_none_or(|stat| stat.start != start)
        {
            dir.unlink(&format!("{folder}/{name}"))?;
        }
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Ok(format!("{folder}/{MARK}{}-{}-{number}", std::process::id(), procfs::own_stat()?.start))
}
