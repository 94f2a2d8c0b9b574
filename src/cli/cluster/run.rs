//! `claim --etcd NAME -- COMMAND`.
//!
//! First a slot of this host's, by the queue of this host; with it, one contender in etcd. Released the other way round.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use crate::acquire::{Contender, Custody, Refusal, Refused, Terms};
use crate::cli::args::Args;
use crate::cli::cluster::wait::{Decided, Wait};
use crate::cli::cluster::{Cluster, failure, wait};
use crate::cli::events::{self, Eyes, Stage};
use crate::cli::output::Voice;
use crate::cli::run::{
    Had, argv, contend_until, label, not_had, other_capacity, patience, register, status, take_over_signals,
    with_variables_on,
};
use crate::cli::{directory, exit, key, terms};
use crate::clock::{self, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::etcd::{self, Bid, Held};
use crate::events::Happening;
use crate::fence::Fence;
use crate::local::dir::Directory;
use crate::local::link::Release;
use crate::local::procfs;
use crate::name::Name;
use crate::record::LiveWords;
use crate::supervise::keeper::{Duties, Work};
use crate::supervise::kept::{Ended, Kept};
use crate::supervise::link::{Facts, Holding};
use crate::supervise::signals::Signals;
use crate::sys::signals::die_of;

pub(super) fn run(args: &Args, cluster: &Cluster, name: Name, voice: &Voice) -> Result<i32> {
    let (once, until) = patience(args);
    let began = clock::monotonic_ns();
    if !procfs::is_ours()? {
        // What COMMAND starts could not be found, and so not be stopped in time.
        let why = "it is of another pid namespace, and what COMMAND starts could not be stopped in time";
        return Err(Error::of(ErrorKind::System, "use", "/proc", why));
    }
    let signals = take_over_signals()?;
    let dir = directory(args)?;
    dir.hold_off_cleaners()?;
    let space = cluster.space(&dir)?;
    let file = args.events.as_deref().map(events::open).transpose()?;
    let mut eyes = Eyes::new(voice, file);
    eyes.set_stage(Stage::Beyond { queued: false });
    let argv = argv(args);
    let mut contender = Contender::new(space, key(args, name)?, terms(args, label(args, &argv)))?;
    let inherits = args.tree || contender.place.me.in_container();
    // `--at-least` is etcd's to keep: it counts from when the claim is had there, and this host's slot is not the claim.
    let at_least = Duration::ZERO;
    contender.terms = Terms { lock_covers: inherits, tree: args.tree, at_least, ..contender.terms };
    let mut run = Run { args, cluster, voice, dir, signals, argv, contender, eyes, inherits, began };
    loop {
        let Run { contender, signals, eyes, .. } = &mut run;
        let custody = match contend_until(once, until, contender, signals, None, eyes)? {
            Had::Custody(custody) => custody,
            Had::Not(refused) => return Ok(not_had(args, &run.with_holder(refused), voice)),
            Had::ForNobody => return Ok(i32::from(args.conflict_exit_code)),
        };
        if let Some(status) = run.with_slot(custody, once, until)? {
            return Ok(status);
        }
    }
}

/// One run of the program.
struct Run<'a> {
    args: &'a Args,
    cluster: &'a Cluster,
    voice: &'a Voice,
    /// The claim directory, as COMMAND is to know it.
    dir: Directory,
    signals: Signals,
    argv: Vec<CString>,
    contender: Contender,
    eyes: Eyes,
    /// COMMAND inherits the descriptor of the record, so that the lock lives as long as COMMAND does.
    inherits: bool,
    began: u64,
}

impl Run<'_> {
    /// With a slot of this host's: contends in etcd, and runs COMMAND. `None`: somebody of a higher class goes first.
    fn with_slot(&mut self, custody: Custody, once: bool, until: Deadline) -> Result<Option<i32>> {
        let holding = Holding::new()?;
        // Before there is a thread.
        let kept = match self.keeper(custody, &holding) {
            Ok(kept) => kept,
            Err(error) => return self.give_up(custody, None).and(Err(error)),
        };
        let mut far = match self.contend(&holding, once, until) {
            Ok(far) => far,
            Err(error) => return self.give_up(custody, None).and(Err(error)),
        };
        // Never to wait is never to wait in etcd either.
        let bounded = self.args.queue_size == Some(0) && !once;
        let wait = Wait {
            contender: &self.contender,
            dir: &self.dir,
            far: &far,
            kept: &kept,
            signals: &self.signals,
            eyes: &mut self.eyes,
            voice: self.voice,
            once: once || bounded,
            began: self.began,
        };
        let decided = wait.until_decided();
        self.eyes.erase_line();
        let not = match decided {
            Ok(Decided::Held(held)) => return self.hold(custody, &mut far, held, kept, &holding).map(Some),
            Ok(Decided::Overtaken) => {
                drop(kept);
                self.told(far.release());
                self.contender.step_back(custody, &mut self.eyes)?;
                return Ok(None);
            }
            other => other,
        };
        drop(kept);
        // Not known to etcd any more, before the next of this host goes there.
        let released = far.release();
        let queued = matches!(self.eyes.stage(), Stage::Beyond { queued: true });
        match not {
            Ok(Decided::Not(refused)) => {
                let refused = match bounded && !matches!(refused.reason, Refusal::Hopeless(_)) {
                    true => {
                        let retry_after = self.contender.retry_after(None)?;
                        Refused { reason: Refusal::QueueFull { retry_after }, ..refused }
                    }
                    false => refused,
                };
                let what = match refused.reason {
                    Refusal::QueueFull { retry_after } => Happening::Rejected { retry_after },
                    Refusal::Displaced { retry_after } => Happening::Displaced { retry_after },
                    _ if queued => Happening::Abandoned,
                    _ => Happening::Rejected { retry_after: self.contender.retry_after(None)? },
                };
                self.give_up(custody, Some(what))?;
                Ok(Some(not_had(self.args, &refused, self.voice)))
            }
            Ok(Decided::Signal(signal)) => {
                self.told(released);
                self.give_up(custody, queued.then_some(Happening::Abandoned))?;
                die_of(signal)
            }
            Ok(_) => Ok(None),
            Err(error) => {
                self.give_up(custody, queued.then_some(Happening::Abandoned))?;
                Err(error)
            }
        }
    }

    /// Refused on this host, where the slots may all be had by others who wait for whom one would like to name.
    fn with_holder(&self, refused: Refused) -> Refused {
        if refused.holder.is_some() || self.args.quiet || matches!(refused.reason, Refusal::Hopeless(_)) {
            return refused;
        }
        let max = self.args.max;
        let entries: Vec<_> = self.contenders().into_iter().filter(|entry| entry.max == max).collect();
        Refused { holder: wait::holder(&entries), ..refused }
    }

    /// Who contends for the name, for a message; nobody where that cannot be had at once.
    fn contenders(&self) -> Vec<etcd::Entry> {
        let name = &self.contender.place.key.name;
        let config = self.cluster.config.clone().hasty();
        let listed = etcd::Inspector::new(&config).and_then(|inspector| inspector.list(Some(name.as_bytes())));
        listed.unwrap_or_default()
    }

    /// Two capacities of one name are two claims, which is rarely meant.
    fn warn_of_other_capacities(&self) {
        let mut others: Vec<u32> = self.contenders().iter().map(|entry| entry.max).collect();
        others.dedup();
        for max in others.into_iter().filter(|&max| max != self.args.max) {
            self.voice.say(&other_capacity(max, self.args.max));
        }
    }

    fn keeper(&self, custody: Custody, holding: &Holding) -> Result<Kept> {
        let duties = Duties {
            tree: self.args.tree,
            kill_after: self.args.kill_after,
            grace: self.cluster.grace,
            margin: self.cluster.margin,
        };
        // In a container the lock tells others of a COMMAND that they cannot see.
        let inherited = match self.contender.record() {
            Some(record) if self.inherits => Some(record.inheritable()?),
            _ => None,
        };
        let program = |facts| self.signals.program(self.argv.clone(), self.environment(facts));
        let register = &mut || register(&self.contender, custody).unwrap_or(false);
        let kept = Kept::fork(duties, holding, &self.signals, Work { program: &program, register });
        // The keeper has it now.
        drop(inherited);
        kept
    }

    fn contend(&self, holding: &Holding, once: bool, until: Deadline) -> Result<etcd::Contender> {
        let bid = self.bid(once, until);
        let shared = holding.clone();
        let on_record = self.contender.record().map(crate::local::holder::Holder::words_again).transpose()?;
        let share = Box::new(move |trusted_until: etcd::Moment| {
            shared.set_trusted_until(trusted_until.nanos());
            if let Some(words) = &on_record {
                LiveWords(words).set_trusted_until(trusted_until.nanos());
            }
        });
        etcd::Contender::start(&self.cluster.config, bid, Some(share)).map_err(failure)
    }

    fn bid(&self, once: bool, until: Deadline) -> Bid {
        let Self { args, cluster, contender, .. } = self;
        let key = &contender.place.key;
        // The words of COMMAND may be secret, and others read what is in etcd: its name has to do, unless its owner says so.
        let label = args.label.clone().map_or_else(
            || self.argv.first().map(|word| word.as_bytes().to_vec()).unwrap_or_default(),
            OsStringExt::into_vec,
        );
        let mut bid = Bid::new(key.name.as_bytes(), key.max.get());
        bid.ttl = cluster.ttl;
        bid.reserve = cluster.grace + cluster.margin;
        bid.spread = args.spread;
        bid.at_least = args.at_least.unwrap_or_default();
        bid.wait = if once || args.queue_size == Some(0) { Some(Duration::ZERO) } else { until.left() };
        bid.record = etcd::Record::here(args.class.to_string(), String::from_utf8_lossy(&label));
        bid
    }

    /// It is held: runs COMMAND, then gives back what was had, etcd's first.
    fn hold(
        &mut self,
        custody: Custody,
        far: &mut etcd::Contender,
        held: Held,
        kept: Kept,
        holding: &Holding,
    ) -> Result<i32> {
        let lease = u64::from_str_radix(&held.lease, 16)
            .map_err(|_| Error::told(ErrorKind::System, format!("no lease: {}", held.lease)))?;
        let facts = Facts { fence: held.fence, slot: held.slot, lease };
        if let Some(record) = self.contender.record() {
            record.live().set_far(facts.fence, facts.lease);
        }
        let fence = Fence::new(facts.fence);
        self.eyes.set_stage(Stage::Held { fence, since: clock::monotonic_ns() });
        let wait = Duration::from_nanos(clock::monotonic_ns().saturating_sub(self.began));
        self.contender.report(&mut self.eyes, Happening::Acquired { wait, fence })?;
        let max = self.args.max;
        self.voice.detail(&format_args!("acquired, slot {} of {max}, fence {fence}, lease {}", held.slot, held.lease));
        if held.other_capacities && !self.args.quiet {
            self.warn_of_other_capacities();
        }

        let ended = kept.run(facts, &self.signals, far.lost_fd(), &mut |pid| {
            far.set_command_pid(pid.unsigned_abs());
        });
        let loss = far.loss();
        let stopped = matches!(ended, Ok(Ok(Ended::Lost | Ended::KeeperKilled)));
        if stopped || loss.is_some() {
            self.eyes.set_stage(Stage::Lost);
        }
        holding.set_trusted_until(0);
        if let Ok(Err(_)) = ended {
            // COMMAND has not run: others need not be kept from running it.
            far.waive_rest();
        }
        let released = far.release();
        let was_told = released.is_ok();
        if !stopped && loss.is_none() {
            self.told(released);
        }
        match self.contender.release(custody, &mut self.eyes) {
            Ok(Release::Released) if stopped || !was_told => {}
            Ok(Release::Released) if loss.is_none() => self.voice.detail(&"released"),
            Ok(_) => self.voice.error(&"the claim was taken away before its end"),
            Err(error) => self.voice.error(&format_args!("not released: {error}")),
        }
        match ended? {
            Ok(Ended::Done(end)) => status(Ok(end), self.args, self.voice),
            Err(why) => status(Err(why), self.args, self.voice),
            Ok(Ended::Lost) => {
                let why = loss.map_or_else(|| "it was not renewed in time".to_owned(), |loss| loss.to_string());
                self.voice.error(&format_args!("the claim was lost ({why}); COMMAND was stopped"));
                Ok(exit::LOST)
            }
            Ok(Ended::KeeperKilled) => {
                self.voice.error(&"what watched over COMMAND was killed; COMMAND was stopped");
                Ok(exit::LOST)
            }
        }
    }

    /// Gives this host's slot to the next.
    fn give_up(&mut self, custody: Custody, what: Option<Happening>) -> Result<Option<i32>> {
        self.contender.release(custody, &mut self.eyes)?;
        if let Some(what) = what {
            self.contender.report(&mut self.eyes, what)?;
        }
        Ok(None)
    }

    fn told(&self, released: std::result::Result<(), etcd::Error>) {
        if let Err(error) = released {
            self.voice.error(&format_args!("not released: {error}"));
        }
    }

    /// Without the password that we may have found in it: what it opens is the cluster of claims, and COMMAND and its
    /// daemons are others' programs.
    fn environment(&self, facts: Facts) -> Vec<CString> {
        let key = &self.contender.place.key;
        let kept = without_password(std::env::vars_os());
        with_variables_on(
            kept,
            &[
                ("CLAIM_NAME", key.name.as_bytes().to_vec()),
                ("CLAIM_MAX", key.max.to_string().into()),
                ("CLAIM_SLOT", facts.slot.to_string().into()),
                ("CLAIM_FENCE", facts.fence.to_string().into()),
                ("CLAIM_DIR", self.dir.path().as_os_str().as_encoded_bytes().to_vec()),
                ("CLAIM_BACKEND", b"etcd".to_vec()),
                ("CLAIM_LEASE", format!("{:016x}", facts.lease).into()),
            ],
        )
    }
}

/// An environment without `ETCDCTL_PASSWORD`, and without what is of the same kind in `ETCDCTL_USER`.
fn without_password(env: impl Iterator<Item = (OsString, OsString)>) -> impl Iterator<Item = (OsString, OsString)> {
    env.filter(|(name, _)| name != "ETCDCTL_PASSWORD").map(|(name, value)| {
        let colon = value.as_bytes().iter().position(|&byte| byte == b':');
        match colon {
            Some(colon) if name == "ETCDCTL_USER" => {
                let user = OsStr::from_bytes(&value.as_bytes()[..colon]).to_owned();
                (name, user)
            }
            _ => (name, value),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_gets_no_password() {
        let env =
            [("ETCDCTL_USER", "root:a:b"), ("ETCDCTL_PASSWORD", "c"), ("PASSWORD", "d:e"), ("ETCDCTL_CERT", "f:g")];
        let kept = without_password(env.into_iter().map(|(name, value)| (name.into(), value.into())));
        let kept: Vec<(OsString, OsString)> = kept.collect();
        let left = [("ETCDCTL_USER", "root"), ("PASSWORD", "d:e"), ("ETCDCTL_CERT", "f:g")];
        assert_eq!(kept, left.map(|(name, value)| (OsString::from(name), OsString::from(value))));
    }
}
