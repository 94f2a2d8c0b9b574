//! Watching keys go. What disturbs a watch (compaction, a cancellation, a stream's end, requests moving to another
//! endpoint) is one answer: list again and open a new one.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tonic::Streaming;

use super::client::{Client, Link};
use super::error::{Error, ErrorKind};
use super::keys::Range;
use super::wire::{Event, WatchCreate, WatchResponse};

/// Before a watch that was refused is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// Which changes a watch tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    Deletions,
    Everything,
}

/// A watch that is open.
pub(crate) struct Watch {
    client: Client,
    link: Link,
    stream: Streaming<WatchResponse>,
    moves: tokio::sync::watch::Receiver<u64>,
}

/// The watch is over; what was seen before may be out of date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Disturbed;

impl Watch {
    /// Watches `ranges` from the revision after `listed`.
    ///
    /// # Errors
    ///
    /// As the endpoint in use says, or silence until `until`; requests have then moved on.
    pub(super) async fn open(
        client: &Client,
        ranges: &[Range],
        listed: i64,
        interest: Interest,
        until: Instant,
    ) -> Result<Watch, Error> {
        let moves = client.moves();
        let link = client.link(0);
        let filters = match interest {
            Interest::Deletions => vec![0],
            Interest::Everything => vec![],
        };
        let create = |range: &Range| WatchCreate {
            key: range.start.clone(),
            range_end: range.end(),
            start_revision: listed + 1,
            filters: filters.clone(),
        };
        let create = ranges.iter().map(create).collect();
        let opened = timeout_at(until, client.watch(&link, create)).await;
        let opened = opened.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unreachable, "watch claims", "no answer")));
        match opened {
            Ok(stream) => Ok(Watch { client: client.clone(), link, stream, moves }),
            Err(error) => {
                client.leave(&link);
                Err(error.at(client.name(&link)))
            }
        }
    }

    /// The next changes, in order, at least one. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Result<Vec<Event>, Disturbed> {
        loop {
            let answer = tokio::select! {
                answer = self.stream.message() => answer,
                // Requests have moved because this endpoint does not answer, so it may keep quiet for ever here too.
                _ = self.moves.changed() => return Err(Disturbed),
            };
            match answer {
                Ok(Some(answer)) if answer.canceled => {
                    // etcd 3.4 says "permission denied" to a watch whose token it has forgotten. The listing that
                    // follows tells which it is.
                    if answer.cancel_reason.contains("permission denied") {
                        self.client.forget_token().await;
                        sleep(PAUSE).await;
                    }
                    return Err(Disturbed);
                }
                Ok(Some(answer)) if answer.compact_revision != 0 => return Err(Disturbed),
                Ok(Some(answer)) if answer.events.is_empty() => {}
                Ok(Some(answer)) => return Ok(answer.events),
                Ok(None) | Err(_) => {
                    self.client.leave(&self.link);
                    return Err(Disturbed);
                }
            }
        }
    }
}
