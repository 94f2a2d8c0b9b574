//! The command line across hosts: the same modes, with etcd behind this host's claim directory.

mod look;
mod run;
mod wait;

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::cli::args::{Args, Mode};
use crate::cli::output::Voice;
use crate::error::{Error, ErrorKind, Result};
use crate::etcd::{self, Config, Options};
use crate::local::dir::Directory;
use crate::name::Name;

const TTL: Duration = Duration::from_secs(10);
const SHORTEST_TTL: Duration = Duration::from_secs(1);
/// What COMMAND has between SIGTERM and SIGKILL when the claim is lost: this, or a quarter of the TTL if that is less.
const GRACE: Duration = Duration::from_secs(5);

/// Where claims across hosts are, and the times that hold there.
pub(crate) struct Cluster {
    config: Config,
    ttl: Duration,
    /// From SIGTERM to SIGKILL, when `claim` itself stops COMMAND.
    grace: Duration,
    /// From SIGKILL to the end of trust.
    margin: Duration,
}

impl Cluster {
    /// `None`: the claim is one on this host.
    pub(crate) fn asked_for(args: &Args) -> Result<Option<Self>> {
        let options = &args.etcd;
        let env = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        if !args.is_across_hosts() {
            return Ok(None);
        }
        if args.exec {
            return Err(Error::usage("--exec works on one host only: across hosts, somebody has to keep the session"));
        }
        if args.acquire || args.pid.is_some() {
            return Err(Error::usage("--acquire and --pid work on one host only"));
        }
        let ttl = options.ttl.unwrap_or(TTL);
        if ttl < SHORTEST_TTL {
            return Err(Error::usage("--ttl takes at least 1s"));
        }
        if args.kill_after.is_some_and(|after| after > ttl / 2) {
            return Err(Error::usage("--kill-after takes at most half the TTL across hosts"));
        }
        let resolved = Options {
            endpoints: options.etcd.clone().filter(|etcd| !etcd.is_empty()).or_else(|| options.endpoints.clone()),
            user: options.user.clone(),
            password_file: options.password_file.clone(),
            cacert: options.cacert.clone(),
            cert: options.cert.clone(),
            key: options.key.clone(),
            dial_timeout: options.dial_timeout,
            prefix: options.etcd_prefix.clone(),
        };
        let config = Config::resolve(&resolved, &env).map_err(failure)?;
        let grace = args.kill_after.unwrap_or_else(|| GRACE.min(ttl / 4));
        // Dying takes milliseconds; a busy machine takes longer to come to it.
        let margin = (ttl / 20).clamp(Duration::from_millis(100), Duration::from_secs(1));
        Ok(Some(Self { config, ttl, grace, margin }))
    }

    /// Where this host's contenders meet.
    fn space(&self, dir: &Directory) -> Result<Directory> {
        dir.space(&self.space_id())
    }

    /// Prefix and endpoints in a word. In which order the endpoints were named is all the same.
    fn space_id(&self) -> String {
        let mut endpoints: Vec<String> = self.config.endpoints().iter().map(ToString::to_string).collect();
        endpoints.sort();
        let mut all = Sha256::new();
        all.update(self.config.prefix());
        for endpoint in endpoints {
            all.update([0]);
            all.update(endpoint);
        }
        all.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The program, across hosts.
pub(crate) fn main(args: &Args, cluster: &Cluster, name: Option<Name>, voice: &Voice) -> Result<i32> {
    match (args.mode(), name) {
        (Mode::Run, Some(name)) => run::run(args, cluster, name, voice),
        (Mode::Release, Some(name)) => look::force(args, cluster, &name, voice),
        (Mode::Available, Some(name)) => look::available(args, cluster, &name),
        (Mode::Who, name) => look::who(args, cluster, name.as_ref(), voice),
        // Refused, or seen to be no business of etcd's, before it came to this.
        (Mode::Acquire | Mode::Check | Mode::Master, _) | (_, None) => Err(Error::usage("nothing to do across hosts")),
    }
}

/// A failure of the etcd layer as one of ours. None of its messages has a password in it.
fn failure(error: etcd::Error) -> Error {
    let kind = match error.kind() {
        etcd::ErrorKind::Usage => ErrorKind::Usage,
        etcd::ErrorKind::Unreachable | etcd::ErrorKind::Refused => ErrorKind::NoSession,
        _ => ErrorKind::System,
    };
    Error::told(kind, error.to_string())
}
