//! A listing of contenders that is kept up to date as far as it matters to one of them, while a session lasts.
//!
//! A watch begins at the revision after the listing, so nothing falls between them.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::client::Client;
use super::keys::Range;
use super::record::Record;
use super::session::{Loss, Session};
use super::txn::{self, Listing};
use super::watch::{Interest, Watch};
use super::wire::{Event, KeyValue};

const OPENING: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(100);

/// A waiter looks again after this, whatever it was told: for people who want to see their place, and so that nothing
/// that goes wrong elsewhere leaves it asleep.
const LOOK: Duration = Duration::from_secs(10);

/// What has changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// These of the watched keys were deleted; the listing is without them.
    Deleted(Vec<Vec<u8>>),
    /// The listing is a new one.
    Listed,
}

/// Why waiting ends without success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Lost(Loss),
    /// The time is over.
    Over,
}

/// Contenders, as far as they are watched.
pub(crate) struct Trail<'a> {
    client: &'a Client,
    contenders: &'a Range,
    deadline: Instant,
    watch: Option<Watch>,
    pub listing: Listing,
    /// Whether anything was waited for.
    pub waited: bool,
}

impl<'a> Trail<'a> {
    pub(super) fn new(client: &'a Client, contenders: &'a Range, listing: Listing, deadline: Instant) -> Trail<'a> {
        Trail { client, contenders, deadline, watch: None, listing, waited: false }
    }

    /// A listing that somebody else made.
    pub(super) fn restart(&mut self, listing: Listing) {
        self.listing = listing;
        self.watch = None;
    }

    /// Waits for the next change of `watched`, which stay the same until there is a new listing.
    pub(super) async fn next(&mut self, session: &mut Session, watched: &[Range]) -> Result<Step, Stop> {
        if Instant::now() >= self.deadline {
            return Err(Stop::Over);
        }
        self.waited = true;
        let deadline = self.deadline;
        tokio::select! {
            step = self.step(watched) => Ok(step),
            loss = session.lost() => Err(Stop::Lost(loss)),
            () = sleep_until(deadline) => Err(Stop::Over),
        }
    }

    /// Lists anew, as often as it takes.
    pub(super) async fn refresh(&mut self, session: &mut Session) -> Result<(), Stop> {
        let deadline = self.deadline;
        tokio::select! {
            () = self.relist() => Ok(()),
            loss = session.lost() => Err(Stop::Lost(loss)),
            () = sleep_until(deadline) => Err(Stop::Over),
        }
    }

    async fn step(&mut self, watched: &[Range]) -> Step {
        loop {
            let watch = match &mut self.watch {
                Some(watch) => watch,
                None => {
                    let (listed, until) = (self.listing.revision, Instant::now() + OPENING);
                    match Watch::open(self.client, watched, listed, Interest::Everything, until).await {
                        Ok(watch) => self.watch.insert(watch),
                        // Refused or silent: the session, or the next listing, will know what that means.
                        Err(_) => {
                            sleep(PAUSE).await;
                            self.relist().await;
                            return Step::Listed;
                        }
                    }
                }
            };
            let Ok(Ok(events)) = timeout(LOOK, watch.next()).await else {
                self.relist().await;
                return Step::Listed;
            };
            let mut deleted = Vec::new();
            let mut promoted = false;
            for (is_delete, kv) in events.into_iter().filter_map(|event| Some((Event::is_delete(&event), event.kv?))) {
                self.listing.revision = self.listing.revision.max(kv.mod_revision);
                match is_delete {
                    true => deleted.push(kv.key),
                    false => promoted |= self.rewritten(kv),
                }
            }
            self.listing.kvs.retain(|kv| !deleted.contains(&kv.key));
            if !deleted.is_empty() {
                return Step::Deleted(deleted);
            }
            if promoted {
                // Somebody who is not watched has gone. Who knows that now needs not ask when its own turn has come.
                self.relist().await;
                return Step::Listed;
            }
        }
    }

    /// A neighbour has written its record anew: whether it says for the first time that it holds.
    fn rewritten(&mut self, new: KeyValue) -> bool {
        let holds = |kv: &KeyValue| Record::decode(&kv.value).is_some_and(|record| record.slot.is_some());
        match self.listing.kvs.iter_mut().find(|kv| kv.key == new.key && kv.create_revision == new.create_revision) {
            Some(old) => {
                let promoted = !holds(old) && holds(&new);
                *old = new;
                promoted
            }
            None => false,
        }
    }

    async fn relist(&mut self) {
        self.watch = None;
        loop {
            match self.client.call(txn::list(self.contenders), Instant::now() + OPENING).await {
                Ok(answer) => {
                    self.listing = Listing::new(answer);
                    return;
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }
}
