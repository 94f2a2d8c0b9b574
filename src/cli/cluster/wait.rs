//! Waiting in etcd, with a slot of this host's in hand.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::acquire::{Contender, Refusal, Refused};
use crate::class::Class;
use crate::cli::beyond::{self, Slot};
use crate::cli::cluster::failure;
use crate::cli::events::{Eyes, Stage};
use crate::cli::output::Voice;
use crate::clock::{self, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::etcd::{self, Entry, Event, Held, Standing};
use crate::events::{Happening, Observer, Waiting, Who};
use crate::local::dir::Directory;
use crate::local::process::has_ended;
use crate::local::procfs;
use crate::local::wait::Reasons;
use crate::supervise::kept::Kept;
use crate::supervise::signals::Signals;

/// How a wait ended.
pub(super) enum Decided {
    Held(Held),
    Not(Refused),
    /// Somebody of a higher class waits on this host.
    Overtaken,
    Signal(Signal),
}

pub(super) struct Wait<'a> {
    pub(super) contender: &'a Contender,
    /// The claim directory that all this host's contenders share, whatever their cluster.
    pub(super) dir: &'a Directory,
    pub(super) far: &'a etcd::Contender,
    pub(super) kept: &'a Kept,
    pub(super) signals: &'a Signals,
    pub(super) eyes: &'a mut Eyes,
    pub(super) voice: &'a Voice,
    pub(super) once: bool,
    pub(super) began: u64,
}

impl Wait<'_> {
    pub(super) fn until_decided(mut self) -> Result<Decided> {
        /// So often somebody of this host's who has the claim to wait for in etcd looks who has come here meanwhile. It
        /// is one process for a slot, however many wait.
        const LOOK_EVERY: Duration = Duration::from_millis(50);
        let mut seen: Option<(Vec<Entry>, usize)> = None;
        let mut next_report = Deadline::after(Duration::ZERO);
        loop {
            while let Some(event) = self.far.next_event() {
                match event {
                    Event::Held(held) => return Ok(self.unless_signalled(Decided::Held(held))),
                    Event::NotHad(entries) => {
                        let entries = if entries.is_empty() { seen.map_or(entries, |seen| seen.0) } else { entries };
                        let reason = match self.hopeless(&entries)? {
                            Some(why) => Refusal::Hopeless(why),
                            None if self.once => Refusal::Held,
                            None => Refusal::TimedOut,
                        };
                        return Ok(Decided::Not(refused(reason, &entries)));
                    }
                    Event::Failed(error) => return Err(failure(error)),
                    Event::Waiting { contenders, ahead } if !self.once => {
                        if seen.is_none() {
                            if let Some(why) = self.hopeless(&contenders)? {
                                return Ok(Decided::Not(refused(Refusal::Hopeless(why), &contenders)));
                            }
                            if let Some(retry_after) = self.begin()? {
                                return Ok(Decided::Not(refused(Refusal::QueueFull { retry_after }, &contenders)));
                            }
                        }
                        seen = Some((contenders, ahead));
                    }
                    Event::Requeued(loss) => {
                        self.voice.detail(&format_args!("lost the place in the queue ({loss}); waiting again"));
                    }
                    Event::Released(Err(error)) => return Err(failure(error)),
                    Event::Waiting { .. } | Event::Lost(_) | Event::Released(Ok(())) => {}
                }
            }
            if let Some(signal) = self.signals.next_that_ends() {
                return Ok(Decided::Signal(signal));
            }
            if has_ended(self.kept.pidfd())? {
                return Err(Error::told(ErrorKind::System, "what was to watch over COMMAND was killed"));
            }
            let mut wake = Deadline::NEVER;
            if let Some((entries, ahead)) = &seen {
                if let Some(retry_after) = self.contender.record().and_then(|record| record.live().displaced()) {
                    return Ok(Decided::Not(refused(Refusal::Displaced { retry_after }, entries)));
                }
                if self.contender.terms.class != Class::Interactive && self.contender.is_overtaken()? {
                    return Ok(Decided::Overtaken);
                }
                if next_report.has_passed() {
                    next_report = self.report(entries, *ahead);
                }
                wake = Deadline::after(LOOK_EVERY).or_sooner(next_report);
            }
            let mut reasons = Reasons::default();
            reasons.readable(self.far.fd()).readable(self.signals.as_fd()).readable(self.kept.pidfd()).sleep(wake)?;
        }
    }

    /// Why it cannot be had before we have gone on: every holder that is in the way is a process above this one.
    ///
    /// This host's own queue sees that first, unless the cluster was named in another way there: then it is another queue.
    /// That a holder in etcd is one of this host's records is told by fence and lease, never by a pid alone.
    fn hopeless(&self, entries: &[Entry]) -> Result<Option<String>> {
        let holders = || entries.iter().filter(|entry| entry.standing == Standing::Held);
        let (place, spread) = (&self.contender.place, self.contender.terms.spread);
        let held = holders().count();
        if held == 0 || (!spread && u32::try_from(held).is_ok_and(|held| held < place.key.max.get())) {
            return Ok(None);
        }
        let above = procfs::ancestors(place.me.process.pid)?;
        let above = beyond::above(self.dir, &place.key.name, &above)?;
        let by = |entry: &Entry| {
            let lease = u64::from_str_radix(&entry.lease, 16).ok()?;
            let is_it =
                |slot: &&Slot| (Some(slot.far.fence), slot.far.lease) == (u64::try_from(entry.revision).ok(), lease);
            let slot = above.iter().find(is_it)?;
            Some(format!("{} is held by process {}, above this one", place.key.name, slot.pid))
        };
        if spread {
            // What is above us is on this host, which may have no second slot, whoever has the others.
            return Ok(holders().find_map(by));
        }
        Ok(holders().map(by).collect::<Option<Vec<_>>>().map(|story| story.join(", ")))
    }

    /// It has to be waited for. Says when to come back if that is not to be.
    fn begin(&mut self) -> Result<Option<u64>> {
        let queued = matches!(self.eyes.stage(), Stage::Beyond { queued: true });
        let full = self.contender.wait_beyond(queued)?;
        if full.is_none() {
            self.contender.report(self.eyes, Happening::Queued)?;
        }
        Ok(full)
    }

    /// Had in the same moment as a signal came: as if that had been first.
    fn unless_signalled(&self, decided: Decided) -> Decided {
        match self.signals.next_that_ends() {
            Some(signal) if !self.once => Decided::Signal(signal),
            _ => decided,
        }
    }

    fn report(&mut self, entries: &[Entry], ahead: usize) -> Deadline {
        let elapsed = Duration::from_nanos(clock::monotonic_ns().saturating_sub(self.began));
        let max = usize::try_from(self.contender.place.key.max.get()).unwrap_or(usize::MAX);
        let waiting = Waiting { elapsed, before: ahead.saturating_sub(max), holder: holder(entries) };
        self.eyes.waiting(&waiting).map_or(Deadline::NEVER, Deadline::after)
    }
}

fn refused(reason: Refusal, entries: &[Entry]) -> Refused {
    let waiting = entries.iter().filter(|entry| entry.standing == Standing::Waiting).count();
    Refused { reason, holder: holder(entries), waiting }
}

/// One who has it, as a message names it.
pub(super) fn holder(entries: &[Entry]) -> Option<Who> {
    let entry = entries.iter().find(|entry| entry.standing == Standing::Held)?;
    let record = entry.record.as_ref()?;
    Some(Who {
        slot: entry.slot().unwrap_or(0),
        pid: i32::try_from(record.pid).unwrap_or(0),
        host: record.host.clone(),
        since: record.since_ms.saturating_mul(1000),
        label: record.label.clone().into_bytes(),
        until: record.until_ms.filter(|_| record.resting).map(|until| until.saturating_mul(1000)),
    })
}
