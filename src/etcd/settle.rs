//! From the first N to work: the record written, a slot taken, the lease long enough and with enough life left.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::clock::{Moment, wall_ms};
use super::contend::{Contest, Custody, Turn};
use super::error::Error;
use super::leases::RELEASE;
use super::record::Record;
use super::session::{Loss, Session};
use super::txn::{self, Candidate, Listing, Places, Settled};

/// How many slots are tried in one transaction.
const CANDIDATES: usize = 32;

/// The slot, the revision as of which it is known, and the record as written.
type Settlement = Result<(u32, i64, Record), Loss>;

/// Looking again after this.
const PAUSE: Duration = Duration::from_millis(10);

/// A contender among the first N.
pub(crate) struct First {
    pub key: Vec<u8>,
    pub created: i64,
    /// Whether it came to be so only after waiting.
    pub waited: bool,
    pub record: Record,
    pub session: Session,
}

/// What is written, where, and until when.
struct Seat<'a> {
    key: &'a [u8],
    created: i64,
    lease: i64,
    listing: &'a Listing,
    until: Instant,
}

impl Contest<'_> {
    /// Makes a place among the first N good for work.
    pub(crate) async fn settle(&self, first: First, listing: &Listing, until: Instant) -> Result<Turn, Error> {
        let bid = self.bid;
        let First { key, created, waited, mut record, mut session } = first;
        let since = Moment::now();
        record.since_ms = wall_ms();
        if !bid.at_least.is_zero() {
            let least = u64::try_from(bid.at_least.as_millis()).unwrap_or(u64::MAX);
            record.until_ms = Some(record.since_ms.saturating_add(least));
        }
        let mut old = None;
        if bid.at_least > bid.ttl {
            // From now on a crash may not free it before its time. The old lease is renewed no more before the new one
            // is there: trust goes by one of them only. If the old one ends meanwhile, the key does, and is missed.
            old = Some(session.lease);
            drop(session);
            session = Session::open(self.leases, &key, bid.terms(), bid.at_least, self.trust, until).await?;
        }
        let changed = waited || old.is_some() || record.until_ms.is_some();
        let seat = Seat { key: &key, created, lease: session.lease, listing, until };
        let settled = tokio::select! {
            settled = self.write(&seat, record, changed) => settled?,
            loss = session.lost() => Err(loss),
        };
        if let Some(old) = old {
            let _ = self.leases.revoke(old, Instant::now() + RELEASE).await;
        }
        let (slot, revision, record) = match settled {
            Ok(settled) => settled,
            Err(loss) => return self.lost(loss, session).await,
        };
        // Work that begins with half its time gone might have to stop at once: see a renewal first.
        let enough = bid.reserve + session.life.saturating_sub(bid.reserve) / 2;
        while self.trust.deadline().since(Moment::now()) < enough {
            tokio::select! {
                loss = session.lost() => return self.lost(loss, session).await,
                () = sleep(PAUSE) => {}
            }
        }
        Ok(Turn::Held(Custody { key, created, slot, revision, since, record, session }))
    }

    async fn lost(&self, loss: Loss, session: Session) -> Result<Turn, Error> {
        let lease = session.lease;
        drop(session);
        let _ = self.leases.revoke(lease, Instant::now() + RELEASE).await;
        Ok(Turn::Lost(loss))
    }

    /// Writes the record, with a slot where there are several: the slot and the revision as of which all this is so.
    /// Where nothing has changed, nothing is written and nobody asked.
    async fn write(&self, seat: &Seat<'_>, mut record: Record, changed: bool) -> Result<Settlement, Error> {
        if self.bid.max > 1 {
            return self.take_slot(seat, record).await;
        }
        record.slot = Some(0);
        if !changed {
            return Ok(Ok((0, seat.listing.revision, record)));
        }
        let rewrite = txn::rewrite(seat.key, seat.created, record.encode(), Some(seat.lease), None);
        let answer = self.client.call(rewrite, seat.until).await?;
        match answer.succeeded {
            true => Ok(Ok((0, txn::revision(&answer), record))),
            false => Ok(Err(Loss::Deleted)),
        }
    }

    /// Takes a slot that nobody has, or whose owner is no contender any more.
    async fn take_slot(&self, seat: &Seat<'_>, record: Record) -> Result<Settlement, Error> {
        let Seat { key, created, lease, listing, until } = *seat;
        let bid = self.bid;
        let (slots, contenders) = (self.keys.slots(&bid.name, bid.max), self.keys.contenders(&bid.name, bid.max));
        let places = Places { key, created, lease, slots: &slots, contenders: &contenders };
        // At first from what the others say of themselves: the slot of whoever went is not among them.
        let told: Vec<u32> =
            listing.kvs.iter().filter_map(|kv| Record::decode(&kv.value).and_then(|record| record.slot)).collect();
        let (free, rest): (Vec<u32>, Vec<u32>) = (0..bid.max).take(1024).partition(|slot| !told.contains(slot));
        let all = free.into_iter().chain(rest).take(CANDIDATES);
        let mut candidates: Vec<_> = all.map(|slot| Candidate { slot, modified: 0 }).collect();
        loop {
            let with = |slot| Record { slot: Some(slot), ..record.clone() };
            let request = txn::settle(
                &places,
                &candidates,
                |slot| self.keys.slot(&bid.name, bid.max, slot),
                |slot| with(slot).encode(),
            );
            let answer = self.client.call(request, until).await?;
            let revision = txn::revision(&answer);
            let (taken, there) = match txn::settled(answer) {
                Settled::Taken(index) => {
                    let slot = candidates[index].slot;
                    return Ok(Ok((slot, revision, with(slot))));
                }
                Settled::Not { slots: taken, contenders: there } => (taken, there),
            };
            if there.get(key).is_none_or(|mine| mine.create_revision != created) {
                return Ok(Err(Loss::Deleted));
            }
            let owners: Vec<_> =
                taken.kvs.iter().filter_map(|kv| Some((self.keys.parse_slot(&slots, &kv.key)?, kv))).collect();
            // The answer to an earlier try was lost.
            if let Some((slot, _)) = owners.iter().find(|(_, kv)| kv.lease == lease) {
                return Ok(Ok((*slot, revision, with(*slot))));
            }
            candidates.clear();
            for slot in 0..bid.max {
                match owners.iter().find(|(taken, _)| *taken == slot) {
                    None => candidates.push(Candidate { slot, modified: 0 }),
                    Some((_, kv)) if there.kvs.iter().all(|contender| contender.lease != kv.lease) => {
                        candidates.push(Candidate { slot, modified: kv.mod_revision });
                    }
                    Some(_) => {}
                }
                if candidates.len() == CANDIDATES {
                    break;
                }
            }
            if candidates.is_empty() {
                sleep(PAUSE).await;
            }
        }
    }
}
