//! Is the holder that a record names alive, dead, or not to be told from here?
//!
//! Only *proven* dead is ever reclaimed. The facts are gathered here; what follows from them is [`verdict`], which is pure.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::error::{Error, Result};
use crate::local::identity::{Identity, is_masked};
use crate::local::process::{self, Watch};
use crate::record::{Body, ProcessId, RESTING, Record};
use crate::sys;

/// What is known of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Liveness {
    Alive,
    /// Nobody need be alive: the slot rests until that boot time, in nanoseconds.
    Resting(u64),
    /// Proven.
    Dead,
    /// It cannot be asked from here: held.
    Unknown,
}

/// What the system says of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    Alive,
    Dead,
    Unknown,
}

/// What the system says of a record.
#[derive(Debug, Clone, Copy)]
struct Facts {
    same_boot: bool,
    /// The file system may be shared with another kernel, or a boot id may not be the kernel's.
    may_be_another_host: bool,
    rests_until: Option<u64>,
    /// The processes of the record taken together, where pids mean the same to both; else `None`.
    processes: Option<Process>,
    /// Whether somebody has the kernel's lock on the record.
    locked: bool,
    lock_covers: bool,
    tree: bool,
}

fn verdict(facts: Facts) -> Liveness {
    let by_lock = match (facts.locked, facts.lock_covers) {
        (true, _) => Liveness::Alive,
        (false, true) => Liveness::Dead,
        (false, false) => Liveness::Unknown,
    };
    if !facts.same_boot {
        return if facts.may_be_another_host { by_lock } else { Liveness::Dead };
    }
    if let Some(until) = facts.rests_until {
        return Liveness::Resting(until);
    }
    match facts.processes {
        Some(Process::Alive) => Liveness::Alive,
        Some(Process::Dead) if facts.tree => by_lock,
        Some(Process::Dead) => Liveness::Dead,
        Some(Process::Unknown) | None => by_lock,
    }
}

/// Judges the holder of a record, whose file is open as `file`.
pub(crate) fn judge(record: &Record, file: BorrowedFd<'_>, me: &Identity) -> Result<Liveness> {
    Ok(judge_and_watch(record, file, me)?.0)
}

/// The same; where a process proves the holder alive, with a descriptor that will tell of its end.
pub(crate) fn judge_and_watch(
    record: &Record,
    file: BorrowedFd<'_>,
    me: &Identity,
) -> Result<(Liveness, Option<(ProcessId, OwnedFd)>)> {
    let same_boot = record.body.boot == me.boot;
    let given_up = record.live.state == RESTING;
    let rests_until = Some(record.live.until).filter(|&until| until > crate::clock::boot_ns());
    let (processes, alive) = if given_up {
        (Some(Process::Dead), None)
    } else if same_boot && record.body.pid_namespace == me.pid_namespace {
        let (processes, alive) = processes(record, me)?;
        (Some(processes), alive)
    } else {
        (None, None)
    };
    // The lock is asked for only where the answer could hang on it.
    let settled = matches!(processes, Some(Process::Alive))
        || (processes == Some(Process::Dead) && (!record.body.tree || given_up));
    let locked = !settled && sys::is_locked(file).map_err(|e| Error::system("ask for the lock on", "a record", e))?;
    let verdict = verdict(Facts {
        same_boot,
        may_be_another_host: !same_boot && (is_masked(&record.body.boot) || is_masked(&me.boot) || !is_local(file)?),
        rests_until,
        processes,
        locked,
        lock_covers: record.body.lock_covers,
        tree: record.body.tree && !given_up,
    });
    Ok((verdict, alive))
}

/// A record with two processes is dead when both are.
fn processes(record: &Record, me: &Identity) -> Result<(Process, Option<(ProcessId, OwnedFd)>)> {
    let mut together = Process::Dead;
    for process in [Some(record.body.process), record.live.command].into_iter().flatten() {
        match process::watch(process, comparable(&record.body, process, me)?)? {
            Watch::Alive(pidfd) => return Ok((Process::Alive, Some((process, pidfd)))),
            Watch::Unknown => together = Process::Unknown,
            Watch::Dead => {}
        }
    }
    Ok((together, None))
}

/// Whether the start time of a process of that record means the same to us.
fn comparable(body: &Body, process: ProcessId, me: &Identity) -> Result<bool> {
    Ok(body.time_namespace == me.time_namespace_of(process)?)
}

/// Whether the file system is known to be this kernel's alone, by the magic numbers of statfs(2) and linux/magic.h. What is not
/// known may be shared with another host.
pub(crate) fn is_local(file: BorrowedFd<'_>) -> Result<bool> {
    const LOCAL: [u32; 11] = [
        0x0102_1994, // tmpfs
        0x8584_58f6, // ramfs
        0xEF53,      // ext2, 3, 4
        0x5846_5342, // xfs
        0x9123_683E, // btrfs
        0xF2F5_2010, // f2fs
        0x2FC1_2FC1, // zfs
        0xCA45_1A4E, // bcachefs
        0x3153_464A, // jfs
        0x5265_4973, // reiserfs
        0x794C_7630, // overlayfs
    ];
    let stat =
        rustix::fs::fstatfs(file).map_err(|errno| Error::system("ask for the file system of", "a record", errno))?;
    Ok(LOCAL.contains(&(stat.f_type as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD: Facts = Facts {
        same_boot: true,
        may_be_another_host: false,
        rests_until: None,
        processes: Some(Process::Dead),
        locked: false,
        lock_covers: false,
        tree: false,
    };

    #[test]
    fn only_proof_is_death() {
        assert_eq!(verdict(DEAD), Liveness::Dead);
        assert_eq!(verdict(Facts { processes: Some(Process::Alive), ..DEAD }), Liveness::Alive);
        assert_eq!(verdict(Facts { processes: Some(Process::Unknown), ..DEAD }), Liveness::Unknown);
        assert_eq!(verdict(Facts { processes: None, ..DEAD }), Liveness::Unknown);
        assert_eq!(verdict(Facts { processes: None, lock_covers: true, ..DEAD }), Liveness::Dead);
        assert_eq!(verdict(Facts { processes: None, lock_covers: true, locked: true, ..DEAD }), Liveness::Alive);
    }

    #[test]
    fn a_boot_before_is_death_unless_it_may_be_another_host() {
        let before = Facts { same_boot: false, processes: None, ..DEAD };
        assert_eq!(verdict(before), Liveness::Dead);
        assert_eq!(verdict(Facts { rests_until: Some(9), ..before }), Liveness::Dead);
        assert_eq!(verdict(Facts { may_be_another_host: true, ..before }), Liveness::Unknown);
        assert_eq!(verdict(Facts { may_be_another_host: true, locked: true, ..before }), Liveness::Alive);
    }

    #[test]
    fn a_resting_slot_is_held_whoever_is_dead() {
        assert_eq!(verdict(Facts { rests_until: Some(9), ..DEAD }), Liveness::Resting(9));
    }

    #[test]
    fn a_tree_is_alive_while_somebody_has_inherited_the_lock() {
        let tree = Facts { tree: true, lock_covers: true, ..DEAD };
        assert_eq!(verdict(tree), Liveness::Dead);
        assert_eq!(verdict(Facts { locked: true, ..tree }), Liveness::Alive);
    }
}
