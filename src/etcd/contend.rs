//! From nothing to holding: one session after the other until one holds, is told no, or the time is over.
//!
//! Uncontended, that is two round trips: the grant, and one transaction that makes the key and lists the contenders. With
//! N > 1, a third takes a slot. Grant and transaction do not go together: etcd 3.4 would take the transaction first more
//! often than not, which costs it a failed write and a line in its log, and us the round trip again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::bid::Bid;
use super::client::Client;
use super::clock::{Moment, wall_ms};
use super::error::{Error, ErrorKind};
use super::inspect::{Entry, entries};
use super::keys::{Keys, Range};
use super::leases::{Leases, RELEASE};
use super::record::Record;
use super::rule::Place;
use super::session::{Loss, Session, Trust};
use super::settle::First;
use super::trail::{Step, Stop, Trail};
use super::txn::{self, Listing};

/// Between one failed session and the next.
const PAUSE: Duration = Duration::from_millis(100);

/// With more slots than these, a waiter watches all contenders at once instead of each of its neighbours.
const NEIGHBOURS: u32 = 16;

/// Far enough not to come, near enough to be added to any clock.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// What is held, once it is good for work.
pub(crate) struct Custody {
    pub key: Vec<u8>,
    /// The key's create revision: the fence.
    pub created: i64,
    pub slot: u32,
    /// As of which revision the key is known to be there.
    pub revision: i64,
    pub since: Moment,
    pub record: Record,
    pub session: Session,
}

/// How contending ended.
pub(crate) enum End {
    Held(Custody),
    NotHad(Vec<Entry>),
    Failed(Error),
}

/// How one session ended.
pub(crate) enum Turn {
    Held(Custody),
    NotHad(Vec<Entry>),
    Lost(Loss),
}

/// One who contends.
pub(crate) struct Contest<'a> {
    pub client: &'a Client,
    pub bid: &'a Bid,
    pub keys: &'a Keys,
    pub trust: &'a Arc<Trust>,
    pub leases: &'a Leases,
    /// Told of the contenders and how many are ahead, at first and whenever one of them ends.
    pub waiting: &'a (dyn Fn(Vec<Entry>, usize) + Sync),
    /// Whether the name was in use with another capacity when it was entered for.
    pub other_capacities: &'a AtomicBool,
    /// Told when a session is lost and the next begins at the back.
    pub requeued: &'a (dyn Fn(Loss) + Sync),
}

impl Contest<'_> {
    /// Contends until it holds or may not wait longer. The first session comes about within `dial_timeout`, or it is an
    /// error; later ones are made anew as often as needed.
    pub(super) async fn run(&self, dial_timeout: Duration) -> End {
        let start = Instant::now();
        let deadline = self.bid.wait.and_then(|wait| start.checked_add(wait)).unwrap_or(start + NEVER);
        let mut session_until = start + dial_timeout;
        // Whether a session has come about.
        let met = AtomicBool::new(false);
        loop {
            match self.turn(session_until, deadline, &met).await {
                Ok(Turn::Held(custody)) => return End::Held(custody),
                Ok(Turn::NotHad(others)) => return End::NotHad(others),
                Ok(Turn::Lost(loss)) => (self.requeued)(loss),
                Err(error) if error.is_no_lease() => (self.requeued)(Loss::Revoked),
                Err(error) if error.kind() == ErrorKind::Unreachable && met.load(Ordering::Relaxed) => {}
                Err(error) => {
                    if error.kind() == ErrorKind::Refused {
                        let _ = self.leases.revoke_all().await;
                    }
                    return End::Failed(error);
                }
            }
            // From here on it is a waiter that lost its session: it goes on within its time.
            if met.load(Ordering::Relaxed) {
                session_until = deadline;
                if Instant::now() + PAUSE >= deadline {
                    return End::NotHad(Vec::new());
                }
            }
            sleep(PAUSE).await;
        }
    }

    /// One session, from its grant to its end.
    async fn turn(&self, until: Instant, deadline: Instant, met: &AtomicBool) -> Result<Turn, Error> {
        let bid = self.bid;
        // While it waits, the lease is no longer than the TTL, whatever `at_least` says: a crash frees its place then.
        let contenders = self.keys.contenders(&bid.name, bid.max);
        let mut session =
            Session::open(self.leases, &contenders.start, bid.terms(), Duration::ZERO, self.trust, until).await?;
        let key = match bid.spread {
            true => self.keys.by_host(&bid.name, bid.max, &bid.host),
            false => self.keys.by_lease(&bid.name, bid.max, session.lease),
        };
        let record = Record { since_ms: wall_ms(), until_ms: None, slot: None, ..bid.record.clone() };
        let name = self.keys.name(&bid.name);
        let enter = || txn::enter(&key, record.encode(), session.lease, &contenders, &name);

        let (listing, others) = txn::entered(self.client.call(enter(), until).await?);
        self.other_capacities.store(others, Ordering::Relaxed);
        met.store(true, Ordering::Relaxed);
        let mut trail = Trail::new(self.client, &contenders, listing, deadline);
        let stop = loop {
            match trail.listing.get(&key) {
                Some(mine) if mine.lease == session.lease => {
                    let created = mine.create_revision;
                    match self.wait_turn(&key, created, &mut trail, &mut session).await {
                        Ok(()) => {
                            // Longer than that the session does not last either.
                            let until = Instant::now() + bid.ttl;
                            let waited = trail.waited;
                            let first = First { key, created, waited, record, session };
                            return self.settle(first, &trail.listing, until).await;
                        }
                        Err(stop) => break stop,
                    }
                }
                // Another session of this host has the one key that it may have.
                Some(_) => match self.wait_key(&key, &mut trail, &mut session).await {
                    Ok(()) => {
                        let enter = txn::enter(&key, record.encode(), session.lease, &contenders, &name);
                        trail.restart(txn::entered(self.client.call(enter, deadline).await?).0);
                    }
                    Err(stop) => break stop,
                },
                None => break Stop::Lost(Loss::Deleted),
            }
        };
        let lease = session.lease;
        drop(session);
        // If it cannot be told, it ends by itself.
        let _ = self.leases.revoke(lease, Instant::now() + RELEASE).await;
        match stop {
            Stop::Lost(loss) => Ok(Turn::Lost(loss)),
            Stop::Over => {
                trail.listing.kvs.retain(|kv| kv.key != key || kv.lease != lease);
                Ok(Turn::NotHad(entries(self.keys, &trail.listing)))
            }
        }
    }

    /// Waits until fewer than N are ahead.
    async fn wait_turn(
        &self,
        key: &[u8],
        created: i64,
        trail: &mut Trail<'_>,
        session: &mut Session,
    ) -> Result<(), Stop> {
        let few = self.bid.max <= NEIGHBOURS;
        loop {
            let mut place = Place::new(trail.listing.seen(), key, created, self.bid.max);
            let watched = match few {
                true => place.nearest().iter().map(Vec::as_slice).chain([key]).map(Range::only).collect(),
                false => vec![self.keys.contenders(&self.bid.name, self.bid.max)],
            };
            loop {
                if place.gone() {
                    return Err(Stop::Lost(Loss::Deleted));
                }
                if place.holds() {
                    return Ok(());
                }
                self.tell(&trail.listing, place.ahead());
                match trail.next(session, &watched).await? {
                    Step::Deleted(keys) => keys.iter().for_each(|key| place.deleted(key)),
                    Step::Listed => break,
                }
                // A neighbour has gone, and perhaps others whom nobody told us of.
                if few && !place.gone() && !place.holds() {
                    trail.refresh(session).await?;
                    break;
                }
            }
        }
    }

    /// Waits until the key of another session of this host is gone.
    async fn wait_key(&self, key: &[u8], trail: &mut Trail<'_>, session: &mut Session) -> Result<(), Stop> {
        while trail.listing.get(key).is_some() {
            self.tell(&trail.listing, trail.listing.kvs.len());
            trail.next(session, &[Range::only(key)]).await?;
        }
        Ok(())
    }

    fn tell(&self, listing: &Listing, ahead: usize) {
        (self.waiting)(entries(self.keys, listing), ahead);
    }
}
