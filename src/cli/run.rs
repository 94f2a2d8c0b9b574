//! `claim NAME -- COMMAND`.

use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;

use nix::sys::signal::Signal;

use crate::acquire::{Contender, Custody, Ended, Interrupts, Refusal, Refused, Terms};
use crate::cli::args::Args;
use crate::cli::events::{self, Eyes};
use crate::cli::output::{Voice, holder};
use crate::cli::{directory, duration, exit, key, terms};
use crate::clock::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::local::holder::Holder;
use crate::local::layout::{CLAIMS, SlotName, parse_key};
use crate::local::link::Release;
use crate::local::process;
use crate::name::Name;
use crate::supervise::signals::Signals;
use crate::supervise::{self, Attendant, End, Orders};
use crate::sys::signals::die_of;
use crate::sys::spawn::NotStarted;

pub(crate) fn run(args: &Args, name: Name, voice: &Voice) -> Result<i32> {
    let argv = argv(args);
    let signals = take_over_signals()?;
    let dir = directory(args)?;
    let file = args.events.as_deref().map(events::open).transpose()?;
    let mut eyes = Eyes::new(voice, file);
    let label = label(args, &argv);
    let mut contender = Contender::new(dir, key(args, name)?, terms(args, label))?;
    // Where COMMAND inherits the descriptor, the lock lives as long as COMMAND does.
    let inherits = args.tree || contender.place.me.in_container();
    contender.terms = Terms { lock_covers: inherits, tree: args.tree, ..contender.terms };
    contender.place.dir.hold_off_cleaners()?;

    let custody = match contend(args, &mut contender, &signals, None, &mut eyes)? {
        Had::Custody(custody) => custody,
        Had::Not(refused) => return Ok(not_had(args, &refused, voice)),
        Had::ForNobody => return Ok(i32::from(args.conflict_exit_code)),
    };
    voice.detail(&format_args!("acquired, slot {} of {}, fence {}", custody.slot, args.max, custody.fence));
    // Whatever comes of it, what was had is given back.
    let ended = run_command(args, argv, &contender, custody, &signals, inherits, voice);
    if let (Some(record), Err(_) | Ok(Err(_))) = (contender.record(), &ended) {
        // COMMAND has not run: others need not be kept from running it.
        record.live().waive_rest();
    }
    release(&mut contender, custody, &mut eyes, voice);
    // What is left to close and unmap, the end of the process does, and at less cost.
    std::mem::forget(contender);
    status(ended?, args, voice)
}

/// Becomes COMMAND (--exec), or runs it.
fn run_command(
    args: &Args,
    argv: Vec<CString>,
    contender: &Contender,
    custody: Custody,
    signals: &Signals,
    inherits: bool,
    voice: &Voice,
) -> Result<std::result::Result<End, NotStarted>> {
    let program = signals.program(argv, environment(contender, custody));
    let _inherited = match contender.record() {
        Some(record) if inherits => Some(record.inheritable()?),
        _ => None,
    };
    let mut registered = Registered { contender, custody, voice, quiet: args.quiet, failed: None };
    if args.exec {
        registered.started();
        return Ok(Err(NotStarted::NoExec(program.exec())));
    }
    let orders = Orders { tree: args.tree, kill_after: args.kill_after };
    let ended = supervise::run(&program, orders, signals, &mut registered);
    match registered.failed {
        Some(error) => Err(error),
        None => ended,
    }
}

/// What is shown for a COMMAND: its words.
pub(crate) fn label(args: &Args, argv: &[CString]) -> Vec<u8> {
    let words = || argv.iter().map(|word| word.as_bytes()).collect::<Vec<_>>().join(&b' ');
    args.shell_line.clone().map_or_else(words, OsString::into_vec)
}

/// What contending came to, for a command line.
pub(crate) enum Had {
    Custody(Custody),
    Not(Refused),
    /// The process that it was for has ended.
    ForNobody,
}

/// What ends the wait of a command line: a signal that would have ended it, or the end of the process that it waits for.
struct Ends<'a> {
    signals: &'a Signals,
    process: Option<BorrowedFd<'a>>,
    by: Option<Signal>,
}

impl Interrupts for Ends<'_> {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        [self.signals.as_fd()].into_iter().chain(self.process).collect()
    }

    fn ends(&mut self, number: usize) -> bool {
        if number == 0 {
            self.by = self.signals.next_that_ends();
        }
        number > 0 || self.by.is_some()
    }
}

/// Contends as the arguments say. A signal that ends a `claim` ends this one here, out of the queue.
pub(crate) fn contend(
    args: &Args,
    contender: &mut Contender,
    signals: &Signals,
    process: Option<BorrowedFd<'_>>,
    eyes: &mut Eyes,
) -> Result<Had> {
    let (once, until) = patience(args);
    contend_until(once, until, contender, signals, process, eyes)
}

/// Whether to try only once, and until when to wait.
pub(crate) fn patience(args: &Args) -> (bool, Deadline) {
    let wait = args.wait.filter(|wait| *wait < duration::FOR_EVER);
    let once = args.nonblock || wait.is_some_and(|wait| wait.is_zero());
    (once, wait.map_or(Deadline::NEVER, Deadline::after))
}

pub(crate) fn contend_until(
    once: bool,
    until: Deadline,
    contender: &mut Contender,
    signals: &Signals,
    process: Option<BorrowedFd<'_>>,
    eyes: &mut Eyes,
) -> Result<Had> {
    let mut ends = Ends { signals, process, by: None };
    let ended = contender.acquire(once, until, &mut ends, eyes);
    eyes.erase_line();
    match ended? {
        Ended::Acquired(custody) => {
            // Had in the same moment as a signal came: as if that had been first.
            if !once && let Some(signal) = signals.next_that_ends() {
                contender.release(custody, eyes)?;
                die_of(signal);
            }
            Ok(Had::Custody(custody))
        }
        Ended::Refused(refused) => Ok(Had::Not(refused)),
        Ended::Interrupted => match ends.by {
            Some(signal) => die_of(signal),
            None => Ok(Had::ForNobody),
        },
    }
}

pub(crate) fn take_over_signals() -> Result<Signals> {
    Signals::take_over().map_err(|error| Error::system("take over", "signals", error))
}

/// Says why the claim was not had; the status that goes with it.
pub(crate) fn not_had(args: &Args, refused: &Refused, voice: &Voice) -> i32 {
    let who = refused.holder.as_ref().map_or_else(|| "not to be had".to_owned(), holder);
    let waiting = refused.waiting;
    match &refused.reason {
        Refusal::Hopeless(why) => {
            voice.error(&format_args!("could never be had: {why}"));
            return exit::HOPELESS;
        }
        Refusal::Held => voice.say(&format_args!("{who}; {waiting} waiting")),
        Refusal::TimedOut => voice.say(&format_args!("timed out: {who}; {waiting} waiting")),
        Refusal::QueueFull { retry_after } => {
            voice.say(&format_args!("the queue is full: {who}; {waiting} waiting; retry after {retry_after}s"));
        }
        Refusal::Displaced { retry_after } => {
            voice.say(&format_args!(
                "displaced by a higher class: {who}; {waiting} waiting; retry after {retry_after}s"
            ));
        }
    }
    i32::from(args.conflict_exit_code)
}

/// The words of COMMAND, or of the shell that runs a line.
pub(crate) fn argv(args: &Args) -> Vec<CString> {
    let words = match &args.shell_line {
        Some(line) => {
            let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into());
            vec![shell, "-c".into(), line.clone()]
        }
        None => args.command.clone(),
    };
    words.into_iter().map(to_c).collect()
}

/// Arguments and variables come from the system as C strings: there is no NUL to cut at.
pub(crate) fn to_c(word: OsString) -> CString {
    let mut bytes = word.into_vec();
    bytes.retain(|&byte| byte != 0);
    CString::new(bytes).unwrap_or_default()
}

/// The environment, with what is to be known of the claim.
fn environment(contender: &Contender, custody: Custody) -> Vec<CString> {
    let place = &contender.place;
    let ours: [(&str, Vec<u8>); 6] = [
        ("CLAIM_NAME", place.key.name.as_bytes().to_vec()),
        ("CLAIM_MAX", place.key.max.to_string().into()),
        ("CLAIM_SLOT", custody.slot.to_string().into()),
        ("CLAIM_FENCE", custody.fence.to_string().into()),
        ("CLAIM_DIR", place.dir.path().as_os_str().as_encoded_bytes().to_vec()),
        ("CLAIM_BACKEND", b"local".to_vec()),
    ];
    with_variables(&ours)
}

/// The environment we have, with these variables set.
pub(crate) fn with_variables(ours: &[(&str, Vec<u8>)]) -> Vec<CString> {
    with_variables_on(std::env::vars_os(), ours)
}

/// That environment, with these variables set.
pub(crate) fn with_variables_on(
    env: impl Iterator<Item = (OsString, OsString)>,
    ours: &[(&str, Vec<u8>)],
) -> Vec<CString> {
    let line = |name: OsString, value: OsString| {
        let mut line = name;
        line.push("=");
        line.push(value);
        to_c(line)
    };
    let kept = env.filter(|(name, _)| ours.iter().all(|(our, _)| name != our));
    let set = ours.iter().map(|(name, value)| (OsString::from(name), OsString::from_vec(value.clone())));
    kept.chain(set).map(|(name, value)| line(name, value)).collect()
}

/// In the child. Whatever fails here, COMMAND must not run unrecorded.
pub(crate) fn register(contender: &Contender, custody: Custody) -> Result<bool> {
    let Some(record) = contender.record() else { return Ok(false) };
    contender.place.register(record, custody.slot, process::own_below(contender.place.me.process)?)
}

/// A COMMAND that is on record as holding the claim.
struct Registered<'a> {
    contender: &'a Contender,
    custody: Custody,
    voice: &'a Voice,
    quiet: bool,
    /// Why it could not be put on record. The child shares our memory until it has become COMMAND: what it leaves here, we
    /// find.
    failed: Option<Error>,
}

impl Attendant for Registered<'_> {
    fn register(&mut self) -> bool {
        register(self.contender, self.custody).unwrap_or_else(|error| {
            self.failed = Some(error);
            false
        })
    }

    /// What need not hold up COMMAND, however many claims there are to be looked through.
    fn started(&mut self) {
        // The times once more, now that the words of the record have been written to for the last time.
        let kept = self.contender.record().map_or(Ok(()), Holder::keep_from_cleaners);
        let warned = if self.quiet { Ok(()) } else { warn_of_other_capacities(self.contender, self.voice) };
        for error in [kept, warned].into_iter().filter_map(Result::err) {
            self.voice.error(&error);
        }
    }

    fn complain(&mut self, error: &Error) {
        self.voice.error(error);
    }
}

/// Gives the claim back at the end of a run. A failure is said; the status stays COMMAND's.
fn release(contender: &mut Contender, custody: Custody, eyes: &mut Eyes, voice: &Voice) {
    match contender.release(custody, eyes) {
        Ok(Release::Released) => voice.detail(&format_args!("released")),
        Ok(Release::WasGone) => voice.error(&format_args!("the claim was taken away before its end")),
        Err(error) => voice.error(&format_args!("not released: {error}")),
    }
}

pub(crate) fn status(ended: std::result::Result<End, NotStarted>, args: &Args, voice: &Voice) -> Result<i32> {
    match ended {
        Ok(End::Exited(code)) => Ok(code),
        Ok(End::Killed { signal, by_terminal }) => {
            // Ctrl-C was for us as well. A shell looks at how we ended to know whether to go on with its script, as it
            // would look at COMMAND.
            if by_terminal && let Ok(signal) = signal.try_into() {
                die_of(signal);
            }
            Ok(exit::KILLED + signal)
        }
        Ok(End::Unseen) => Err(Error::system("learn the end of", "COMMAND", rustix::io::Errno::CHILD)),
        Err(NotStarted::Withdrawn) => {
            voice.error(&format_args!("the claim was taken away before COMMAND could start"));
            Ok(i32::from(args.conflict_exit_code))
        }
        Err(NotStarted::NoProcess(error)) => Err(Error::system("start a process for", "COMMAND", error)),
        Err(NotStarted::NoExec(error)) => Ok(cannot_run(&error, args, voice)),
    }
}

fn cannot_run(error: &std::io::Error, args: &Args, voice: &Voice) -> i32 {
    let command = argv(args).swap_remove(0);
    voice.error(&format_args!("cannot run {}: {error}", crate::name::printable(command.as_bytes())));
    match error.kind() {
        std::io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::CANNOT_RUN,
    }
}

/// Says that the name is in use with another capacity.
pub(crate) fn other_capacity(other: u32, ours: u32) -> String {
    format!("warning: also in use with a capacity of {other}, which is another claim than this one of {ours}")
}

/// Two capacities of one name are two claims, which is rarely meant.
fn warn_of_other_capacities(contender: &Contender, voice: &Voice) -> Result<()> {
    let place = &contender.place;
    let Some((stem, _)) = place.layout.key().rsplit_once('@') else { return Ok(()) };
    let mut others = Vec::new();
    for file in place.dir.list(CLAIMS)? {
        let Some(slot) = SlotName::parse(&file) else { continue };
        let is_other = slot.max != place.key.max && slot.key.rsplit_once('@').is_some_and(|(it, _)| it == stem);
        if is_other && parse_key(&slot.key).is_some() && !others.contains(&slot.max) {
            others.push(slot.max);
        }
    }
    for max in others {
        let key = crate::name::Key { name: place.key.name.clone(), max };
        let other = crate::local::Place {
            layout: crate::local::layout::Layout::of(&key),
            key,
            dir: place.dir.clone(),
            me: place.me.clone(),
        };
        let in_use = match other.is_held() {
            // Somebody has it: who that is matters only to those who want it.
            Err(error) if error.kind() == ErrorKind::Unreadable => true,
            held => held?,
        };
        if in_use {
            voice.say(&other_capacity(max.get(), place.key.max.get()));
        }
    }
    Ok(())
}
