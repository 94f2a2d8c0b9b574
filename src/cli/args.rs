//! The one definition of the command line: parsing, help, man page and completions come from it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, ValueHint};

use crate::class::Class;
use crate::cli::duration::parse as duration;
use crate::cli::quick;
#[cfg(feature = "etcd")]
use crate::etcd::Secret;

/// Hold a name while a command runs: one process at a time, or N.
///
/// A claim is a name that at most N holders have at once (N = 1 unless --max says otherwise), on this host, or across hosts
/// with --etcd. It is held
/// until it is released, or until the process that holds it exits or dies in whatever way. Nobody cleans up after a crash.
#[derive(Debug, Clone, PartialEq, Eq, Parser)]
#[command(
    name = "claim",
    bin_name = "claim",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    args_override_self = true,
    override_usage = "claim [OPTIONS] NAME [--] COMMAND [ARG...]\n       \
                      claim [OPTIONS] NAME -c 'SHELL LINE'\n       \
                      claim --acquire NAME --pid PID\n       \
                      claim --release NAME --pid PID | --force\n       \
                      claim --who [NAME] [--json | --watch]\n       \
                      claim --available NAME\n       \
                      claim --check [NAME]\n       \
                      claim --master -- COMMAND [ARG...]"
)]
pub(crate) struct Args {
    /// The name to hold: 1 to 4096 bytes, any but NUL.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<OsString>,

    /// What to run while the name is held.
    #[arg(value_name = "COMMAND", trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,

    /// At most N holders. The capacity is part of the identity: the same name with another N is another claim.
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max: u32,

    /// Give up after DUR (as `500ms`, `2.5`, `10s`, `1m30s`, `2h`); 0 tries once. Without it: wait for ever.
    #[arg(short, long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,

    /// Try once.
    #[arg(short, long)]
    pub(crate) nonblock: bool,

    /// The exit status when the claim was not had.
    #[arg(short = 'E', long, value_name = "N", default_value_t = CONFLICT)]
    pub(crate) conflict_exit_code: u8,

    /// A freed slot goes to the oldest waiter of the highest class that has one.
    #[arg(long, value_name = "CLASS", value_enum, default_value_t)]
    pub(crate) class: Class,

    /// At most K waiters: a newcomer to a full queue displaces the newest waiter of the lowest class under its own, or is
    /// refused. 0: never wait.
    #[arg(long, value_name = "K")]
    pub(crate) queue_size: Option<u32>,

    /// Send SIGKILL to COMMAND (with --tree: to all it started), DUR after a SIGTERM was passed on.
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) kill_after: Option<Duration>,

    /// Replace claim by COMMAND; the claim lives as long as that process.
    #[arg(short = 'F', long, visible_alias = "no-fork")]
    pub(crate) exec: bool,

    /// Hold until every process that COMMAND started has ended, daemons too.
    #[arg(long)]
    pub(crate) tree: bool,

    /// Keep the slot taken until DUR after it was had, also when COMMAND has ended sooner, however it ended.
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) at_least: Option<Duration>,

    /// What --who shows; without it: COMMAND.
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<OsString>,

    /// The claim directory; without it: $CLAIM_DIR, else /run/lock/claim-UID or /tmp/claim-UID.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,

    /// Append one line of JSON to FILE for everything that happens to this claim.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) events: Option<PathBuf>,

    /// At most one slot per host, so that N slots are N hosts; without --etcd: at most one.
    #[arg(long)]
    pub(crate) spread: bool,

    #[cfg(feature = "etcd")]
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,

    /// Run SHELL LINE by $SHELL -c (/bin/sh where unset).
    #[arg(short = 'c', value_name = "SHELL LINE", allow_hyphen_values = true)]
    pub(crate) shell_line: Option<OsString>,

    /// Say on standard error what happens.
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Say nothing but errors.
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Hold NAME for another process (a script: `--pid $$`), print the fence, and return.
    #[arg(long, group = "mode", requires = "pid")]
    pub(crate) acquire: bool,

    /// Give up what PID holds, or with --force what anybody holds.
    #[arg(long, group = "mode")]
    pub(crate) release: bool,

    /// Show who holds and who waits.
    #[arg(long, group = "mode")]
    pub(crate) who: bool,

    /// Exit 0 if NAME could be had now, 1 if not.
    #[arg(long, group = "mode")]
    pub(crate) available: bool,

    /// Inside COMMAND: exit 0 if the claim I run under is still mine, 1 if not.
    #[arg(long, group = "mode")]
    pub(crate) check: bool,

    /// Make a private claim directory, export it as CLAIM_DIR, run COMMAND, and remove it.
    #[arg(long, group = "mode")]
    pub(crate) master: bool,

    /// The process that --acquire and --release are for.
    #[arg(long, value_name = "PID", allow_hyphen_values = true)]
    pub(crate) pid: Option<i32>,

    /// With --release: whoever holds it, living or not; also removes records that cannot be read.
    #[arg(long, requires = "release")]
    pub(crate) force: bool,

    /// With --who: one JSON object a line.
    #[arg(long, requires = "who")]
    pub(crate) json: bool,

    /// With --who: go on until interrupted. With --json: a line whenever something changes.
    #[arg(long, requires = "who")]
    pub(crate) watch: bool,

    /// Accepted, as flock(1) has it: a claim is exclusive anyway.
    #[arg(short = 'x', long, short_alias = 'e', action = ArgAction::SetTrue)]
    pub(crate) exclusive: bool,

    /// Accepted, as flock(1) has it: COMMAND inherits no descriptor anyway.
    #[arg(short = 'o', long)]
    pub(crate) close: bool,
}

/// Claims across hosts.
#[cfg(feature = "etcd")]
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct EtcdArgs {
    /// Claim across hosts, through etcd at ENDPOINTS (as `host:port`, `https://host:port`; comma-separated). CLAIM_ETCD
    /// in the environment switches this on as well.
    #[arg(long, value_name = "ENDPOINTS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub(crate) etcd: Option<String>,

    /// Across hosts: how long a silent holder stays the holder; at least 1s. Without it: 10s.
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,

    /// Where etcd is, if --etcd does not say so; without it: $CLAIM_ETCD, else $ETCDCTL_ENDPOINTS, else 127.0.0.1:2379.
    #[arg(long, value_name = "ENDPOINTS")]
    pub(crate) endpoints: Option<String>,

    /// The user of etcd's, as NAME or NAME:PASSWORD; without it: $ETCDCTL_USER. A password on a command line can be seen
    /// by others: better --password-file, or $ETCDCTL_PASSWORD.
    #[arg(long, value_name = "NAME[:PASSWORD]", value_parser = secret)]
    pub(crate) user: Option<Secret>,

    /// The file that the user's password is in.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) password_file: Option<PathBuf>,

    /// The certificate of the authority that etcd's is to be signed by; without it: $ETCDCTL_CACERT, else the system's.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) cacert: Option<PathBuf>,

    /// Our own certificate; without it: $ETCDCTL_CERT.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) cert: Option<PathBuf>,

    /// The key of our own certificate; without it: $ETCDCTL_KEY.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) key: Option<PathBuf>,

    /// How long the first session may take to come about; without it: $ETCDCTL_DIAL_TIMEOUT, else 5s.
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) dial_timeout: Option<Duration>,

    /// Where in etcd the claims are; without it: /claim/v1/.
    #[arg(long, value_name = "PREFIX")]
    pub(crate) etcd_prefix: Option<String>,
}

/// What is not to be seen in a message.
#[cfg(feature = "etcd")]
fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text))
}

/// The exit status when the claim was not had, unless -E names another.
const CONFLICT: u8 = 75;

/// What the command line asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Run,
    Acquire,
    Release,
    Who,
    Available,
    Check,
    Master,
}

impl Args {
    pub(crate) fn mode(&self) -> Mode {
        match self {
            _ if self.acquire => Mode::Acquire,
            _ if self.release => Mode::Release,
            _ if self.who => Mode::Who,
            _ if self.available => Mode::Available,
            _ if self.check => Mode::Check,
            _ if self.master => Mode::Master,
            _ => Mode::Run,
        }
    }

    /// Whether the claim is one across hosts. --check asks no server, and --master makes a directory on this host.
    #[cfg(feature = "etcd")]
    pub(crate) fn is_across_hosts(&self) -> bool {
        let in_env = || std::env::var_os("CLAIM_ETCD").is_some_and(|endpoints| !endpoints.is_empty());
        !matches!(self.mode(), Mode::Check | Mode::Master) && (self.etcd.etcd.is_some() || in_env())
    }

    /// Parses; [`check`](Self::check) does what the definition above cannot say.
    pub(crate) fn read(words: &[OsString]) -> Result<Self, clap::Error> {
        match quick::read(words) {
            Some(args) => Ok(args),
            None => Self::read_defined(words),
        }
    }

    /// What a command line without any option says, but for NAME and COMMAND.
    pub(crate) fn plain() -> Self {
        Self {
            name: None,
            command: Vec::new(),
            max: 1,
            wait: None,
            nonblock: false,
            conflict_exit_code: CONFLICT,
            class: Class::default(),
            queue_size: None,
            kill_after: None,
            exec: false,
            tree: false,
            at_least: None,
            label: None,
            dir: None,
            events: None,
            spread: false,
            #[cfg(feature = "etcd")]
            etcd: EtcdArgs::default(),
            shell_line: None,
            verbose: false,
            quiet: false,
            acquire: false,
            release: false,
            who: false,
            available: false,
            check: false,
            master: false,
            pid: None,
            force: false,
            json: false,
            watch: false,
            exclusive: false,
            close: false,
        }
    }

    pub(crate) fn read_defined(words: &[OsString]) -> Result<Self, clap::Error> {
        let mut args = match Self::try_parse_from(words) {
            Ok(args) if args.master => Self::read_master(words)?,
            Ok(args) => args,
            Err(error) if is_master(words) && error.use_stderr() => Self::read_master(words)?,
            Err(error) => return Err(error),
        };
        // `claim -- -name -- COMMAND`: the first `--` was for NAME, this one ends the options, of which there were none.
        if args.command.len() > 1 && args.command[0] == "--" {
            args.command.remove(0);
        }
        Ok(args)
    }

    /// --master takes no NAME: what would be one is COMMAND. So one is put in, and taken out again.
    fn read_master(words: &[OsString]) -> Result<Self, clap::Error> {
        let Some(at) = words.iter().position(|word| word == "--master") else { return Self::try_parse_from(words) };
        let mut with_name = words.to_vec();
        with_name.insert(at + 1, "master".into());
        let mut args = Self::try_parse_from(with_name)?;
        args.name = None;
        Ok(args)
    }

    /// What goes with what. The error is for people.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mode = self.mode();
        let runs = matches!(mode, Mode::Run | Mode::Master);
        let has_command = !self.command.is_empty() || self.shell_line.is_some();
        if self.nonblock && self.wait.is_some() {
            return Err("-n and -w exclude each other".into());
        }
        if self.shell_line.is_some() && !self.command.is_empty() {
            return Err("-c takes the whole command: no further words".into());
        }
        if runs && !has_command {
            return Err(match self.name {
                None if mode == Mode::Run => "a NAME and a COMMAND are needed".into(),
                _ => "a COMMAND is needed".into(),
            });
        }
        if !runs && has_command {
            return Err("there is nothing to run a COMMAND for".into());
        }
        if self.name.is_none() && !matches!(mode, Mode::Who | Mode::Check | Mode::Master) {
            return Err("a NAME is needed".into());
        }
        if self.pid.is_some() && !matches!(mode, Mode::Acquire | Mode::Release) {
            return Err("--pid goes with --acquire and --release".into());
        }
        if mode == Mode::Release && self.pid.is_some() == self.force {
            return Err("--release takes either --pid PID or --force".into());
        }
        if self.pid.is_some_and(|pid| pid <= 0) {
            return Err("--pid takes the number of a process".into());
        }
        if self.exec && (self.tree || self.kill_after.is_some()) {
            return Err("with --exec nobody is left for --tree or --kill-after".into());
        }
        if self.exec && mode == Mode::Master {
            return Err("with --exec nobody is left to remove the directory of --master".into());
        }
        if self.dir.is_some() && mode == Mode::Master {
            return Err("--master makes a directory of its own: no --dir".into());
        }
        if self.dir.as_ref().is_some_and(|dir| dir.as_os_str().is_empty()) {
            return Err("--dir is empty".into());
        }
        Ok(())
    }
}

/// Whether --master stands among the leading options.
fn is_master(words: &[OsString]) -> bool {
    words
        .iter()
        .skip(1)
        .take_while(|word| word.as_encoded_bytes().starts_with(b"-") && *word != "--")
        .any(|word| word == "--master")
}
