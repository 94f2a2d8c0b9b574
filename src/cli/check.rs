//! `--check`: is the claim that I run under still mine?

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use crate::cli::args::Args;
use crate::cli::beyond::{self, Slot};
use crate::cli::exit;
use crate::error::{Error, Result};
use crate::local::dir::Directory;
use crate::local::holder::Opened;
use crate::local::identity::Identity;
use crate::local::layout::Layout;
use crate::local::procfs;
use crate::name::{Capacity, Key, Name};
use crate::record::HELD;

/// Answers from the environment that COMMAND was given, and from the slot that it names.
pub(crate) fn check(args: &Args, asked: Option<&Name>) -> Result<i32> {
    let outside = || Error::usage("not inside a claim: CLAIM_NAME and the like are not set");
    let number = |variable: &str| -> Result<u64> {
        let value = std::env::var(variable).map_err(|_| outside())?;
        value.parse().map_err(|_| Error::usage(format!("{variable} is no number: {value}")))
    };
    let path = args.dir.clone().map(OsString::from).or_else(|| std::env::var_os("CLAIM_DIR"));
    let path = path.filter(|path| !path.is_empty()).ok_or_else(outside)?;
    let name = Name::new(std::env::var_os("CLAIM_NAME").ok_or_else(outside)?.into_vec())?;
    if let Some(asked) = asked
        && *asked != name
    {
        return of_another(&path, asked);
    }
    let max = Capacity::new(u32::try_from(number("CLAIM_MAX")?).map_err(|_| Error::usage("CLAIM_MAX is too large"))?)?;
    let slot = u32::try_from(number("CLAIM_SLOT")?).map_err(|_| Error::usage("CLAIM_SLOT is too large"))?;
    let fence = number("CLAIM_FENCE")?;
    let Some(dir) = Directory::existing(path.as_ref(), true)? else { return Ok(exit::NO) };
    if std::env::var_os("CLAIM_BACKEND").is_some_and(|backend| backend == "etcd") {
        let lease = std::env::var("CLAIM_LEASE").map_err(|_| outside())?;
        let lease =
            u64::from_str_radix(&lease, 16).map_err(|_| Error::usage(format!("CLAIM_LEASE is no lease: {lease}")))?;
        let mine = beyond::slots(&dir, &name)?
            .into_iter()
            .any(|it| (it.far.fence, it.far.lease) == (fence, lease) && it.is_good());
        return Ok(if mine { exit::OK } else { exit::NO });
    }
    let Some(holder) = Opened::at(&dir, &Layout::of(&Key { name, max }).slot(slot))? else { return Ok(exit::NO) };
    let mine = holder.record.live.fence == fence && holder.record.live.state == HELD;
    Ok(if mine { exit::OK } else { exit::NO })
}

/// The variables tell of the innermost claim. One further out is held by a process above this one.
fn of_another(path: &OsString, name: &Name) -> Result<i32> {
    let nothing = || Error::usage(format!("not inside a claim on {name}"));
    let dir = Directory::existing(path.as_ref(), true)?.ok_or_else(nothing)?;
    let above = procfs::ancestors(Identity::of_this_process()?.process.pid)?;
    let is_above = |pid: i32, command: Option<i32>| {
        above.contains(&pid) || command.is_some_and(|command| above.contains(&command))
    };
    let report = crate::inspect::inspect(&dir, Some(name))?;
    if report.entries.iter().any(|entry| entry.slot.is_some() && is_above(entry.pid, entry.command_pid)) {
        return Ok(exit::OK);
    }
    let mine = beyond::above(&dir, name, &above)?;
    match mine.iter().any(Slot::is_good) {
        true => Ok(exit::OK),
        false if mine.is_empty() => Err(nothing()),
        false => Ok(exit::NO),
    }
}
