//! The record of this handle, as a file: made once, linked into a slot while the handle holds.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::local::dir::Directory;
use crate::local::fresh::Fresh;
use crate::record::{self, Body, LARGEST, LiveWords, Record, decode_record, encode_record};
use crate::sys::{self, SharedWords};

/// A file, told from all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
}

impl FileId {
    pub(crate) fn of(stat: &rustix::fs::Stat) -> Self {
        Self { dev: stat.st_dev, ino: stat.st_ino }
    }
}

/// Our own record.
#[derive(Debug)]
pub(crate) struct Holder {
    file: Fresh,
    words: SharedWords,
    pub(crate) id: FileId,
    /// A name it keeps beside those in slots. An unnamed file can be linked once only: when its last name is gone, so
    /// is it. A run needs no more than that; a handle that is used again does.
    name: Option<String>,
    /// It has had a name, so that without any it is lost.
    linked: std::cell::Cell<bool>,
    /// The holder is this process, and not one it was asked to hold for.
    own: bool,
    dir: Directory,
    generation: u64,
}

impl Holder {
    pub(crate) fn new(dir: &Directory, body: &Body) -> Result<Self> {
        let file = Fresh::new(dir, ".")?;
        file.write(&encode_record(body))?;
        // Before anybody can find the record: from elsewhere the lock is what proves the holder alive.
        sys::lock(file.as_fd()).map_err(|e| dir.system("lock a record in", "", e))?;
        let words = SharedWords::map(file.as_fd(), record::WORDS).map_err(|e| dir.system("map a record in", "", e))?;
        // Written to once, so that later stores (on tmpfs) do not set the time of writing anew.
        LiveWords(&words).prepare(0, 0);
        file.keep_from_cleaners()?;
        let own = body.process.pid == rustix::process::getpid().as_raw_nonzero().get();
        let (dir, generation) = (dir.clone(), dir.generation());
        Ok(Self { id: file.id, file, words, name: None, linked: false.into(), own, dir, generation })
    }

    /// See [`Fresh::keep_from_cleaners`].
    #[cfg(feature = "cli")]
    pub(crate) fn keep_from_cleaners(&self) -> Result<()> {
        self.file.keep_from_cleaners()
    }

    pub(crate) fn live(&self) -> LiveWords<'_> {
        LiveWords(&self.words)
    }

    /// The words once more, for a thread that outlives a borrow of them.
    #[cfg(all(feature = "cli", feature = "etcd"))]
    pub(crate) fn words_again(&self) -> Result<SharedWords> {
        SharedWords::map(self.file.as_fd(), record::WORDS)
            .map_err(|error| self.dir.system("map a record in", "", error))
    }

    /// Gives it a name beside its slots. `Ok(false)`: the directory for it is not there.
    pub(crate) fn keep_as(&mut self, path: String) -> Result<bool> {
        match self.file.link(&path) {
            Ok(()) => {
                self.name = Some(path);
                self.linked.set(true);
                Ok(true)
            }
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(cannot_link(&self.dir, &path, errno)),
        }
    }

    /// Takes the name away again.
    pub(crate) fn drop_name(&mut self) -> Result<()> {
        match self.name.take() {
            Some(name) if self.generation == self.dir.generation() => self.dir.unlink(&name).map(drop),
            _ => Ok(()),
        }
    }

    /// linkat(2) to `path`; EEXIST is for the caller to read.
    pub(crate) fn link(&self, path: &str) -> std::result::Result<(), Errno> {
        match &self.name {
            Some(name) => rustix::fs::linkat(&self.dir, name.as_str(), &self.dir, path, rustix::fs::AtFlags::empty()),
            None => self.file.link(path),
        }?;
        self.linked.set(true);
        Ok(())
    }

    /// Whether all its names have been removed: such a file can never be linked again, and another is needed.
    pub(crate) fn is_lost(&self) -> Result<bool> {
        if !self.linked.get() {
            return Ok(false);
        }
        let stat = rustix::fs::fstat(&self.file).map_err(|errno| self.dir.system("look at a record in", "", errno))?;
        Ok(stat.st_nlink == 0)
    }

    pub(crate) fn is_own(&self) -> bool {
        self.own
    }

    /// A copy of the descriptor that a COMMAND can inherit, out of the way of the small numbers that scripts use. It
    /// carries the kernel's lock on.
    #[cfg(feature = "cli")]
    pub(crate) fn inheritable(&self) -> Result<OwnedFd> {
        const OUT_OF_THE_WAY: i32 = 230;
        let cannot = |errno| self.dir.system("duplicate the descriptor of a record in", "", errno);
        // EINVAL: the limit on open files is lower than that; then as it comes.
        let copy = match rustix::io::fcntl_dupfd_cloexec(&self.file, OUT_OF_THE_WAY) {
            Err(Errno::INVAL) => rustix::io::fcntl_dupfd_cloexec(&self.file, 3),
            other => other,
        }
        .map_err(cannot)?;
        rustix::io::fcntl_setfd(&copy, rustix::io::FdFlags::empty()).map_err(cannot)?;
        Ok(copy)
    }
}

impl AsFd for Holder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.drop_name();
    }
}

pub(crate) fn cannot_link(dir: &Directory, path: &str, errno: Errno) -> Error {
    match errno {
        // link(2): "the file system containing oldpath and newpath does not support the creation of hard links".
        Errno::PERM | Errno::OPNOTSUPP => Error::of(ErrorKind::System, "link", dir.full(path), "no hard links here"),
        errno => dir.system("link", path, errno),
    }
}

/// Somebody's record, opened: as long as it is open, its inode is not given to another file.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) record: Record,
    pub(crate) id: FileId,
    fd: OwnedFd,
}

impl Opened {
    /// Opens and reads what stands at `path`. `None`: nothing.
    pub(crate) fn at(dir: &Directory, path: &str) -> Result<Option<Self>> {
        let Some(fd) = open(dir, path, OFlags::RDONLY)? else { return Ok(None) };
        let (record, id) = read(dir, path, &fd)?;
        Ok(Some(Self { record, id, fd }))
    }

    /// The record as it is now.
    pub(crate) fn read_again(&self, dir: &Directory, path: &str) -> Result<Record> {
        read(dir, path, &self.fd).map(|(record, _)| record)
    }
}

impl AsFd for Opened {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens what stands at `path`, whatever is in it.
pub(crate) fn open(dir: &Directory, path: &str, access: OFlags) -> Result<Option<OwnedFd>> {
    // O_NONBLOCK: should a FIFO stand there, opening it must not wait for a writer.
    let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match rustix::fs::openat(dir, path, flags, Mode::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT) => Ok(None),
        // A symbolic link, a socket, a directory: no record of ours.
        Err(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => Err(unreadable(dir, path)),
        Err(errno) => Err(dir.system("open", path, errno)),
    }
}

/// A flock(2) that is held. It is given back explicitly: it belongs to the open file, of which a fork by another thread may
/// have made a second owner that keeps it open.
pub(crate) struct Locked<'a>(BorrowedFd<'a>);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // EINTR cannot come of unlocking, and no other error of a lock that is held.
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

/// A flock(2) on the file, if it can be had at once.
pub(crate) fn try_flock<'a>(dir: &Directory, path: &str, file: &'a impl AsFd) -> Result<Option<Locked<'a>>> {
    match rustix::io::retry_on_intr(|| flock(file, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(Some(Locked(file.as_fd()))),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(dir.system("lock", path, errno)),
    }
}

pub(crate) fn unreadable(dir: &Directory, path: &str) -> Error {
    Error::of(ErrorKind::Unreadable, "read", dir.full(path), "not a record that this version of claim can read")
}

/// The record in an open file, and which file that is.
pub(crate) fn read(dir: &Directory, path: &str, fd: &OwnedFd) -> Result<(Record, FileId)> {
    /// A copy of memory that is being changed may be torn; the next one is not.
    const TRIES: u32 = 3;
    let stat = rustix::fs::fstat(fd).map_err(|errno| dir.system("look at", path, errno))?;
    // Nothing of a record that has a name changes its size.
    let size = usize::try_from(stat.st_size).ok().filter(|size| (1..=LARGEST).contains(size));
    let Some(size) = size else { return Err(unreadable(dir, path)) };
    let mut bytes = vec![0; size];
    for _ in 0..TRIES {
        let mut length = 0;
        while length < size {
            match rustix::io::pread(fd, &mut bytes[length..], length as u64) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(Errno::INTR) => {}
                // A directory, a FIFO: no record.
                Err(Errno::ISDIR | Errno::SPIPE) => return Err(unreadable(dir, path)),
                Err(errno) => return Err(dir.system("read", path, errno)),
            }
        }
        if let Ok(record) = decode_record(&bytes[..length]) {
            return Ok((record, FileId::of(&stat)));
        }
    }
    Err(unreadable(dir, path))
}
