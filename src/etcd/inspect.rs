//! Looking at claims without contending, and ending what others hold.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::{Instant, timeout_at};

use super::client::Client;
use super::config::Config;
use super::error::{Error, ErrorKind};
use super::keys::{Keys, Range, lease_hex};
use super::record::Record;
use super::txn::{self, Listing};
use super::watch::{Interest, Watch};
use super::wire::{KeyValue, RevokeRequest};

/// Whether a contender holds or waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It is among the first N.
    Held,
    /// It waits for one of those to end.
    Waiting,
}

/// One contender for a claim, as etcd shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// The capacity.
    pub max: u32,
    /// Whether it holds.
    pub standing: Standing,
    /// A holder's fence, a waiter's place-giving number: the key's create revision.
    pub revision: i64,
    /// The lease that the key is on, as etcdctl prints it.
    pub lease: String,
    /// What it says of itself; nothing where that cannot be read.
    pub record: Option<Record>,
}

impl Entry {
    /// The slot of a holder, where it is known yet.
    pub fn slot(&self) -> Option<u32> {
        match self.standing {
            Standing::Held if self.max == 1 => Some(0),
            Standing::Held => self.record.as_ref()?.slot,
            Standing::Waiting => None,
        }
    }
}

/// Names in order; of each, the capacities in order; of each, the contenders in the order in which they are served.
pub(crate) fn entries(keys: &Keys, listing: &Listing) -> Vec<Entry> {
    let mut parsed: Vec<_> = listing.kvs.iter().filter_map(|kv| Some((keys.parse(&kv.key)?, kv))).collect();
    parsed.sort_by(|(one, a), (other, b)| {
        (&one.name, one.max, a.create_revision).cmp(&(&other.name, other.max, b.create_revision))
    });
    let mut rank = 0;
    let mut entries: Vec<Entry> = Vec::with_capacity(parsed.len());
    for (parsed, kv) in parsed {
        let same = entries.last().is_some_and(|last| last.name == parsed.name && last.max == parsed.max);
        rank = if same { rank + 1 } else { 0 };
        let standing = if rank < parsed.max { Standing::Held } else { Standing::Waiting };
        entries.push(Entry {
            name: parsed.name,
            max: parsed.max,
            standing,
            revision: kv.create_revision,
            lease: lease_hex(kv.lease),
            record: Record::decode(&kv.value),
        });
    }
    entries
}

/// A runtime that is not waited for: a resolver may hang in a thread of its.
struct Looking(Option<Runtime>);

impl Looking {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        match &self.0 {
            Some(runtime) => crate::sys::without_sigpipe(|| runtime.block_on(future)),
            None => unreachable!("it is taken only when dropped"),
        }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A view of the claims in a cluster. Blocks; runs nothing in the background.
pub struct Inspector {
    runtime: Looking,
    client: Client,
    keys: Keys,
    dial_timeout: Duration,
}

impl Inspector {
    /// Makes ready to look; the first request connects.
    ///
    /// # Errors
    ///
    /// Bad certificates, no descriptors.
    pub fn new(config: &Config) -> Result<Inspector, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::system("start", error))?;
        let client = Client::new(config)?;
        Ok(Inspector {
            runtime: Looking(Some(runtime)),
            client,
            keys: Keys::new(config.prefix()),
            dial_timeout: config.dial_timeout(),
        })
    }

    fn range(&self, name: Option<&[u8]>) -> Range {
        name.map_or_else(|| self.keys.all(), |name| self.keys.name(name))
    }

    /// Everybody who holds or waits for `name`, whatever the capacity, or for any name.
    ///
    /// # Errors
    ///
    /// No answer within the dial timeout, or a refusal.
    pub fn list(&self, name: Option<&[u8]>) -> Result<Vec<Entry>, Error> {
        let range = txn::list(&self.range(name));
        let until = Instant::now() + self.dial_timeout;
        let answer = self.runtime.block_on(self.client.call(range, until))?;
        Ok(entries(&self.keys, &Listing::new(answer)))
    }

    /// Whether `name` could be had now: fewer contenders than slots, so nobody is overtaken. With `host`, not if that
    /// host has a key of its own among them.
    ///
    /// # Errors
    ///
    /// As [`Inspector::list`].
    pub fn available(&self, name: &[u8], max: u32, host: Option<&str>) -> Result<bool, Error> {
        let range = txn::list(&self.keys.contenders(name, max));
        let until = Instant::now() + self.dial_timeout;
        let listing = Listing::new(self.runtime.block_on(self.client.call(range, until))?);
        let taken = host.is_some_and(|host| listing.get(&self.keys.by_host(name, max, host)).is_some());
        Ok(!taken && listing.kvs.len() < usize::try_from(max).unwrap_or(usize::MAX))
    }

    /// Ends what others hold of this claim: their keys are deleted, they notice and stop. How many there were. Waiters
    /// keep their places.
    ///
    /// # Errors
    ///
    /// As [`Inspector::list`]; then some may have been ended.
    pub fn force_release(&self, name: &[u8], max: u32) -> Result<usize, Error> {
        let until = Instant::now() + self.dial_timeout;
        self.runtime.block_on(async {
            let holders = Listing::new(self.client.call(txn::list(&self.keys.contenders(name, max)), until).await?).kvs;
            let slots = match max {
                1 => Listing::default(),
                _ => Listing::new(self.client.call(txn::list(&self.keys.slots(name, max)), until).await?),
            };
            let mut ended = 0;
            for holder in holders.iter().take(usize::try_from(max).unwrap_or(usize::MAX)) {
                let slot = slots.kvs.iter().find(|slot: &&KeyValue| slot.lease == holder.lease);
                if !self.client.call(txn::force(holder, slot), until).await?.succeeded {
                    continue;
                }
                ended += 1;
                if Record::decode(&holder.value).is_some_and(|record| record.until_ms.is_some()) {
                    // A lease that may have a long time to run, and nobody any more who would end it. There is nothing on
                    // it: should this fail, it costs the cluster a line.
                    let _ = self.client.call(RevokeRequest { id: holder.lease }, until).await;
                }
            }
            Ok(ended)
        })
    }

    /// Follows the contenders for `name`, or for any name.
    pub fn follow(&self, name: Option<&[u8]>) -> Follow<'_> {
        Follow { inspector: self, range: self.range(name), watch: None, listed: false }
    }
}

/// Changes as they come, from [`Inspector::follow`].
pub struct Follow<'a> {
    inspector: &'a Inspector,
    range: Range,
    watch: Option<Watch>,
    listed: bool,
}

impl Follow<'_> {
    /// Everybody who holds or waits: at once the first time, then after the next change. `None` if `timeout` passes
    /// without one. Several changes may be told as one; after trouble with the cluster, a change that is none may be
    /// told.
    ///
    /// # Errors
    ///
    /// A refusal, or no endpoint answered for the dial timeout. It may be called again.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<Vec<Entry>>, Error> {
        let inspector = self.inspector;
        inspector.runtime.block_on(async {
            if let Some(watch) = self.watch.as_mut().filter(|_| self.listed) {
                let changed = match timeout.and_then(|timeout| Instant::now().checked_add(timeout)) {
                    Some(until) => timeout_at(until, watch.next()).await,
                    None => Ok(watch.next().await),
                };
                match changed {
                    Err(_) => return Ok(None),
                    Ok(Ok(_)) => {}
                    Ok(Err(_)) => self.watch = None,
                }
            }
            let until = Instant::now() + inspector.dial_timeout;
            let listing = Listing::new(inspector.client.call(txn::list(&self.range), until).await?);
            self.listed = true;
            while self.watch.is_none() {
                let opened = Watch::open(
                    &inspector.client,
                    std::slice::from_ref(&self.range),
                    listing.revision,
                    Interest::Everything,
                    until,
                )
                .await;
                match opened {
                    Ok(watch) => self.watch = Some(watch),
                    Err(error) if error.kind() == ErrorKind::Refused || Instant::now() >= until => {
                        return Err(error);
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
            Ok(Some(entries(&inspector.keys, &listing)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_n_of_each_claim_hold() {
        let keys = Keys::new("/p/");
        let kv = |key: Vec<u8>, create_revision| KeyValue { key, create_revision, ..KeyValue::default() };
        let listing = Listing {
            revision: 9,
            kvs: vec![
                kv(keys.by_lease(b"b", 1, 1), 5),
                kv(keys.by_lease(b"a", 2, 2), 6),
                kv(keys.by_lease(b"a", 2, 3), 4),
                kv(keys.by_lease(b"a", 2, 4), 7),
                kv(b"/p/sema/foreign".to_vec(), 1),
                kv(keys.by_lease(b"a", 1, 5), 8),
            ],
        };
        let shown: Vec<_> = entries(&keys, &listing)
            .into_iter()
            .map(|entry| (entry.name, entry.max, entry.revision, entry.standing == Standing::Held))
            .collect();
        let (a, b) = (b"a".to_vec(), b"b".to_vec());
        assert_eq!(
            shown,
            [
                (a.clone(), 1, 8, true),
                (a.clone(), 2, 4, true),
                (a.clone(), 2, 6, true),
                (a, 2, 7, false),
                (b, 1, 5, true)
            ]
        );
    }
}
