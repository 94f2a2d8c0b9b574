//! Everything a COMMAND has started, `setsid` or not.

use std::collections::HashMap;
use std::io;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::local::procfs;

/// Makes orphans among our descendants our children, so that their end is ours to wait for (prctl(2)).
pub(crate) fn adopt_orphans() -> io::Result<()> {
    // The value only says "on".
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Sends a signal to all descendants of this process. Some may be forking meanwhile: to end them all, repeat until none is
/// left.
pub(crate) fn signal_all(signal: Signal) -> crate::Result<()> {
    if !procfs::is_ours()? {
        let why = "it is of another pid namespace";
        return Err(crate::Error::of(crate::ErrorKind::System, "find what COMMAND started in", "/proc", why));
    }
    let me = rustix::process::getpid().as_raw_nonzero().get();
    for pid in descendants(me)? {
        let Some(raw) = Pid::from_raw(pid) else { continue };
        // The pidfd first, then once more the descent: whoever it is now is who is hit.
        let Ok(pidfd) = pidfd_open(raw, PidfdFlags::empty()) else { continue };
        if procfs::ancestors(pid)?.contains(&me) {
            let _ = pidfd_send_signal(&pidfd, signal);
        }
    }
    Ok(())
}

/// Kills all descendants of this process, and waits until none is left.
#[cfg(feature = "etcd")]
pub(super) fn kill_all() -> crate::Result<()> {
    use std::time::Duration;

    use rustix::io::Errno;
    use rustix::process::{WaitOptions, wait};

    /// They have got their signal and take their time to die; or they are somebody else's, and nothing can be done.
    const LONGEST: Duration = Duration::from_millis(100);
    let mut pause = Duration::from_millis(1);
    loop {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break,
                Err(Errno::CHILD) => return Ok(()),
                Err(errno) => return Err(crate::Error::system("wait for", "what COMMAND started", errno)),
            }
        }
        signal_all(Signal::KILL)?;
        crate::clock::pause(pause);
        pause = (pause * 2).min(LONGEST);
    }
}

/// The processes below one, in no order.
fn descendants(root: i32) -> crate::Result<Vec<i32>> {
    let entries = std::fs::read_dir("/proc").map_err(|error| crate::Error::system("list", "/proc", error))?;
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in entries.flatten() {
        if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok())
            && let Some(stat) = procfs::stat(pid)?
        {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    // Whoever is met is taken out, so that pids that were used again while we looked cannot lead in a circle.
    let mut family = children.remove(&root).unwrap_or_default();
    let mut next = 0;
    while let Some(parent) = family.get(next) {
        let below = children.remove(parent).unwrap_or_default();
        family.extend(below);
        next += 1;
    }
    Ok(family)
}
