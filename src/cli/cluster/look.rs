//! `--who`, `--available` and `--release --force` across hosts.

use std::time::Duration;

use crate::class::Class;
use crate::cli::args::Args;
use crate::cli::cluster::{Cluster, failure};
use crate::cli::custody::say_released;
use crate::cli::output::Voice;
use crate::cli::{existing_directory, exit, who};
use crate::clock;
use crate::error::Result;
use crate::etcd::{self, Inspector, Standing};
use crate::inspect::{Entry, Report, inspect};
use crate::local::Place;
use crate::local::dir::Directory;
use crate::name::{Capacity, Key, Name};

pub(super) fn who(args: &Args, cluster: &Cluster, name: Option<&Name>, voice: &Voice) -> Result<i32> {
    let inspector = Inspector::new(&cluster.config).map_err(failure)?;
    if !args.watch {
        let contenders = inspector.list(name.map(Name::as_bytes)).map_err(failure)?;
        return who::show(args, report(args, cluster, name, contenders)?, voice);
    }
    let mut follow = inspector.follow(name.map(Name::as_bytes));
    let mut seen = false;
    who::watch(args, &mut |_| match follow.next(Some(who::LOOK_EVERY)) {
        Ok(None) => Ok(None),
        Ok(Some(contenders)) => {
            seen = true;
            report(args, cluster, name, contenders).map(Some)
        }
        // It was there before, and may be again.
        Err(error) if seen => {
            voice.say(&error);
            clock::pause(Duration::from_millis(250));
            Ok(None)
        }
        Err(error) => Err(failure(error)),
    })
}

/// What etcd shows, and who waits on this host to get there.
fn report(args: &Args, cluster: &Cluster, name: Option<&Name>, contenders: Vec<etcd::Entry>) -> Result<Report> {
    let mut report = Report { entries: entries(contenders), unreadable: None };
    let Some(space) = space(args, cluster)? else { return Ok(report) };
    let here = inspect(&space, name)?;
    report.unreadable = here.unreadable;
    for mut waiter in here.entries.into_iter().filter(|entry| entry.slot.is_none()) {
        let last = report.entries.iter().rposition(|entry| entry.key == waiter.key);
        waiter.held = last.map_or(0, |last| report.entries[last].held);
        let at = last.map_or(report.entries.len(), |last| last + 1);
        report.entries.insert(at, waiter);
    }
    Ok(report)
}

/// Where this host's contenders meet, if any have.
fn space(args: &Args, cluster: &Cluster) -> Result<Option<Directory>> {
    let Some(dir) = existing_directory(args)? else { return Ok(None) };
    let id = cluster.space_id();
    Ok(dir.spaces()?.into_iter().find(|space| space.path().ends_with(&id)))
}

fn entries(contenders: Vec<etcd::Entry>) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for contender in contenders {
        let (Ok(name), Ok(max)) = (Name::new(contender.name.clone()), Capacity::new(contender.max)) else { continue };
        let key = Key { name, max };
        let rank = entries.iter().filter(|entry| entry.key == key).count();
        // Which slot it has may not be on record yet.
        let held = (contender.standing == Standing::Held)
            .then(|| contender.slot().unwrap_or_else(|| u32::try_from(rank).unwrap_or(0)));
        let record = contender.record.unwrap_or_default();
        let pid = |pid: u32| i32::try_from(pid).unwrap_or(0);
        entries.push(Entry {
            key,
            held: 0,
            slot: held,
            host: record.host,
            pid: pid(record.pid),
            command_pid: record.command_pid.map(pid),
            since: record.since_ms.saturating_mul(1000),
            rev: u64::try_from(contender.revision).unwrap_or(0),
            class: record.class.parse::<Class>().unwrap_or_default(),
            label: record.label.into_bytes(),
            until: record.until_ms.map(|until| until.saturating_mul(1000)).filter(|&until| until > clock::unix_us()),
            unknown: false,
        });
    }
    let held: Vec<usize> = entries
        .iter()
        .map(|entry| entries.iter().filter(|other| other.key == entry.key && other.slot.is_some()).count())
        .collect();
    for (entry, held) in entries.iter_mut().zip(held) {
        entry.held = u32::try_from(held).unwrap_or(u32::MAX);
    }
    entries
}

pub(super) fn available(args: &Args, cluster: &Cluster, name: &Name) -> Result<i32> {
    if let Some(dir) = existing_directory(args)? {
        // A run takes a slot there first.
        dir.ensure_writable()?;
    }
    let inspector = Inspector::new(&cluster.config).map_err(failure)?;
    let host = args.spread.then(etcd::host);
    // With --spread, this host's other contenders count too, and those without it have keys that tell of no host.
    let here = match space(args, cluster)? {
        Some(space) if args.spread => {
            let key = Key { name: name.clone(), max: Capacity::new(args.max)? };
            crate::handle::is_available(&Place::new(space, key)?, args.class, true)?
        }
        _ => true,
    };
    let available = here && inspector.available(name.as_bytes(), args.max, host.as_deref()).map_err(failure)?;
    Ok(if available { exit::OK } else { exit::NO })
}

pub(super) fn force(args: &Args, cluster: &Cluster, name: &Name, voice: &Voice) -> Result<i32> {
    let inspector = Inspector::new(&cluster.config).map_err(failure)?;
    Ok(say_released(inspector.force_release(name.as_bytes(), args.max).map_err(failure)?, voice))
}
