//! Waits that could never end: for what a process above this one holds, or in a ring.
//!
//! Holders and waiters are all on record, so whoever is about to sleep can follow the chain: the claim it waits for, its
//! holders, what waits below them, for what, held by whom; if that leads to a process above us, and does so for every slot
//! on the way, nobody on it can go on before we do.

use crate::error::{ErrorKind, Result};
use crate::local::Place;
use crate::local::holder::Opened;
use crate::local::layout::{Layout, QUEUES, TicketName};
use crate::local::liveness::Liveness;
use crate::local::procfs;
use crate::local::slots::Occupied;
use crate::name::{Capacity, Key};

/// A wait that cannot end, spelled out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hopeless(pub(crate) String);

/// A wait of somebody, below some processes that cannot go on before it ends.
struct Wait {
    place: Place,
    rev: u64,
    pid: i32,
    blocked: Vec<i32>,
}

/// Why something is stuck, and the latest arrival among the waits that it hangs on.
struct Stuck {
    story: Vec<String>,
    youngest: u64,
    /// It hangs on us: it is not somebody else's ring, which somebody else will break.
    on_us: bool,
}

/// The processes above this one, as they were when they were last listed. They only ever become fewer: one that ends is
/// replaced by init or by a subreaper, which was above before. So a list that was good once is enough to tell that no
/// holder is above; what is said to be above is looked at anew.
#[derive(Debug, Default)]
pub(crate) struct Lineage(Option<Vec<i32>>);

impl Lineage {
    fn known(&mut self, me: i32) -> Result<&[i32]> {
        match self.0 {
            Some(ref known) => Ok(known),
            None => Ok(self.0.insert(procfs::ancestors(me)?)),
        }
    }
}

struct Search<'a> {
    above: Vec<i32>,
    spread: bool,
    waits: &'a [Wait],
    /// The claims on the way here.
    path: Vec<Key>,
}

impl Place {
    /// Whether waiting for this claim is hopeless. `alone`: whatever this process itself holds it will not give back while it
    /// waits (a program that has become `claim`), as nothing above it will. Of a ring, the waiter that closed it (the youngest) is told; the others
    /// go on once it has left. `me` is our ticket, if we have one already.
    pub(crate) fn hopeless(
        &self,
        lineage: &mut Lineage,
        me: Option<&TicketName>,
        spread: bool,
        alone: bool,
    ) -> Result<Option<Hopeless>> {
        let mine = self.me.process.pid;
        let waited_for = self.dir.list(QUEUES)?;
        // Every such wait leads to a holder above us, of this claim or of one that others wait for; mostly there is none.
        if !self.any_held_by(lineage.known(mine)?, alone.then_some(mine), &waited_for)? {
            return Ok(None);
        }
        *lineage = Lineage::default();
        let mut above = lineage.known(mine)?.to_vec();
        above.extend(alone.then_some(mine));
        let waits = self.waits(me, waited_for)?;
        let mut search = Search { above, spread, waits: &waits, path: Vec::new() };
        let Some(stuck) = search.stuck(self)? else { return Ok(None) };
        let closed_by_me = stuck.on_us && me.is_none_or(|me| stuck.youngest < me.rev);
        Ok(closed_by_me.then(|| Hopeless(stuck.story.join(", "))))
    }

    /// Whether any of those processes is on record as a holder, dead or alive, of this claim or of one of those keys.
    fn any_held_by(&self, above: &[i32], and: Option<i32>, keys: &[String]) -> Result<bool> {
        let others = keys.iter().filter(|key| *key != self.layout.key()).filter_map(|key| Layout::read(key));
        for (layout, max) in std::iter::once((self.layout.clone(), self.key.max)).chain(others) {
            for slot in self.slots_in_use(&layout, 0..max.get())? {
                let Some(holder) = readable(Opened::at(&self.dir, &layout.slot(slot)))?.flatten() else { continue };
                let processes = [Some(holder.record.body.process), holder.record.live.command];
                if processes.iter().flatten().any(|it| above.contains(&it.pid) || and == Some(it.pid)) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Who else waits in this directory, for one of those keys.
    fn waits(&self, me: Option<&TicketName>, keys: Vec<String>) -> Result<Vec<Wait>> {
        /// A ring of more than that is beyond what is looked for.
        const MOST: usize = 256;
        let mut waits = Vec::new();
        // Who waits for our own claim below its only holder has been told so itself; a ring needs another claim.
        if self.key.max == Capacity::ONE && keys.iter().all(|key| key == self.layout.key()) {
            return Ok(waits);
        }
        for key in keys {
            let Some((layout, _)) = Layout::read(&key) else { continue };
            let tickets = match self.dir.list(&layout.queue) {
                Ok(tickets) => tickets,
                // Something that is no queue.
                Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => continue,
                Err(error) => return Err(error),
            };
            for ticket in tickets.iter().filter_map(|name| TicketName::parse(name)) {
                if ticket.pid_namespace != self.me.pid_namespace || me == Some(&ticket) || waits.len() >= MOST {
                    continue;
                }
                let record = layout.holder(&ticket.holder_id());
                // What cannot be read concerns the claim that it is of, which is another than ours.
                let Some(record) = readable(Opened::at(&self.dir, &record))?.flatten() else { continue };
                let Some(key) = record.record.body.key() else { continue };
                let mut blocked = procfs::ancestors(ticket.pid)?;
                // With other threads, the process may go on while one of them waits.
                if procfs::stat(ticket.pid)?.is_some_and(|stat| stat.threads == 1) {
                    blocked.push(ticket.pid);
                }
                // A script that claims for itself waits for its `claim --acquire`.
                blocked.push(record.record.body.process.pid);
                let place = Place { key: key.clone(), layout: Layout::of(&key), ..self.clone() };
                waits.push(Wait { place, rev: ticket.rev, pid: ticket.pid, blocked });
            }
        }
        Ok(waits)
    }
}

/// `None` for what cannot be read.
fn readable<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::Unreadable => Ok(None),
        Err(error) => Err(error),
    }
}

impl Search<'_> {
    /// Why no slot of a claim can become free before we have gone on; `None` if one can.
    fn stuck(&mut self, place: &Place) -> Result<Option<Stuck>> {
        if self.path.contains(&place.key) {
            // As stuck as the rest of the way here.
            return Ok(Some(Stuck { story: Vec::new(), youngest: 0, on_us: false }));
        }
        let max = place.key.max.get();
        let mine = self.path.is_empty();
        let occupied =
            if mine { place.occupied(0..max)? } else { readable(place.occupied(0..max))?.unwrap_or_default() };
        let wanted = if self.spread && mine { 1 } else { max as usize };
        if occupied.len() < wanted {
            return Ok(None);
        }
        self.path.push(place.key.clone());
        let stuck = self.all_stuck(place, &occupied);
        self.path.pop();
        stuck
    }

    fn all_stuck(&mut self, place: &Place, occupied: &[Occupied]) -> Result<Option<Stuck>> {
        let mut all = Stuck { story: Vec::new(), youngest: 0, on_us: false };
        for holder in occupied {
            let Some(one) = self.stuck_holder(place, holder)? else { return Ok(None) };
            all.story.extend(one.story);
            all.youngest = all.youngest.max(one.youngest);
            all.on_us |= one.on_us;
        }
        Ok(Some(all))
    }

    fn stuck_holder(&mut self, place: &Place, holder: &Occupied) -> Result<Option<Stuck>> {
        let body = &holder.record.body;
        if holder.liveness != Liveness::Alive || body.pid_namespace != place.me.pid_namespace {
            return Ok(None);
        }
        let mut pids = vec![body.process.pid];
        pids.extend(holder.record.live.command.map(|command| command.pid));
        if let Some(pid) = pids.iter().find(|pid| self.above.contains(pid)) {
            let story = vec![format!("{} is held by process {pid}, above this one", place.key.name)];
            return Ok(Some(Stuck { story, youngest: 0, on_us: true }));
        }
        let mut elsewhere = None;
        for wait in self.waits {
            let Some(pid) = pids.iter().find(|pid| wait.blocked.contains(pid)) else { continue };
            if let Some(rest) = self.stuck(&wait.place)? {
                let mut story = vec![format!(
                    "{} is held by process {pid}, below which process {} waits for {}",
                    place.key.name, wait.pid, wait.place.key.name
                )];
                story.extend(rest.story);
                let stuck = Stuck { story, youngest: rest.youngest.max(wait.rev), on_us: rest.on_us };
                if stuck.on_us {
                    return Ok(Some(stuck));
                }
                elsewhere = Some(stuck);
            }
        }
        Ok(elsewhere)
    }
}
