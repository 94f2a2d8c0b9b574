//! Waits that could never end: for what a process above this one holds, or in a ring.
//!
//! Holders and waiters are all on record, so whoever is about to sleep can follow the chain: the claim it waits for, its
//! holders, what waits below them, for what, held by whom; if that leads to a process above us, and does so for every slot
//! on the way, nobody on it can go on before we do.

use crate::error::Result;
use crate::local::Place;
use crate::local::holder::Opened;
use crate::local::layout::{QUEUES, TicketName};
use crate::local::liveness::Liveness;
use crate::local::procfs;
use crate::local::slots::Occupied;
use crate::name::Key;

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

struct Search<'a> {
    above: Vec<i32>,
    spread: bool,
    waits: &'a [Wait],
    /// Keys on the way, so that a ring that does not lead to us ends the search.
    visited: Vec<Key>,
    /// The latest arrival on the way.
    youngest: u64,
}

impl Place {
    /// Whether waiting for this claim is hopeless. Of a ring, the waiter that closed it (the youngest) is told; the others
    /// go on once it has left. `me` is our ticket, if we have one already.
    pub(crate) fn hopeless(&self, me: Option<&TicketName>, spread: bool) -> Result<Option<Hopeless>> {
        let above = procfs::ancestors(self.me.process.pid)?;
        let waits = self.waits_elsewhere()?;
        let mut search = Search { above, spread, waits: &waits, visited: Vec::new(), youngest: 0 };
        let Some(story) = search.stuck(self)? else { return Ok(None) };
        let closed_by_me = me.is_none_or(|me| search.youngest < me.rev);
        Ok(closed_by_me.then(|| Hopeless(story.join(", "))))
    }

    /// Who waits for other claims in this directory.
    fn waits_elsewhere(&self) -> Result<Vec<Wait>> {
        let mut waits = Vec::new();
        for key in self.dir.list(QUEUES)? {
            if key == self.layout.key() {
                continue;
            }
            let folder = format!("{QUEUES}/{key}");
            for ticket in self.dir.list(&folder)?.iter().filter_map(|name| TicketName::parse(name)) {
                if ticket.pid_namespace != self.me.pid_namespace {
                    continue;
                }
                let record = format!("{}/{key}/{}", crate::local::layout::HOLDERS, ticket.holder_id());
                let Some(record) = Opened::at(&self.dir, &record)? else { continue };
                let Some(key) = record.record.body.key() else { continue };
                let mut blocked = procfs::ancestors(ticket.pid)?;
                // With other threads, the process may go on while one of them waits.
                if procfs::stat(ticket.pid)?.is_some_and(|stat| stat.threads == 1) {
                    blocked.push(ticket.pid);
                }
                // A script that claims for itself waits for its `claim --acquire`.
                blocked.push(record.record.body.process.pid);
                let place = Place { key: key.clone(), layout: crate::local::layout::Layout::of(&key), ..self.clone() };
                waits.push(Wait { place, rev: ticket.rev, pid: ticket.pid, blocked });
            }
        }
        Ok(waits)
    }
}

impl Search<'_> {
    /// Why no slot of a claim can become free before we have gone on; `None` if one can.
    fn stuck(&mut self, place: &Place) -> Result<Option<Vec<String>>> {
        if self.visited.contains(&place.key) {
            return Ok(None);
        }
        self.visited.push(place.key.clone());
        let max = place.key.max.get();
        let occupied = place.occupied(0..max)?;
        let wanted = if self.spread && self.visited.len() == 1 { 1 } else { max as usize };
        if occupied.len() < wanted {
            return Ok(None);
        }
        let mut story = Vec::new();
        for holder in &occupied {
            match self.stuck_holder(place, holder)? {
                Some(part) => story.extend(part),
                None => return Ok(None),
            }
        }
        Ok(Some(story))
    }

    fn stuck_holder(&mut self, place: &Place, holder: &Occupied) -> Result<Option<Vec<String>>> {
        let body = &holder.holder.record.body;
        if holder.liveness != Liveness::Alive || body.pid_namespace != place.me.pid_namespace {
            return Ok(None);
        }
        let mut pids = vec![body.process.pid];
        pids.extend(holder.holder.record.live.command.map(|command| command.pid));
        if let Some(pid) = pids.iter().find(|pid| self.above.contains(pid)) {
            return Ok(Some(vec![format!("{} is held by process {pid}, above this one", place.key.name)]));
        }
        for wait in self.waits {
            let Some(pid) = pids.iter().find(|pid| wait.blocked.contains(pid)) else { continue };
            if let Some(rest) = self.stuck(&wait.place)? {
                self.youngest = self.youngest.max(wait.rev);
                let mut story = vec![format!(
                    "{} is held by process {pid}, below which process {} waits for {}",
                    place.key.name, wait.pid, wait.place.key.name
                )];
                story.extend(rest);
                return Ok(Some(story));
            }
        }
        Ok(None)
    }
}
