//! A session: a lease kept alive, and until when it can be trusted.
//!
//! Trust ends when no renewal has succeeded for the TTL, as asked for or as granted, whichever is less, counted from when
//! the last good renewal was *sent*: etcd counts from when it got it, which is later. A new leader of etcd's gives every
//! lease its whole TTL anew, so this holds across leaders too; that the renewal was not one by a leader of the past is
//! what the read before it is for (`Client::renew`).

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::client::Client;
use super::clock::{Alarm, Moment};
use super::error::Error;
use super::leases::Leases;
use super::wire::GrantRequest;

/// What one endpoint may take for an answer once a session is there, at least and at most.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(1));

/// The longest TTL that etcd grants: 285 years.
const LONGEST: i64 = 9_000_000_000;

/// Called with the deadline of trust whenever it changes, and with [`Moment::ZERO`] when the claim is lost or given up.
pub type Share = Box<dyn Fn(Moment) + Send + Sync>;

/// Why a claim was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// No renewal was answered for the TTL.
    Expired,
    /// etcd has no such lease any more: it ended there, or somebody revoked it.
    Revoked,
    /// The key is gone: somebody deleted it.
    Deleted,
    /// The timers or the thread of this session failed, so nothing can be trusted.
    Blind,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Expired => "no renewal was answered within the TTL",
            Loss::Revoked => "the lease has ended or was revoked",
            Loss::Deleted => "the key was deleted",
            Loss::Blind => "the session's own timers or thread failed",
        })
    }
}

/// The deadline of trust, shared by all who go by it.
pub(crate) struct Trust {
    deadline: AtomicU64,
    lost: AtomicBool,
    share: Option<Share>,
}

impl Trust {
    pub(super) fn new(share: Option<Share>) -> Trust {
        Trust { deadline: AtomicU64::new(0), lost: AtomicBool::new(false), share }
    }

    /// Trust ends here unless it is renewed.
    pub(super) fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Not lost, and the deadline not reached.
    pub(super) fn holds(&self) -> bool {
        !self.lost.load(Ordering::Acquire) && Moment::now() < self.deadline()
    }

    /// A new session: its deadline may be earlier than that of the one before.
    pub(super) fn begin(&self, deadline: Moment) {
        self.deadline.store(deadline.nanos(), Ordering::Release);
        self.tell(deadline);
    }

    /// A renewal was answered. Answers may overtake each other; the latest deadline counts.
    pub(super) fn extend(&self, deadline: Moment) {
        let later = self.deadline.fetch_max(deadline.nanos(), Ordering::AcqRel) < deadline.nanos();
        if later && !self.lost.load(Ordering::Acquire) {
            self.tell(deadline);
        }
    }

    /// Lost: nothing makes it good again. What is shared becomes zero; the deadline itself stays to be read.
    pub(super) fn end(&self) {
        self.lost.store(true, Ordering::Release);
        self.tell(Moment::ZERO);
    }

    fn tell(&self, deadline: Moment) {
        if let Some(share) = &self.share {
            share(deadline);
        }
    }
}

/// What a session promises and how much of it is kept in reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The TTL as asked for.
    pub ttl: Duration,
    /// How long before the end of trust the work has to be told to stop.
    pub reserve: Duration,
}

impl Terms {
    /// How long one renewal is good for.
    pub(crate) fn life(self, granted: i64) -> Duration {
        self.ttl.min(Duration::from_secs(u64::try_from(granted).unwrap_or(0)))
    }

    /// Renewals follow each other after this: four fit in before the work has to be stopped.
    pub(crate) fn interval(self, life: Duration) -> Duration {
        (life.saturating_sub(self.reserve) / 4).max(Duration::from_millis(10))
    }

    /// The TTL to ask etcd for: whole seconds, at least `least`.
    pub(crate) fn seconds(self, least: Duration) -> i64 {
        let ttl = self.ttl.max(least);
        let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
        i64::try_from(seconds).unwrap_or(LONGEST).min(LONGEST)
    }
}

/// A lease that is kept alive in the background, as long as this is not dropped.
pub(crate) struct Session {
    pub lease: i64,
    /// How long one renewal is good for.
    pub life: Duration,
    renewing: JoinHandle<Loss>,
}

impl Session {
    /// Grants a lease for the TTL, or for `least` if that is longer, and begins to renew it. Its number is chosen here,
    /// so a grant whose answer was lost is sent again and not made twice. `key` is one that may be read, there or not.
    pub(super) async fn open(
        leases: &Leases,
        key: &[u8],
        terms: Terms,
        least: Duration,
        trust: &Arc<Trust>,
        until: Instant,
    ) -> Result<Session, Error> {
        let client = leases.client().clone();
        let lease = leases.choose()?;
        let ttl = terms.seconds(least);
        let sent = Moment::now();
        let life = match client.call(GrantRequest { ttl, id: lease }, until).await {
            Ok(granted) => terms.life(granted.ttl),
            // An earlier try got through. etcd grants what was asked, or more.
            Err(error) if error.is_lease_there() => terms.life(ttl),
            Err(error) => return Err(error),
        };
        trust.begin(sent.after(life));
        client.set_patience(terms.interval(life).clamp(PATIENCE.0, PATIENCE.1));
        let (trust, key) = (trust.clone(), key.to_vec());
        let renewing = tokio::spawn(async move {
            let renewed = renew(client, lease, &key, terms, &trust, sent, life);
            renewed.await.unwrap_or(Loss::Blind)
        });
        Ok(Session { lease, life, renewing })
    }

    /// Returns when the session is lost. May be dropped and called again until it has returned.
    pub(super) async fn lost(&mut self) -> Loss {
        (&mut self.renewing).await.unwrap_or(Loss::Blind)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

/// Renews a lease that was granted at `sent` for `life`, until it is lost.
///
/// A renewal that is not answered within the interval is left to be answered while the next goes to another endpoint; on
/// the last endpoint, over a fresh connection.
async fn renew(
    client: Client,
    id: i64,
    key: &[u8],
    terms: Terms,
    trust: &Trust,
    sent: Moment,
    life: Duration,
) -> io::Result<Loss> {
    let interval = terms.interval(life);
    let pause = interval.min(Duration::from_millis(100));
    let (end, next) = (Alarm::new()?, Alarm::new()?);
    let mut due = sent.after(interval);
    let mut tries = JoinSet::new();
    let mut step = 0;
    loop {
        tokio::select! {
            // The end first: an answer that is read after it comes too late, the work has been stopped.
            biased;
            ended = end.at(trust.deadline()) => {
                ended?;
                return Ok(Loss::Expired);
            }
            Some(done) = tries.join_next() => {
                let Ok((step_then, link, sent, answer)) = done else { continue };
                match answer {
                    Ok(granted) if granted > 0 => {
                        trust.extend(Moment::after(sent, terms.life(granted)));
                        if step_then > 0 {
                            client.adopt(&link);
                        }
                        // Older tries can only tell of earlier moments.
                        tries = JoinSet::new();
                        step = 0;
                        due = Moment::after(sent, interval);
                    }
                    Ok(_) => return Ok(Loss::Revoked),
                    Err(_) => {
                        if step_then == 0 {
                            client.leave(&link);
                            step = 0;
                        }
                        due = due.min(Moment::now().after(pause));
                    }
                }
            }
            rung = next.at(due) => {
                rung?;
                let link = client.link(step);
                let (client, key, step_now) = (client.clone(), key.to_vec(), step);
                tries.spawn(async move {
                    let sent = Moment::now();
                    let answer = client.renew(&link, id, &key).await;
                    (step_now, link, sent, answer)
                });
                step += 1;
                due = Moment::now().after(interval);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn the_defaults_renew_once_a_second() {
        let terms = Terms { ttl: Duration::from_secs(10), reserve: Duration::from_secs(6) };
        assert_eq!(terms.interval(terms.life(10)), Duration::from_secs(1));
        assert_eq!(terms.life(7), Duration::from_secs(7));
        assert_eq!(terms.life(60), Duration::from_secs(10));
        assert_eq!(terms.life(-1), Duration::ZERO);
    }

    #[test]
    fn seconds_are_rounded_up() {
        let terms = Terms { ttl: Duration::from_millis(1500), reserve: Duration::ZERO };
        assert_eq!(terms.seconds(Duration::ZERO), 2);
        assert_eq!(terms.seconds(Duration::from_secs(60)), 60);
        assert_eq!(terms.seconds(Duration::MAX), LONGEST);
    }

    #[test]
    fn trust_grows_until_it_is_lost() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let also = told.clone();
        let trust = Trust::new(Some(Box::new(move |moment| also.lock().unwrap().push(moment))));
        assert!(!trust.holds());
        let (near, far) = (Moment::now().after(Duration::from_secs(5)), Moment::now().after(Duration::from_secs(9)));
        trust.begin(near);
        trust.extend(far);
        trust.extend(near);
        assert!(trust.holds());
        assert_eq!(trust.deadline(), far);
        trust.end();
        trust.extend(far.after(Duration::from_secs(1)));
        assert!(!trust.holds());
        assert_eq!(*told.lock().unwrap(), [near, far, Moment::ZERO]);
    }
}
