//! A private claim directory for one tree of processes.

use std::ffi::OsString;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::class::Class;
use crate::error::{Error, Result};
use crate::inspect::inspect;
use crate::local::dir::Directory;
use crate::local::holder::{Holder, Opened};
use crate::local::identity::Identity;
use crate::local::liveness::{Liveness, judge};
use crate::record::Body;

/// The record of the master, in its directory.
const RECORD: &str = "master";

/// A master: it makes a claim directory of its own before it forks, and only its own process removes it.
///
/// Set `CLAIM_DIR` to [`path`](Self::path) for what is to share it, or hand down [`directory`](Self::directory). Directories
/// that killed masters of this user left are swept by the next, once nobody holds or waits in them.
///
/// ```
/// # fn main() -> hostclaim::Result<()> {
/// let master = hostclaim::Master::new()?;
/// let mut once = hostclaim::Claim::new(master.directory(), "once-not-once-per-worker")?;
/// // fork the workers here; each asks for its own copy of `once`.
/// # once.acquire(Some(std::time::Duration::ZERO))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Master {
    dir: Directory,
    record: Option<Holder>,
    generation: u64,
}

impl Master {
    /// Makes the directory under `$CLAIM_TMPDIR`, else `$TMPDIR`, else `/tmp`, after sweeping what dead masters left there.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new() -> Result<Self> {
        let parent = ["CLAIM_TMPDIR", "TMPDIR"]
            .into_iter()
            .filter_map(std::env::var_os)
            .find(|value| !value.is_empty())
            .map_or_else(|| PathBuf::from("/tmp"), |value: OsString| PathBuf::from(value));
        Self::under(&parent)
    }

    /// The same under a parent of one's own choice.
    ///
    /// # Errors
    /// Those of the system.
    pub fn under(parent: &Path) -> Result<Self> {
        let me = Identity::of_this_process()?;
        let prefix = format!("claim-master-{}-", rustix::process::geteuid().as_raw());
        sweep(parent, &prefix, &me);
        let made = tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(parent)
            .map_err(|error| Error::because(crate::ErrorKind::NoDirectory, "make a directory in", parent, error))?;
        let dir = Directory::at(made.path())?;
        let time_namespace = me.time_namespace_of(me.process)?;
        let body = Body {
            process: me.process,
            boot: me.boot,
            pid_namespace: me.pid_namespace,
            time_namespace,
            host: me.host,
            name: RECORD.into(),
            max: 1,
            class: Class::default(),
            label: Vec::new(),
            lock_covers: true,
            tree: false,
        };
        let record = Holder::new(&dir, &body)?;
        record.link(RECORD).map_err(|errno| crate::local::holder::cannot_link(&dir, RECORD, errno))?;
        dir.hold_off_cleaners()?;
        // Ours to remove from here on.
        let _ = made.keep();
        let generation = dir.generation();
        Ok(Self { dir, record: Some(record), generation })
    }

    /// The directory, for handles.
    pub fn directory(&self) -> &Directory {
        &self.dir
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// In the child, before it becomes COMMAND: puts it on record, so that the directory stays as long as it lives.
    #[cfg(feature = "cli")]
    pub(crate) fn register(&self) -> bool {
        let (Some(record), Ok(command)) = (&self.record, crate::local::process::own()) else { return false };
        record.live().set_command(command);
        true
    }

    /// Removes the directory, whoever holds or waits in it. `drop` does the same, with nobody to tell of an error.
    ///
    /// # Errors
    /// Those of the system.
    pub fn remove(mut self) -> Result<()> {
        self.remove_now()
    }

    fn remove_now(&mut self) -> Result<()> {
        if self.record.take().is_none() || self.generation != self.dir.generation() {
            return Ok(());
        }
        remove(self.dir.path())
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        let _ = self.remove_now();
    }
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::system("remove directory", path, error)),
    }
}

/// Removes what dead masters left. What cannot be judged, or not be removed, is left to the next.
fn sweep(parent: &Path, prefix: &str, me: &Identity) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_one = entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix));
        if is_one && is_abandoned(&entry.path(), me).unwrap_or(false) {
            let _ = remove(&entry.path());
        }
    }
}

fn is_abandoned(path: &Path, me: &Identity) -> Result<bool> {
    // Without a record it is one that is being made, or whose maker died within the same instant: an hour settles it.
    const BEING_MADE: std::time::Duration = std::time::Duration::from_secs(3600);
    let Some(dir) = Directory::existing(path, true)? else { return Ok(false) };
    let Some(record) = Opened::at(&dir, RECORD)? else {
        let made = fs::metadata(path).and_then(|about| about.modified());
        return Ok(made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > BEING_MADE)));
    };
    if judge(&record.record, record.as_fd(), me)? != Liveness::Dead {
        return Ok(false);
    }
    for dir in dir.spaces()?.into_iter().chain([dir]) {
        let report = inspect(&dir, None)?;
        if !report.entries.is_empty() || report.unreadable.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}
