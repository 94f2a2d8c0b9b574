//! Who holds, who waits: seen from outside, disturbing nobody.

use std::collections::BTreeMap;

use crate::class::Class;
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::local::Place;
use crate::local::dir::Directory;
use crate::local::holder::{Opened, unreadable};
use crate::local::identity::Identity;
use crate::local::layout::{CLAIMS, Layout, QUEUES, SlotName, TicketName, in_claims, parse_key};
use crate::local::liveness::Liveness;
use crate::local::reclaim::Occupant;
use crate::local::slots::Occupied;
use crate::name::{Capacity, Key, Name};
use crate::record::Record;

/// A holder, or a waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Of which claim.
    pub key: Key,
    /// How many hold the claim.
    pub held: u32,
    /// The slot it holds; `None`: it waits.
    pub slot: Option<u32>,
    /// The host, or container, it runs on.
    pub host: String,
    /// Its process, in its own pid namespace.
    pub pid: i32,
    /// The command it runs, if it supervises one.
    pub command_pid: Option<i32>,
    /// Unix time, in microseconds, since when it holds or waits.
    pub since: u64,
    /// The fence of a holder; the number that gave a waiter its place.
    pub rev: u64,
    /// Its class.
    pub class: Class,
    /// What it runs, as bytes.
    pub label: Vec<u8>,
    /// Unix time, in microseconds, until which the slot stays taken whoever is gone.
    pub until: Option<u64>,
    /// Whether it lives cannot be told from here.
    pub unknown: bool,
}

/// Everybody who holds and waits, and what could not be read on the way.
#[derive(Debug, Default)]
pub struct Report {
    /// Claim by claim: the holders by slot, then the waiters in the order in which they will be served.
    pub entries: Vec<Entry>,
    /// The first record that could not be read, if there was one; who it is of cannot be told.
    pub unreadable: Option<Error>,
}

/// Who holds and who waits in a directory: for one name, of whatever capacity, or for all.
///
/// # Errors
/// Those of the system. Records that cannot be read are part of the report.
pub fn inspect(dir: &Directory, name: Option<&Name>) -> Result<Report> {
    let me = Identity::of_this_process()?;
    let mut report = Report::default();
    let mut seen: BTreeMap<String, (Vec<u32>, Vec<TicketName>)> = BTreeMap::new();
    let wanted = name.map(|name| Layout::of(&Key { name: name.clone(), max: Capacity::ONE }).key().to_owned());
    let wanted = wanted.as_deref().and_then(|key| key.rsplit_once('@')).map(|(name, _)| name);
    let is_wanted = |key: &str| wanted.is_none_or(|name| key.rsplit_once('@').is_some_and(|(it, _)| it == name));

    for file in dir.list(CLAIMS)? {
        match SlotName::parse(&file) {
            Some(slot) if is_wanted(&slot.key) => seen.entry(slot.key).or_default().0.push(slot.slot),
            Some(_) => {}
            // A record that belongs to no claim that we could name concerns all of them.
            None if file.starts_with(".fresh-") => {}
            None => report.note(unreadable(dir, &in_claims(&file))),
        }
    }
    for key in dir.list(QUEUES)? {
        if is_wanted(&key)
            && let Some((layout, _)) = Layout::read(&key)
        {
            let names = dir.list(&layout.queue)?;
            let tickets = names.iter().filter_map(|name| TicketName::parse(name));
            seen.entry(key).or_default().1.extend(tickets);
        }
    }
    for (key, (mut slots, mut tickets)) in seen {
        slots.sort_unstable();
        tickets.sort_unstable_by_key(TicketName::position);
        let Some((short, max)) = parse_key(&key) else { continue };
        // A name that stands as a hash is known from the question, or else from a record.
        let Some(name) = short.or_else(|| name.cloned()).or_else(|| name_on_record(dir, &key, &slots, &tickets)) else {
            continue;
        };
        let key = Key { name, max };
        let place = Place { dir: dir.clone(), layout: Layout::of(&key), key, me: me.clone() };
        if let Err(error) = report.add(&place, &slots, &tickets) {
            if error.kind() != ErrorKind::Unreadable {
                return Err(error);
            }
            report.note(error);
        }
    }
    Ok(report)
}

fn name_on_record(dir: &Directory, key: &str, slots: &[u32], tickets: &[TicketName]) -> Option<Name> {
    let (layout, _) = Layout::read(key)?;
    let slots = slots.iter().map(|&slot| layout.slot(slot));
    let waiters = tickets.iter().map(|ticket| layout.holder(&ticket.holder_id()));
    slots.chain(waiters).find_map(|path| Some(Opened::at(dir, &path).ok()??.record.body.key()?.name))
}

impl Report {
    fn note(&mut self, error: Error) {
        self.unreadable.get_or_insert(error);
    }

    fn add(&mut self, place: &Place, slots: &[u32], tickets: &[TicketName]) -> Result<()> {
        let first = self.entries.len();
        for &slot in slots {
            match place.occupant(slot) {
                Ok(Occupant::Holder(Occupied { record, liveness, .. })) => {
                    let live = &record.live;
                    self.entries.push(Entry {
                        slot: Some(slot),
                        command_pid: live.command.map(|command| command.pid),
                        since: live.since,
                        rev: live.fence,
                        until: (live.until > clock::boot_ns()).then(|| wall(live.until)),
                        unknown: liveness == Liveness::Unknown,
                        ..Entry::of(place, &record)
                    });
                }
                Ok(Occupant::Nobody | Occupant::Dead(_)) => {}
                Err(error) if error.kind() == ErrorKind::Unreadable => self.note(error),
                Err(error) => return Err(error),
            }
        }
        for ticket in tickets {
            if place.visit(*ticket)?.is_none() {
                continue;
            }
            // None: it has just left.
            let Some(waiter) = Opened::at(&place.dir, &place.layout.holder(&ticket.holder_id()))? else { continue };
            self.entries.push(Entry {
                since: waiter.record.live.queued,
                rev: ticket.rev,
                class: ticket.class,
                ..Entry::of(place, &waiter.record)
            });
        }
        let held = self.entries[first..].iter().filter(|entry| entry.slot.is_some()).count();
        for entry in &mut self.entries[first..] {
            entry.held = u32::try_from(held).unwrap_or(u32::MAX);
        }
        Ok(())
    }
}

impl Entry {
    fn of(place: &Place, record: &Record) -> Self {
        let body = &record.body;
        Self {
            key: place.key.clone(),
            held: 0,
            slot: None,
            host: body.host.clone(),
            pid: body.process.pid,
            command_pid: None,
            since: 0,
            rev: 0,
            class: body.class,
            label: body.label.clone(),
            until: None,
            unknown: false,
        }
    }
}

/// A boot time, in nanoseconds, on the wall, in microseconds.
pub(crate) fn wall(boot_ns: u64) -> u64 {
    clock::unix_us().saturating_add(boot_ns.saturating_sub(clock::boot_ns()) / 1000)
}
