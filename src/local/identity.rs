//! Who this process is, as far as records and judgements need to know.

use std::sync::OnceLock;

use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::local::{process, procfs};
use crate::record::ProcessId;

/// proc(5) gives the initial pid namespace this inode number (PROC_PID_INIT_INO in the kernel's proc_ns.h).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// This process, its boot and its namespaces.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) process: ProcessId,
    pub(crate) boot: String,
    pub(crate) pid_namespace: u64,
    pub(crate) host: String,
    time_namespace: OnceLock<u64>,
    proc_is_ours: OnceLock<bool>,
}

impl Identity {
    /// Asks the system. To be asked again after a fork.
    pub(crate) fn of_this_process() -> Result<Self> {
        let pid_namespace = namespace("/proc/self/ns/pid")?;
        Ok(Self {
            process: process::own()?,
            boot: boot_id(pid_namespace != INITIAL_PID_NAMESPACE)?,
            pid_namespace,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            time_namespace: OnceLock::new(),
            proc_is_ours: OnceLock::new(),
        })
    }

    /// Start times are shown shifted by the reader's time namespace, so two of them cannot be compared across. Of who is known
    /// by something else this is nought.
    pub(crate) fn time_namespace_of(&self, process: ProcessId) -> Result<u64> {
        if !process.is_known_by_start() {
            return Ok(0);
        }
        match self.time_namespace.get() {
            Some(&known) => Ok(known),
            None => {
                let mine = namespace("/proc/self/ns/time")?;
                Ok(*self.time_namespace.get_or_init(|| mine))
            }
        }
    }

    /// See [`procfs::is_ours`]. Asked once: a process stays in its pid namespace, and its /proc does not change under it.
    pub(crate) fn proc_is_ours(&self) -> Result<bool> {
        match self.proc_is_ours.get() {
            Some(&known) => Ok(known),
            None => {
                let ours = procfs::is_ours()?;
                Ok(*self.proc_is_ours.get_or_init(|| ours))
            }
        }
    }

    /// In a container, that is: in any pid namespace but the initial one.
    #[cfg(feature = "cli")]
    pub(crate) fn in_container(&self) -> bool {
        self.pid_namespace != INITIAL_PID_NAMESPACE
    }
}

/// Some container managers put a file of their own over the kernel's boot id, so that one boot has several. Such an id tells
/// nobody that another boot is over.
const MASKED: char = '?';

pub(crate) fn is_masked(boot: &str) -> bool {
    boot.starts_with(MASKED)
}

fn boot_id(in_container: bool) -> Result<String> {
    const PROC_SUPER_MAGIC: u64 = 0x9fa0;
    let path = "/proc/sys/kernel/random/boot_id";
    let cannot = |errno| Error::system("read", path, errno);
    let file = procfs::open(path).map_err(cannot)?;
    let mut buffer = [0; 64];
    let text = String::from_utf8_lossy(procfs::read_once(&file, &mut buffer).map_err(cannot)?).trim().to_owned();
    let masked = in_container && rustix::fs::fstatfs(&file).map_err(cannot)?.f_type as u64 != PROC_SUPER_MAGIC;
    Ok(if masked { format!("{MASKED}{text}") } else { text })
}

/// The inode number that a namespace is known by; 0 where the kernel has no such namespaces.
fn namespace(path: &str) -> Result<u64> {
    match rustix::fs::statat(CWD, path, AtFlags::empty()) {
        Ok(stat) => Ok(stat.st_ino),
        Err(Errno::NOENT) if path.ends_with("time") => Ok(0),
        Err(errno) => Err(Error::system("look at", path, errno)),
    }
}
