//! `--acquire`, `--release` and `--available`: claims without a COMMAND.

use std::io::Write;
use std::os::fd::AsFd;

use crate::acquire::Contender;
use crate::cli::args::Args;
use crate::cli::events::{self, Eyes};
use crate::cli::output::Voice;
use crate::cli::run::{Had, contend, not_had, take_over_signals};
use crate::cli::{directory, existing_directory, exit, key, terms};
use crate::error::{Error, Result};
use crate::local::Place;
use crate::local::process;
use crate::local::reclaim::Occupant;
use crate::name::Name;
use crate::record::Record;

pub(crate) fn acquire(args: &Args, name: Name, voice: &Voice) -> Result<i32> {
    let pid = args.pid.unwrap_or(0);
    let (process, pidfd) = process::find(pid)?.ok_or_else(|| no_such_process(pid))?;
    let signals = take_over_signals()?;
    let dir = directory(args)?;
    let file = args.events.as_deref().map(events::open).transpose()?;
    let mut eyes = Eyes::new(voice, file);
    let label = std::fs::read(format!("/proc/{}/comm", process.pid)).unwrap_or_default();
    let mut terms = terms(args, label.trim_ascii_end().to_vec());
    terms.on_behalf_of = Some(process);
    let mut contender = Contender::new(dir, key(args, name)?, terms)?;
    if let Some((_, fence)) = contender.held_by(process)? {
        voice.detail(&format_args!("held by process {} already", process.pid));
        return print(fence);
    }
    match contend(args, &mut contender, &signals, Some(pidfd.as_fd()), &mut eyes)? {
        Had::ForNobody => Err(no_such_process(process.pid)),
        Had::Not(refused) => Ok(not_had(args, &refused, voice)),
        Had::Custody(custody) => {
            // It may have ended while we waited for it.
            if process::has_ended(pidfd.as_fd())? {
                contender.release(custody, &mut eyes)?;
                return Err(no_such_process(process.pid));
            }
            voice.detail(&format_args!("acquired for process {}, fence {}", process.pid, custody.fence));
            print(custody.fence.get())
        }
    }
}

fn no_such_process(pid: i32) -> Error {
    Error::usage(format!("no such process: {pid}"))
}

fn print(fence: u64) -> Result<i32> {
    let mut out = std::io::stdout();
    out.write_all(format!("{fence}\n").as_bytes())
        .map_err(|error| Error::system("write to", "standard output", error))?;
    Ok(exit::OK)
}

pub(crate) fn release(args: &Args, name: Name, voice: &Voice) -> Result<i32> {
    let Some(dir) = existing_directory(args)? else {
        voice.say(&"nothing to release");
        return Ok(exit::NO);
    };
    let place = Place::new(dir, key(args, name)?)?;
    let whose = |record: Option<&Record>| match args.pid {
        None => true,
        Some(pid) => record.is_some_and(|record| {
            record.body.process.pid == pid && record.body.pid_namespace == place.me.pid_namespace
        }),
    };
    let mut released = 0;
    for slot in place.slots_in_use(&place.layout, 0..place.key.max.get())? {
        if args.pid.is_some() && place.lay_to_rest(slot, &whose)? {
            released += 1;
            continue;
        }
        // Of the dead there is nothing to take away; a force removes their records all the same.
        let alive = !matches!(place.occupant(slot), Ok(Occupant::Dead(_)));
        if place.force(slot, &whose)? && alive {
            released += 1;
        }
    }
    if released > 0 && !place.wake_first(place.tickets()?)? {
        place.tidy()?;
    }
    Ok(say_released(released, voice))
}

/// How a `--release` ended, in words and as a status.
pub(super) fn say_released(released: usize, voice: &Voice) -> i32 {
    if released == 0 {
        voice.say(&"nothing to release");
        return exit::NO;
    }
    voice.detail(&format_args!("{released} released"));
    exit::OK
}

pub(crate) fn available(args: &Args, name: Name) -> Result<i32> {
    let Some(dir) = existing_directory(args)? else { return Ok(exit::OK) };
    dir.ensure_writable()?;
    let place = Place::new(dir, key(args, name)?)?;
    Ok(if crate::handle::is_available(&place, args.class, args.spread)? { exit::OK } else { exit::NO })
}
