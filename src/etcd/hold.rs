//! From holding to released: noticing the loss, and giving up what is held.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::bid::Bid;
use super::client::Client;
use super::clock::Moment;
use super::contend::Custody;
use super::error::{Error, ErrorKind};
use super::keys::{Keys, Range};
use super::leases::{Leases, RELEASE};
use super::record::Record;
use super::session::{Loss, Terms};
use super::txn;
use super::watch::{Interest, Watch};
use super::wire::GrantRequest;

const PAUSE: Duration = Duration::from_millis(50);
const OPENING: Duration = Duration::from_secs(1);
const REFUSED: Duration = Duration::from_secs(1);

/// Returns when the key of that create revision is gone. A cluster that does not answer proves nothing: how long that may
/// go on is for the lease to say.
pub(crate) async fn deleted(client: &Client, key: &[u8], created: i64, mut revision: i64) -> Loss {
    loop {
        let until = Instant::now() + OPENING;
        match Watch::open(client, &[Range::only(key)], revision, Interest::Deletions, until).await {
            Ok(mut watch) => {
                while let Ok(events) = watch.next().await {
                    if events.iter().any(|event| event.is_delete()) {
                        return Loss::Deleted;
                    }
                }
            }
            Err(_) => sleep(PAUSE).await,
        }
        match client.call(txn::get(key), Instant::now() + OPENING).await {
            Ok(answer) => {
                if !answer.kvs.iter().any(|kv| kv.create_revision == created) {
                    return Loss::Deleted;
                }
                revision = answer.header.map_or(revision, |header| header.revision);
            }
            Err(error) if error.kind() == ErrorKind::Refused => sleep(REFUSED).await,
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Writes the record anew, which now names the process that runs under the claim. What lease the key is on stays as it
/// is. It is for people, so a failure is nobody's business: the session goes on by itself.
pub(crate) fn publish<'a>(client: &'a Client, custody: &Custody) -> impl Future<Output = ()> + Send + use<'a> {
    let request = txn::rewrite(&custody.key, custody.created, custody.record.encode(), None, None);
    async move {
        let _ = client.call(request, Instant::now() + RELEASE).await;
    }
}

/// Gives up what is held, within a second. What is left of `--at-least` goes on without a process: the key moves to a
/// lease that runs so long, its create revision stays.
pub(crate) async fn release(
    leases: &Leases,
    keys: &Keys,
    bid: &Bid,
    custody: Custody,
    lost: Option<Loss>,
) -> Result<(), Error> {
    let Custody { key, created, slot, since, record, session, .. } = custody;
    let lease = session.lease;
    drop(session);
    let until = Instant::now() + RELEASE;
    let left = since.after(bid.at_least).since(Moment::now());
    let give_up = async {
        match lost {
            // The lease runs to its end by itself, and not less long than it has to.
            Some(Loss::Expired | Loss::Blind) if !left.is_zero() => return Ok(()),
            // It was taken away on purpose, or it has run as long as it should.
            Some(_) => {}
            None if left.is_zero() => {}
            None => {
                let rest = leases.choose()?;
                let terms = Terms { ttl: left, reserve: Duration::ZERO };
                let grant = GrantRequest { ttl: terms.seconds(Duration::ZERO), id: rest };
                match leases.client().call(grant, until).await {
                    Err(error) if !error.is_lease_there() => return Err(error),
                    _ => {}
                }
                let slot = (bid.max > 1).then(|| keys.slot(&bid.name, bid.max, slot));
                let record = Record { resting: true, ..record };
                let moved = txn::rewrite(&key, created, record.encode(), Some(rest), slot.as_deref());
                leases.client().call(moved, until).await?;
                leases.let_run(rest);
            }
        }
        leases.revoke(lease, until).await
    };
    match timeout_at(until, give_up).await {
        Ok(done) => done,
        Err(_) => Err(Error::new(ErrorKind::Unreachable, "release claim", "no answer within a second")),
    }
}
