//! What /proc says of processes (proc(5)).

use std::io;
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// The fields of /proc/PID/stat that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Field 3.
    pub(crate) state: u8,
    /// Field 4.
    pub(crate) parent: i32,
    /// Field 20.
    pub(crate) threads: u32,
    /// Field 22, in clock ticks since boot.
    pub(crate) start: u64,
}

impl Stat {
    /// Stopped by a signal or by a tracer: alive, and doing nothing.
    pub(crate) fn is_stopped(self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// A zombie, or just about to be none any more. Of a process with several threads only its first has ended.
    pub(crate) fn is_zombie(self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }

    /// Whether `id` is a thread of a process that has another number.
    pub(crate) fn is_thread_of_another(self, id: i32) -> Result<bool> {
        // A thread has a directory in /proc like a process, but only a process is listed among its own threads' leaders:
        // "Tgid" in its status is the process.
        let path = format!("/proc/{id}/status");
        let mut buffer = [0; 1024];
        match read_start(&path, &mut buffer) {
            Ok(text) => {
                let text = String::from_utf8_lossy(text);
                let leader = text.lines().find_map(|line| line.strip_prefix("Tgid:")).map(str::trim);
                Ok(leader.is_some_and(|leader| leader != id.to_string()))
            }
            Err(Errno::NOENT | Errno::SRCH) => Ok(false),
            Err(errno) => Err(Error::system("read", path, errno)),
        }
    }

    fn parse(text: &[u8]) -> Option<Self> {
        // The second field is the name in parentheses, with anything in it: the last `)` ends it.
        let after_name = text.iter().rposition(|&byte| byte == b')')? + 1;
        let text = std::str::from_utf8(text.get(after_name..)?).ok()?;
        let mut fields = text.split_ascii_whitespace();
        let state = *fields.next()?.as_bytes().first()?;
        let parent = fields.next()?.parse().ok()?;
        let threads = fields.nth(15)?.parse().ok()?;
        let start = fields.nth(1)?.parse().ok()?;
        Some(Self { state, parent, threads, start })
    }
}

/// /proc/PID/stat. `None`: no such process, none that may be seen (hidepid), or nobody can tell because /proc is not ours.
pub(crate) fn stat(pid: i32) -> Result<Option<Stat>> {
    if !is_ours()? {
        return Ok(None);
    }
    stat_of_ours(pid)
}

/// The same for who knows that [/proc is ours](is_ours).
pub(crate) fn stat_of_ours(pid: i32) -> Result<Option<Stat>> {
    read_stat(&format!("/proc/{pid}/stat"))
}

/// The environment that a process was executed with. `None`: it is gone, or nobody that we may ask.
#[cfg(feature = "cli")]
pub(crate) fn environment(pid: i32) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/environ")).ok()
}

/// Whether the numbers in /proc are those of our pid namespace. A namespace that was made without mounting a /proc of its own
/// sees that of another, in which its pids are other processes.
pub(crate) fn is_ours() -> Result<bool> {
    let path = "/proc/self";
    let mut buffer = [0; 16];
    match rustix::fs::readlinkat_raw(CWD, path, &mut buffer[..]) {
        Ok(length) => {
            let shown = std::str::from_utf8(&buffer[..length]).ok().and_then(|pid| pid.parse().ok());
            Ok(shown == Some(rustix::process::getpid().as_raw_nonzero().get()))
        }
        Err(errno) => Err(Error::system("read", path, errno)),
    }
}

/// The same of this process; in a vforked child, of the child.
pub(crate) fn own_stat() -> Result<Stat> {
    read_stat("/proc/self/stat")?.ok_or_else(|| Error::system("read", "/proc/self/stat", Errno::NOENT))
}

fn read_stat(path: &str) -> Result<Option<Stat>> {
    let mut buffer = [0; 1024];
    match read_start(path, &mut buffer) {
        Ok(text) => match Stat::parse(text) {
            Some(stat) => Ok(Some(stat)),
            None => Err(Error::system("understand", path, io::Error::from(io::ErrorKind::InvalidData))),
        },
        // ESRCH: it went while it was read.
        Err(Errno::NOENT | Errno::SRCH) if path != "/proc/self/stat" => Ok(None),
        Err(errno) => Err(Error::system("read", path, errno)),
    }
}

/// The first bytes of a small file of the kernel's, in one read.
pub(crate) fn read_start(path: impl AsRef<Path>, buffer: &mut [u8]) -> std::result::Result<&[u8], Errno> {
    read_once(&open(path)?, buffer)
}

pub(crate) fn open(path: impl AsRef<Path>) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::openat(CWD, path.as_ref(), flags, Mode::empty())
}

pub(crate) fn read_once<'a>(file: &OwnedFd, buffer: &'a mut [u8]) -> std::result::Result<&'a [u8], Errno> {
    let length = rustix::io::retry_on_intr(|| rustix::io::read(file, &mut *buffer))?;
    Ok(&buffer[..length])
}

/// The processes above this one, nearest first: parent, its parent, and so on as far as this pid namespace goes.
pub(crate) fn ancestors(of: i32) -> Result<Vec<i32>> {
    let mut line = Vec::new();
    let mut at = of;
    if !is_ours()? {
        return Ok(line);
    }
    while let Some(stat) = read_stat(&format!("/proc/{at}/stat"))? {
        // A pid that was used again while we looked could lead back down: no line of descent has a loop.
        if stat.parent <= 0 || stat.parent == of || line.contains(&stat.parent) {
            break;
        }
        line.push(stat.parent);
        at = stat.parent;
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_the_rest() {
        let text = b"42 (a) R 1 (b) S 7 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 987 1 1";
        assert_eq!(Stat::parse(text), Some(Stat { state: b'S', parent: 7, threads: 3, start: 987 }));
        assert_eq!(Stat::parse(b"42 (a"), None);
    }

    #[test]
    fn own_stat_is_the_stat_of_own_pid() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert_eq!(stat(pid).unwrap().unwrap().start, own_stat().unwrap().start);
        assert!(!own_stat().unwrap().is_stopped());
        assert_eq!(ancestors(pid).unwrap().first(), Some(&own_stat().unwrap().parent));
    }
}
