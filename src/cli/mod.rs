//! The command line: only this prints, and only this exits.

pub(crate) mod args;
mod beyond;
mod check;
#[cfg(feature = "etcd")]
mod cluster;
mod custody;
pub(crate) mod duration;
mod events;
mod exit;
mod master;
mod output;
mod quick;
mod run;
mod who;

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode as FileMode, OFlags};

use crate::acquire::Terms;
use crate::error::{Error, Result};
use crate::local::dir::{Directory, default_place};
use crate::name::{Capacity, Key, Name};
use args::{Args, Mode};
use output::{Voice, Volume};

/// What is done about a claim across hosts; `None`: it is one on this host.
type Across = fn(&Args, Option<&Name>, &Voice) -> Option<i32>;

/// The program `claim`. For a claim across hosts it becomes `claim-etcd`, which is beside it.
#[must_use]
pub fn main() -> i32 {
    run_program(hand_over)
}

/// The program `claim-etcd`.
#[cfg(feature = "etcd")]
#[must_use]
pub fn main_across_hosts() -> i32 {
    run_program(|args, name, voice| match cluster::Cluster::asked_for(args) {
        Ok(None) => None,
        Ok(Some(cluster)) => Some(status(cluster::main(args, &cluster, name.cloned(), voice), voice)),
        Err(error) => Some(status(Err(error), voice)),
    })
}

#[cfg(feature = "etcd")]
fn hand_over(args: &Args, _: Option<&Name>, voice: &Voice) -> Option<i32> {
    if !args.is_across_hosts() {
        if args.etcd.endpoints.is_some() {
            voice.say(&"warning: --endpoints changes nothing without --etcd: this claim is one on this host");
        }
        return None;
    }
    let become_it = || {
        let me = std::env::current_exe().map_err(|error| Error::system("find", "/proc/self/exe", error))?;
        let path = me.with_file_name("claim-etcd");
        let mask = nix::sys::signal::SigSet::thread_get_mask()
            .map_err(|errno| Error::system("ask for", "the signal mask", errno))?;
        let argv = std::iter::once(path.clone().into_os_string()).chain(std::env::args_os().skip(1));
        // Nothing has been changed yet of what COMMAND is to get as we got it.
        let program =
            crate::sys::spawn::Program::new(argv.map(run::to_c).collect(), run::with_variables(&[]), mask, vec![]);
        Err(Error::system("run", path, program.exec()))
    };
    Some(status(become_it(), voice))
}

#[cfg(not(feature = "etcd"))]
fn hand_over(args: &Args, _: Option<&Name>, voice: &Voice) -> Option<i32> {
    if !matches!(args.mode(), Mode::Check | Mode::Master)
        && std::env::var_os("CLAIM_ETCD").is_some_and(|endpoints| !endpoints.is_empty())
    {
        voice.error(&"CLAIM_ETCD is set, and this claim was built for one host only");
        return Some(exit::USAGE);
    }
    None
}

fn run_program(across: Across) -> i32 {
    keep_standard_numbers();
    let words: Vec<OsString> = std::env::args_os().collect();
    let args = match Args::read(&words) {
        Ok(args) => args,
        Err(error) if !error.use_stderr() => {
            // Help or version, asked for.
            let mut out = std::io::stdout();
            return match write!(out, "{}", error.render()).and_then(|()| out.flush()) {
                Ok(()) => exit::OK,
                Err(error) => {
                    let error = Error::system("write to", "standard output", error);
                    Voice::nameless(Volume::Quiet).error(&error);
                    exit::of(&error)
                }
            };
        }
        Err(error) => {
            // What is wrong, on one line; the rest of what clap has to say is in --help.
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            let what: Vec<_> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
            Voice::nameless(Volume::Quiet).error(&format_args!("{} (see claim --help)", what.join(" ")));
            return exit::USAGE;
        }
    };
    let volume = match (args.quiet, args.verbose) {
        (true, _) => Volume::Quiet,
        (_, true) => Volume::Verbose,
        _ => Volume::Normal,
    };
    let name = match args.name.clone().map(|name| Name::new(name.into_vec())).transpose() {
        Ok(name) => name,
        Err(error) => {
            Voice::nameless(volume).error(&error);
            return exit::of(&error);
        }
    };
    let voice = match &name {
        Some(name) => Voice::new(name, volume),
        None => Voice::nameless(volume),
    };
    if let Err(why) = args.check() {
        voice.error(&format_args!("{why} (see claim --help)"));
        return exit::USAGE;
    }
    if let Some(status) = across(&args, name.as_ref(), &voice) {
        return status;
    }
    let done = match (args.mode(), name) {
        (Mode::Run, Some(name)) => run::run(&args, name, &voice),
        (Mode::Acquire, Some(name)) => custody::acquire(&args, name, &voice),
        (Mode::Release, Some(name)) => custody::release(&args, name, &voice),
        (Mode::Available, Some(name)) => custody::available(&args, name),
        (Mode::Who, name) => who::who(&args, name.as_ref(), &voice),
        (Mode::Check, name) => check::check(&args, name.as_ref()),
        (Mode::Master, _) => master::master(&args, &voice),
        // Refused when the arguments were checked.
        (_, None) => Err(Error::usage("a NAME is needed")),
    };
    status(done, &voice)
}

fn status(done: Result<i32>, voice: &Voice) -> i32 {
    done.unwrap_or_else(|error| {
        voice.error(&error);
        exit::of(&error)
    })
}

/// Where a standard descriptor is closed, holds its number until COMMAND starts: a file of ours with the number of standard
/// error would get our messages into it. COMMAND finds it closed, as we did.
fn keep_standard_numbers() {
    for _ in 0..3 {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
        let standard = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
        let mut fds = standard.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::empty()));
        // One call for all three: poll(2) says POLLNVAL of a descriptor that is not open.
        let asked = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        if asked.is_ok() && fds.iter().all(|fd| !fd.revents().contains(PollFlags::NVAL)) {
            return;
        }
        if let Ok(placeholder) = rustix::fs::openat(CWD, "/dev/null", flags, FileMode::empty()) {
            std::mem::forget(placeholder);
        }
    }
}

/// The directory that --dir, CLAIM_DIR or the user's id name; made if need be.
fn directory(args: &Args) -> Result<Directory> {
    match &args.dir {
        Some(dir) => Directory::at(dir),
        None => Directory::from_env(),
    }
}

/// The same, but nothing is made: to look only.
fn existing_directory(args: &Args) -> Result<Option<Directory>> {
    let from_env = std::env::var_os("CLAIM_DIR").filter(|dir| !dir.is_empty());
    match args.dir.clone().or_else(|| from_env.map(Into::into)) {
        Some(dir) => Directory::existing(&dir, true),
        None => Directory::existing(&default_place(), false),
    }
}

fn key(args: &Args, name: Name) -> Result<Key> {
    Ok(Key { name, max: Capacity::new(args.max)? })
}

fn terms(args: &Args, label: Vec<u8>) -> Terms {
    Terms {
        class: args.class,
        queue_size: args.queue_size,
        at_least: args.at_least.unwrap_or_default(),
        spread: args.spread,
        label: args.label.clone().map_or(label, OsString::into_vec),
        on_behalf_of: None,
        lock_covers: false,
        tree: false,
        reusable: false,
        look_for_rings: true,
    }
}

/// The definition of the arguments, for what is generated from it: the man page and the completions.
#[must_use]
pub fn command() -> clap::Command {
    <Args as clap::CommandFactory>::command()
}
