//! Claims on one host, through a directory that all who take part use.
//!
//! Why at most N hold a name at once (the invariant everything here serves): a slot is had by linkat(2) to its name alone,
//! which fails while the name is there ([`link`]); and its name is removed by its living holder alone, or by whoever has
//! proven that holder dead, or revoked it, and has the lock that goes with that ([`reclaim`]).

pub(crate) mod counter;
pub(crate) mod dir;
pub(crate) mod fresh;
pub(crate) mod history;
pub(crate) mod holder;
pub(crate) mod identity;
pub(crate) mod layout;
pub(crate) mod link;
pub(crate) mod liveness;
pub(crate) mod master;
pub(crate) mod process;
pub(crate) mod procfs;
pub(crate) mod queue;
pub(crate) mod reclaim;
pub(crate) mod remnant;
pub(crate) mod ring;
pub(crate) mod slots;
mod space;
pub(crate) mod wait;

use crate::error::Result;
use crate::name::Key;
use dir::Directory;
use identity::Identity;
use layout::Layout;

/// One claim in one directory, as this process sees it.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) dir: Directory,
    pub(crate) key: Key,
    pub(crate) layout: Layout,
    pub(crate) me: Identity,
}

impl Place {
    pub(crate) fn new(dir: Directory, key: Key) -> Result<Self> {
        let (layout, me) = (Layout::of(&key), Identity::of_this_process()?);
        Ok(Self { dir, key, layout, me })
    }
}
