//! The claim directory: where it is, whether it is safe, and that it is one of ours.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::local::fresh::Fresh;
use crate::local::layout;
use crate::sys::ForkMark;

/// What `format` says in a directory of this version.
const FORMAT: &[u8] = b"claim 1\n";

/// A claim directory, opened and found safe: the place in which names are held.
///
/// Two processes exclude each other on a name if they use the same directory. Cloning is cheap, and clones may be used
/// from any thread. After `fork`, the child may go on using its copy.
#[derive(Debug, Clone)]
pub struct Directory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    named: bool,
    fd: OwnedFd,
    /// What files and directories in here get, so that all who may use the directory may use them.
    file_mode: Mode,
    folder_mode: Mode,
    mark: ForkMark,
    generation: AtomicU64,
}

impl Directory {
    /// The one place for this user on this host, the same from cron, a login, a service and `sudo -u`:
    /// `/run/lock/claim-UID` where `/run/lock` is a sticky world-writable directory (or the user is root), else
    /// `/tmp/claim-UID`. It is made if it is not there.
    ///
    /// # Errors
    /// [`ErrorKind::NoDirectory`], [`ErrorKind::UnsafeDirectory`], [`ErrorKind::Unreadable`] (made by another version),
    /// [`ErrorKind::System`]. There is never a quiet move elsewhere.
    pub fn host_wide() -> Result<Self> {
        Self::open_or_make(&default_place(), false)
    }

    /// A directory of one's own choice. Its last part is made, mode 0700, if it is not there. One that a group shares is
    /// made by its owner beforehand (mode 2770, say); it may then be of a foreign owner.
    ///
    /// # Errors
    /// As for [`host_wide`](Self::host_wide).
    pub fn at(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_or_make(path.as_ref(), true)
    }

    /// `$CLAIM_DIR` if that is set and not empty (a [`Master`](crate::Master) sets it for its children), else
    /// [`host_wide`](Self::host_wide).
    ///
    /// # Errors
    /// As for [`host_wide`](Self::host_wide).
    pub fn from_env() -> Result<Self> {
        match std::env::var_os("CLAIM_DIR") {
            Some(path) if !path.is_empty() => Self::at(PathBuf::from(path)),
            _ => Self::host_wide(),
        }
    }

    /// Where it is, as an absolute path.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Opens a directory that may not be there, without making it.
    pub(crate) fn existing(path: &Path, named: bool) -> Result<Option<Self>> {
        match open(path) {
            Ok(fd) => Self::check(path, fd, named, false).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Self::refused(path, named, errno)),
        }
    }

    /// A directory that may not be entered may be one that is not to be used at all, which is the better thing to say.
    fn refused(path: &Path, named: bool, errno: Errno) -> Error {
        let about = rustix::fs::statat(CWD, without_trailing_slashes(path).as_path(), AtFlags::SYMLINK_NOFOLLOW);
        if errno == Errno::ACCESS
            && let Ok(stat) = about
            && FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            && let Ok(Some(why)) = why_unsafe(&stat, named)
        {
            return Error::of(ErrorKind::UnsafeDirectory, "use", path, why);
        }
        not_opened(path, errno)
    }

    fn open_or_make(path: &Path, named: bool) -> Result<Self> {
        let fd = match open(path) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => make(path)?,
            Err(errno) => return Err(Self::refused(path, named, errno)),
        };
        Self::check(path, fd, named, true)
    }

    fn check(path: &Path, fd: OwnedFd, named: bool, furnish: bool) -> Result<Self> {
        let stat = rustix::fs::fstat(&fd).map_err(|errno| Error::system("look at", path, errno))?;
        if let Some(why) = why_unsafe(&stat, named)? {
            return Err(Error::of(ErrorKind::UnsafeDirectory, "use", path, why));
        }
        let path = std::path::absolute(path).map_err(|e| Error::system("find the absolute path of", path, e))?;
        let group = Mode::from_raw_mode(stat.st_mode) & Mode::RWXG;
        let mark = ForkMark::new(1).map_err(|e| Error::system("map memory for", &path, e))?;
        let dir = Self(Arc::new(Inner {
            path,
            named,
            fd,
            file_mode: Mode::RUSR | Mode::WUSR | (group & (Mode::RGRP | Mode::WGRP)),
            folder_mode: Mode::RWXU | group | (Mode::from_raw_mode(stat.st_mode) & Mode::SGID),
            mark,
            generation: AtomicU64::new(1),
        }));
        if !dir.has_format()? && furnish {
            dir.furnish()?;
        }
        Ok(dir)
    }

    /// Whether somebody has removed what we have open.
    pub(crate) fn is_removed(&self) -> Result<bool> {
        let stat = rustix::fs::fstat(self).map_err(|errno| self.system("look at", "", errno))?;
        Ok(stat.st_nlink == 0)
    }

    /// Opens it again by its path: somebody has removed what we had open.
    pub(crate) fn reopen(&self) -> Result<Self> {
        Self::open_or_make(&self.0.path, self.0.named)
    }

    /// Whether it was furnished before; an error if that was by another version.
    fn has_format(&self) -> Result<bool> {
        let mut seen = [0; FORMAT.len() + 1];
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(self, layout::FORMAT, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(self.system("open", layout::FORMAT, errno)),
        };
        let length = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut seen))
            .map_err(|errno| self.system("read", layout::FORMAT, errno))?;
        if &seen[..length] != FORMAT {
            let why = "not a format that this version of claim can read";
            return Err(Error::of(ErrorKind::Unreadable, "read", self.0.path.join(layout::FORMAT), why));
        }
        Ok(true)
    }

    /// Makes what is missing inside.
    pub(crate) fn furnish(&self) -> Result<()> {
        for folder in layout::FOLDERS {
            self.make_folder(folder)?;
        }
        let fresh = Fresh::new(self, ".")?;
        fresh.write(FORMAT)?;
        fresh.keep_from_cleaners()?;
        // Once in the life of a directory. After a power cut an empty file with this name would shut everybody out.
        rustix::fs::fsync(&fresh).map_err(|errno| self.system("write out", layout::FORMAT, errno))?;
        match fresh.link(layout::FORMAT) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(self.system("link", layout::FORMAT, errno)),
        }
    }

    /// Makes a directory inside, if it is not there. True: it was not.
    pub(crate) fn make_folder(&self, folder: &str) -> Result<bool> {
        match rustix::fs::mkdirat(self, folder, self.0.folder_mode) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(false),
            Err(errno) => return Err(self.system("make directory", folder, errno)),
        }
        // The umask may have taken away what the others (or we) need. ENOENT: cleaned away again, which the next
        // step meets anyway.
        match rustix::fs::chmodat(self, folder, self.0.folder_mode, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(errno) => Err(self.system("set the mode of", folder, errno)),
        }
    }

    /// Names what is in a directory inside. One that is not there is empty.
    pub(crate) fn list(&self, folder: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.for_each(folder, |name| names.push(String::from_utf8_lossy(name).into_owned()))?;
        Ok(names)
    }

    /// Calls for every name in a directory inside. False: it is not there.
    pub(crate) fn for_each(&self, folder: &str, mut each: impl FnMut(&[u8])) -> Result<bool> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(self, folder, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(self.system("open directory", folder, errno)),
        };
        let mut buffer = Vec::with_capacity(16 * 1024);
        let mut entries = rustix::fs::RawDir::new(fd, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                // Removed while it was read: whatever was in it is gone.
                Err(Errno::NOENT) => break,
                Err(errno) => return Err(self.system("list", folder, errno)),
            };
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                each(name);
            }
        }
        Ok(true)
    }

    /// Removes a name inside; true: it was there.
    pub(crate) fn unlink(&self, path: &str) -> Result<bool> {
        match rustix::fs::unlinkat(self, path, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.system("remove", path, errno)),
        }
    }

    /// Removes a name inside that stands for something which has no business there.
    #[cfg(feature = "cli")]
    pub(crate) fn remove_whatever(&self, path: &str) -> Result<bool> {
        match rustix::fs::unlinkat(self, path, AtFlags::empty()) {
            Err(Errno::ISDIR) => self.remove_folder(path),
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.system("remove", path, errno)),
        }
    }

    /// Removes a directory inside if it is empty; false: something is in it.
    pub(crate) fn remove_folder(&self, folder: &str) -> Result<bool> {
        match rustix::fs::unlinkat(self, folder, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(errno) => Err(self.system("remove directory", folder, errno)),
        }
    }

    /// What a name inside stands for, if for anything.
    pub(crate) fn stat(&self, path: &str) -> Result<Option<Stat>> {
        match rustix::fs::statat(self, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.system("look at", path, errno)),
        }
    }

    /// Whether there is something of that name inside.
    pub(crate) fn exists(&self, path: &str) -> Result<bool> {
        match rustix::fs::accessat(self, path, rustix::fs::Access::EXISTS, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.system("look for", path, errno)),
        }
    }

    /// Sees to it that claims can be had here at all.
    ///
    /// # Errors
    /// Why not: it may not be entered, or not be written, or it is on a read-only file system.
    #[cfg(feature = "cli")]
    pub(crate) fn ensure_writable(&self) -> Result<()> {
        use rustix::fs::Access;
        let access = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        for folder in [layout::CLAIMS, "."] {
            match rustix::fs::accessat(self, folder, access, AtFlags::EACCESS) {
                Ok(()) => break,
                // Nothing has been made inside yet.
                Err(Errno::NOENT) if folder == layout::CLAIMS => {}
                Err(errno) => return Err(self.system("write to", folder, errno)),
            }
        }
        Ok(())
    }

    /// A shared lock on the directory for as long as it is held open. Cleaners of temporary files that heed locks
    /// (systemd-tmpfiles: "Note that if a lock is taken on a directory, then all below is excluded") leave it alone.
    pub(crate) fn hold_off_cleaners(&self) -> Result<()> {
        match rustix::io::retry_on_intr(|| rustix::fs::flock(self, rustix::fs::FlockOperation::NonBlockingLockShared)) {
            // EWOULDBLOCK: a cleaner is in it this moment. What stands in it is protected by itself too.
            Ok(()) | Err(Errno::WOULDBLOCK) => Ok(()),
            Err(errno) => Err(self.system("lock", "", errno)),
        }
    }

    /// Tells this process's use of the directory from that of the processes it was forked from.
    pub(crate) fn generation(&self) -> u64 {
        let marked = self.0.mark.get();
        if marked != 0 {
            return marked;
        }
        // The first use after a fork: memory that is not marked came along, and says which generation we come from.
        let next = self.0.generation.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.mark.set_first(next)
    }

    pub(crate) fn file_mode(&self) -> Mode {
        self.0.file_mode
    }

    pub(crate) fn system(&self, operation: &'static str, path: &str, errno: impl Into<std::io::Error>) -> Error {
        Error::system(operation, self.full(path), errno)
    }

    pub(crate) fn full(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.0.path.clone() } else { self.0.path.join(path) }
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

/// See [`Directory::host_wide`]. It depends on nothing but what `/run/lock` is and who we are: not on TMPDIR, HOME or XDG
/// variables, or two jobs of one user could miss each other.
pub(crate) fn default_place() -> PathBuf {
    let user = rustix::process::geteuid();
    let run_lock = rustix::fs::statat(CWD, "/run/lock", AtFlags::empty());
    let is_open_to_all = run_lock.is_ok_and(|stat| {
        let mode = Mode::from_raw_mode(stat.st_mode);
        FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            && (user.is_root() || mode.contains(Mode::SVTX | Mode::WOTH))
    });
    let parent = if is_open_to_all { "/run/lock" } else { "/tmp" };
    PathBuf::from(format!("{parent}/claim-{}", user.as_raw()))
}

fn open(path: &Path) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, without_trailing_slashes(path).as_path(), flags, Mode::empty())
}

/// A slash at the end would make O_NOFOLLOW follow the link before it.
fn without_trailing_slashes(path: &Path) -> PathBuf {
    path.components().collect()
}

fn make(path: &Path) -> Result<OwnedFd> {
    let cannot = |errno| Error::because(ErrorKind::NoDirectory, "make directory", path, errno);
    match rustix::fs::mkdirat(CWD, path, Mode::RWXU) {
        // EEXIST: somebody else was faster, or a dangling link is there; `open` tells.
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(cannot(errno)),
    }
    let fd = match open(path) {
        Ok(fd) => fd,
        // A umask that takes our own rights away.
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(CWD, path, Mode::RWXU, AtFlags::empty()).map_err(cannot)?;
            open(path).map_err(|errno| not_opened(path, errno))?
        }
        Err(errno) => return Err(not_opened(path, errno)),
    };
    let made = rustix::fs::fstat(&fd).map_err(|errno| Error::system("look at", path, errno))?;
    if made.st_uid == rustix::process::geteuid().as_raw() && !Mode::from_raw_mode(made.st_mode).contains(Mode::RWXU) {
        rustix::fs::fchmod(&fd, Mode::RWXU).map_err(cannot)?;
    }
    Ok(fd)
}

/// Sorts the ways in which open(2) says no.
fn not_opened(path: &Path, errno: Errno) -> Error {
    match errno {
        // With O_DIRECTORY and O_NOFOLLOW a symbolic link is ENOTDIR or ELOOP, like other things.
        Errno::NOTDIR | Errno::LOOP => {
            let link = rustix::fs::statat(CWD, without_trailing_slashes(path).as_path(), AtFlags::SYMLINK_NOFOLLOW);
            if link.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink) {
                Error::of(ErrorKind::UnsafeDirectory, "use", path, "it is a symbolic link")
            } else {
                Error::because(ErrorKind::NoDirectory, "open directory", path, errno)
            }
        }
        Errno::NOENT | Errno::NAMETOOLONG => Error::because(ErrorKind::NoDirectory, "open directory", path, errno),
        errno => Error::system("open directory", path, errno),
    }
}

fn why_unsafe(stat: &Stat, named: bool) -> Result<Option<&'static str>> {
    let mode = Mode::from_raw_mode(stat.st_mode);
    if mode.contains(Mode::WOTH) {
        return Ok(Some("others may write to it"));
    }
    let shared = mode.contains(Mode::WGRP);
    if stat.st_uid == rustix::process::geteuid().as_raw() {
        return Ok(
            (shared && !named).then_some("its group may write to it, and it was not named by --dir or CLAIM_DIR")
        );
    }
    if !named || !shared {
        return Ok(Some("it belongs to somebody else"));
    }
    let groups = rustix::process::getgroups().map_err(|errno| Error::system("ask for", "my groups", errno))?;
    let mine = stat.st_gid == rustix::process::getegid().as_raw() || groups.iter().any(|g| g.as_raw() == stat.st_gid);
    Ok((!mine).then_some("it belongs to somebody else, and to a group that is not mine"))
}
