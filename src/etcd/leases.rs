//! The leases that may be there on our account: whoever stops early knows what to revoke.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};
use tokio::time::Instant;

use super::client::Client;
use super::error::Error;
use super::wire::RevokeRequest;

/// How long a release may take.
pub(crate) const RELEASE: Duration = Duration::from_secs(1);

/// Leases that were asked for and not given back yet.
pub(crate) struct Leases {
    client: Client,
    open: Mutex<Vec<i64>>,
}

impl Leases {
    pub(super) fn new(client: Client) -> Leases {
        Leases { client, open: Mutex::default() }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    fn open(&self) -> MutexGuard<'_, Vec<i64>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a lease: positive, and nobody else's. It counts as open from now on.
    pub(super) fn choose(&self) -> Result<i64, Error> {
        let mut bytes = [0u8; 8];
        loop {
            getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| Error::system("choose a lease", error))?;
            let lease = i64::from_ne_bytes(bytes) & i64::MAX;
            if lease != 0 {
                self.open().push(lease);
                return Ok(lease);
            }
        }
    }

    /// Lets a lease run until its own end.
    pub(super) fn let_run(&self, lease: i64) {
        self.open().retain(|open| *open != lease);
    }

    /// Revokes a lease, and with it deletes its keys. That there is none any more is fine.
    pub(super) async fn revoke(&self, lease: i64, until: Instant) -> Result<(), Error> {
        match self.client.call(RevokeRequest { id: lease }, until).await {
            Err(error) if !error.is_no_lease() => Err(error),
            _ => {
                self.let_run(lease);
                Ok(())
            }
        }
    }

    /// Revokes whatever is open; together no longer than one release.
    pub(super) async fn revoke_all(&self) -> Result<(), Error> {
        let until = Instant::now() + RELEASE;
        let open = self.open().clone();
        let mut result = Ok(());
        for lease in open {
            result = result.and(self.revoke(lease, until).await);
        }
        result
    }
}
