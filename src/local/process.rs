//! Processes, told from others that have had their pid.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::{Error, Result};
use crate::local::procfs;
use crate::record::ProcessId;

/// Set in a mark that is the inode number of the process's pidfd. Since Linux 6.9 these lie in a file system of their own
/// (pidfs), and each process has a number of its own that does not come back while the host is up. A mark without it is
/// the start time, in clock ticks: good to 10 ms, and shown shifted by the reader's time namespace.
const IS_PIDFD_INODE: u64 = 1 << 63;

impl ProcessId {
    pub(crate) fn is_known_by_start(self) -> bool {
        self.mark & IS_PIDFD_INODE == 0
    }
}

/// A process to be watched.
pub(crate) enum Watch {
    /// The descriptor polls readable when it has ended.
    Alive(OwnedFd),
    Dead,
    /// Somebody with that pid is there, who cannot be told from it.
    Unknown,
}

/// This process.
pub(crate) fn own() -> Result<ProcessId> {
    of_this_process(None)
}

/// This process, which is a child of that one (a vforked one, too), and so is known by the same kind of mark.
#[cfg(feature = "cli")]
pub(crate) fn own_below(parent: ProcessId) -> Result<ProcessId> {
    of_this_process(Some(parent))
}

fn of_this_process(parent: Option<ProcessId>) -> Result<ProcessId> {
    let pid = rustix::process::getpid();
    let raw = pid.as_raw_nonzero().get();
    let mark = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) if parent.is_some_and(|parent| !parent.is_known_by_start()) => Some(mark_of_inode(pidfd.as_fd())?),
        Ok(pidfd) => inode_mark(pidfd.as_fd())?,
        // A seccomp filter that knows nothing of pidfds.
        Err(Errno::PERM | Errno::ACCESS) => None,
        Err(errno) => return Err(cannot_watch(raw, errno)),
    };
    match mark {
        Some(mark) => Ok(ProcessId { pid: raw, mark }),
        None => Ok(ProcessId { pid: raw, mark: procfs::own_stat()?.start }),
    }
}

/// The process that has that pid now, and a descriptor to watch it by. `None`: there is none (a zombie is none).
#[cfg(feature = "cli")]
pub(crate) fn find(pid: i32) -> Result<Option<(ProcessId, OwnedFd)>> {
    let Some(number) = Pid::from_raw(pid).filter(|_| pid > 0) else { return Ok(None) };
    let pidfd = match pidfd_open(number, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        // EINVAL, in newer kernels ENOENT: a thread's number.
        Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(cannot_watch(pid, errno)),
    };
    let mark = match inode_mark(pidfd.as_fd())? {
        Some(mark) => mark,
        None => match procfs::stat(pid)? {
            Some(stat) => stat.start,
            None => return Ok(None),
        },
    };
    Ok((!has_ended(pidfd.as_fd())?).then_some((ProcessId { pid, mark }, pidfd)))
}

fn inode_mark(pidfd: BorrowedFd<'_>) -> Result<Option<u64>> {
    const PID_FS_MAGIC: u64 = 0x5049_4446;
    let cannot = |errno| Error::system("look at", "a pidfd", errno);
    let on = rustix::fs::fstatfs(pidfd).map_err(cannot)?;
    if on.f_type as u64 != PID_FS_MAGIC {
        return Ok(None);
    }
    mark_of_inode(pidfd).map(Some)
}

fn mark_of_inode(pidfd: BorrowedFd<'_>) -> Result<u64> {
    let stat = rustix::fs::fstat(pidfd).map_err(|errno| Error::system("look at", "a pidfd", errno))?;
    Ok(stat.st_ino | IS_PIDFD_INODE)
}

/// Opens a process for watching, if it is the one that is meant. `comparable`: start times mean the same to both.
///
/// The order matters: the pidfd pins the process, so that what is read afterwards is of that process, or of none because it
/// has gone, in which case the pidfd says so.
pub(crate) fn watch(process: ProcessId, comparable: bool) -> Result<Watch> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(Watch::Dead) };
    let by_inode = !process.is_known_by_start();
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH) => return Ok(Watch::Dead),
        // EINVAL, in newer kernels ENOENT: the number is a thread's now, not a process's. Ours was a process, so it is
        // gone; the start time is asked for all the same, lest a word of the kernel's is misread as a death.
        Err(Errno::INVAL | Errno::NOENT) => {
            return Ok(match procfs::stat(process.pid)? {
                Some(stat) if !by_inode && comparable && stat.start != process.mark => Watch::Dead,
                Some(stat) if by_inode && stat.is_thread_of_another(process.pid)? => Watch::Dead,
                _ => Watch::Unknown,
            });
        }
        // A seccomp filter that knows nothing of pidfds.
        Err(Errno::PERM | Errno::ACCESS) => return Ok(Watch::Unknown),
        Err(errno) => return Err(cannot_watch(process.pid, errno)),
    };
    if has_ended(pidfd.as_fd())? {
        return Ok(Watch::Dead);
    }
    if by_inode {
        let is_it = mark_of_inode(pidfd.as_fd())? == process.mark;
        return Ok(if is_it { Watch::Alive(pidfd) } else { Watch::Dead });
    }
    match procfs::stat(process.pid)? {
        Some(stat) if stat.start == process.mark => Ok(Watch::Alive(pidfd)),
        Some(_) if comparable || has_ended(pidfd.as_fd())? => Ok(Watch::Dead),
        None if has_ended(pidfd.as_fd())? => Ok(Watch::Dead),
        // Hidden from us (hidepid), or its start time is in another reckoning.
        Some(_) | None => Ok(Watch::Unknown),
    }
}

/// Whether no process of that pid is left, whoever it was. A zombie is gone.
pub(crate) fn has_gone(pid: i32) -> Result<bool> {
    let Some(number) = Pid::from_raw(pid) else { return Ok(true) };
    match pidfd_open(number, PidfdFlags::empty()) {
        Ok(pidfd) => has_ended(pidfd.as_fd()),
        Err(Errno::SRCH) => Ok(true),
        // A thread's number now, or not to be asked: not proven.
        Err(Errno::INVAL | Errno::NOENT | Errno::PERM | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(cannot_watch(pid, errno)),
    }
}

/// Whether the process of a pidfd has ended. A zombie has; a leader that left threads behind has not.
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::io::retry_on_intr(|| poll(&mut fds, Some(&now))) {
        Ok(ready) => Ok(ready > 0),
        Err(errno) => Err(Error::system("poll", "a pidfd", errno)),
    }
}

fn cannot_watch(pid: i32, errno: Errno) -> Error {
    Error::system("watch process", pid.to_string(), errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_the_pair_of_pid_and_mark() {
        let me = own().unwrap();
        assert!(matches!(watch(me, true).unwrap(), Watch::Alive(_)));
        assert!(matches!(watch(ProcessId { mark: me.mark - 1, ..me }, true).unwrap(), Watch::Dead));
    }

    #[test]
    fn without_pidfs_the_start_time_tells_if_it_can_be_compared() {
        let me = ProcessId { mark: procfs::own_stat().unwrap().start, ..own().unwrap() };
        assert!(matches!(watch(me, true).unwrap(), Watch::Alive(_)));
        assert!(matches!(watch(ProcessId { mark: me.mark + 1, ..me }, true).unwrap(), Watch::Dead));
        assert!(matches!(watch(ProcessId { mark: me.mark + 1, ..me }, false).unwrap(), Watch::Unknown));
    }

    #[test]
    fn a_zombie_is_dead_and_a_thread_is_no_process() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let pidfd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
        poll(&mut fds, None).unwrap();
        assert!(has_gone(pid).unwrap());
        child.wait().unwrap();
        assert!(has_gone(pid).unwrap());
    }

    #[test]
    fn a_number_that_a_thread_has_got_is_not_the_process_it_was() {
        let (send, receive) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = wait.recv();
        });
        let tid = receive.recv().unwrap();
        for mark in [1, IS_PIDFD_INODE | 1] {
            assert!(matches!(watch(ProcessId { pid: tid, mark }, true).unwrap(), Watch::Dead));
        }
        drop(end);
        thread.join().unwrap();
    }
}
