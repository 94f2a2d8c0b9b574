//! `--check`: is the claim that I run under still mine?

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

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

/// The variables that a COMMAND was given, by their names.
type Variables<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// Answers from the environment that COMMAND was given, and from the slot that it names. It tells of the innermost claim; one
/// further out is in the environment of a process above this one.
pub(crate) fn check(args: &Args, asked: Option<&Name>) -> Result<i32> {
    let dir = args.dir.clone().map(OsString::from);
    let outside = || Error::usage("not inside a claim: CLAIM_NAME and the like are not set");
    let name = Name::new(std::env::var_os("CLAIM_NAME").ok_or_else(outside)?.into_vec())?;
    let Some(outer) = asked.filter(|asked| **asked != name) else {
        return of(&name, dir, &|variable| std::env::var_os(variable));
    };
    let above = procfs::ancestors(Identity::of_this_process()?.process.pid)?;
    for &process in &above {
        let Some(environment) = procfs::environment(process) else { continue };
        let variable = |wanted: &str| variable(&environment, wanted);
        if variable("CLAIM_NAME").is_some_and(|name| name.as_bytes() == outer.as_bytes()) {
            return of(outer, dir, &variable);
        }
    }
    let path = dir.or_else(|| std::env::var_os("CLAIM_DIR")).filter(|path| !path.is_empty()).ok_or_else(outside)?;
    by_record(&path, outer, &above)
}

/// What a variable is in an environment as the kernel shows it.
fn variable(environment: &[u8], wanted: &str) -> Option<OsString> {
    let mut entries = environment.split(|&byte| byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(wanted.as_bytes())?.strip_prefix(b"="))?;
    Some(OsStr::from_bytes(value).to_owned())
}

/// Whether the claim of that name which those variables tell of is still held as they say.
fn of(name: &Name, dir: Option<OsString>, variable: &Variables<'_>) -> Result<i32> {
    let unset = |variable: &str| Error::usage(format!("not inside a claim: {variable} is not set"));
    let text = |name: &str| variable(name).and_then(|value| value.into_string().ok()).ok_or_else(|| unset(name));
    let number = |name: &str| -> Result<u64> {
        let value = text(name)?;
        value.parse().map_err(|_| Error::usage(format!("{name} is no number: {value}")))
    };
    let small = |name: &str| u32::try_from(number(name)?).map_err(|_| Error::usage(format!("{name} is too large")));
    let path = dir.or_else(|| variable("CLAIM_DIR")).filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| unset("CLAIM_DIR"))?;
    let (max, slot, fence) = (Capacity::new(small("CLAIM_MAX")?)?, small("CLAIM_SLOT")?, number("CLAIM_FENCE")?);
    let Some(dir) = Directory::existing(path.as_ref(), true)? else { return Ok(exit::NO) };
    if variable("CLAIM_BACKEND").is_some_and(|backend| backend == "etcd") {
        let lease = text("CLAIM_LEASE")?;
        let lease =
            u64::from_str_radix(&lease, 16).map_err(|_| Error::usage(format!("CLAIM_LEASE is no lease: {lease}")))?;
        let mine = beyond::slots(&dir, name)?
            .into_iter()
            .any(|it| (it.far.fence, it.far.lease) == (fence, lease) && it.is_good());
        return Ok(if mine { exit::OK } else { exit::NO });
    }
    let key = Key { name: name.clone(), max };
    let Some(holder) = Opened::at(&dir, &Layout::of(&key).slot(slot))? else { return Ok(exit::NO) };
    let mine = holder.record.live.fence == fence && holder.record.live.state == HELD;
    Ok(if mine { exit::OK } else { exit::NO })
}

/// By who is on record as a holder, where no process above has it in its environment (any more), or none that we may read.
fn by_record(path: &OsStr, name: &Name, above: &[i32]) -> Result<i32> {
    let nothing = || Error::usage(format!("not inside a claim on {name}"));
    let dir = Directory::existing(path.as_ref(), true)?.ok_or_else(nothing)?;
    let is_above = |pid: i32, command: Option<i32>| {
        above.contains(&pid) || command.is_some_and(|command| above.contains(&command))
    };
    let report = crate::inspect::inspect(&dir, Some(name))?;
    if report.entries.iter().any(|entry| entry.slot.is_some() && is_above(entry.pid, entry.command_pid)) {
        return Ok(exit::OK);
    }
    let mine = beyond::above(&dir, name, above)?;
    match mine.iter().any(Slot::is_good) {
        true => Ok(exit::OK),
        false if mine.is_empty() => Err(nothing()),
        false => Ok(exit::NO),
    }
}
