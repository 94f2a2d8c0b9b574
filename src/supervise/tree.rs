//! Everything a COMMAND has started, `setsid` or not.

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

/// The processes below one, in no order.
fn descendants(root: i32) -> crate::Result<Vec<i32>> {
    let entries = std::fs::read_dir("/proc").map_err(|error| crate::Error::system("list", "/proc", error))?;
    let mut family = Vec::new();
    for entry in entries.flatten() {
        if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok())
            && pid != root
            && procfs::ancestors(pid)?.contains(&root)
        {
            family.push(pid);
        }
    }
    Ok(family)
}
