//! Name spaces of their own inside a claim directory: each is laid out like a claim directory itself.
//!
//! Contenders of this host for claims across hosts meet there, a space for each cluster and prefix, so that they have
//! nothing to do with claims on this host alone.

use crate::error::{Error, Result};
use crate::local::dir::Directory;
#[cfg(all(feature = "cli", feature = "etcd"))]
use crate::local::layout;
use crate::local::layout::SPACES;

impl Directory {
    /// The space of that name, made if it is not there.
    #[cfg(all(feature = "cli", feature = "etcd"))]
    pub(crate) fn space(&self, id: &str) -> Result<Self> {
        let path = layout::space(id);
        loop {
            self.make_folder(SPACES)?;
            match self.make_folder(&path) {
                Ok(_) => {}
                // Somebody removes things under us; the directory itself may be gone.
                Err(_) if !self.is_removed()? && self.stat(SPACES)?.is_none() => continue,
                Err(error) => return Err(error),
            }
            if let Some(space) = Self::existing(&self.full(&path), true)? {
                return Ok(space);
            }
        }
    }

    /// All spaces that are there.
    pub(crate) fn spaces(&self) -> Result<Vec<Self>> {
        let names = self.list(SPACES)?;
        let found = names.iter().map(|name| Self::existing(&self.full(&format!("{SPACES}/{name}")), true));
        found.filter_map(|found: std::result::Result<Option<Self>, Error>| found.transpose()).collect()
    }
}
