//! What this host's processes have on record of claims across hosts, whatever the cluster: no server is asked.

use crate::clock;
use crate::error::Result;
use crate::local::dir::Directory;
use crate::local::holder::Opened;
use crate::local::layout::{CLAIMS, Layout, SlotName};
use crate::name::{Key, Name};
use crate::record::{Far, HELD, Live};

/// A slot of this host's that is had, or was, for a claim across hosts.
pub(crate) struct Slot {
    pub(crate) pid: i32,
    pub(crate) far: Far,
    live: Live,
}

impl Slot {
    /// Held across hosts, and to be trusted at this moment.
    pub(crate) fn is_good(&self) -> bool {
        self.live.state == HELD && self.far.trusted_until > clock::boot_ns()
    }
}

/// What the processes that keep sessions have on record for that name.
pub(crate) fn slots(dir: &Directory, name: &Name) -> Result<Vec<Slot>> {
    let mut slots = Vec::new();
    for space in dir.spaces()? {
        for file in space.list(CLAIMS)? {
            let Some(slot) = SlotName::parse(&file) else { continue };
            let layout = Layout::of(&Key { name: name.clone(), max: slot.max });
            if slot.key != layout.key() {
                continue;
            }
            if let Some(opened) = Opened::at(&space, &layout.slot(slot.slot))? {
                let live = opened.record.live;
                slots.push(Slot { pid: opened.record.body.process.pid, far: live.far, live });
            }
        }
    }
    Ok(slots)
}

/// Those of them that one of these processes has, as `claim` or as its COMMAND.
pub(crate) fn above(dir: &Directory, name: &Name, processes: &[i32]) -> Result<Vec<Slot>> {
    let mut slots = slots(dir, name)?;
    slots.retain(|slot| {
        let command = slot.live.command.map(|command| command.pid);
        processes.contains(&slot.pid) || command.is_some_and(|command| processes.contains(&command))
    });
    Ok(slots)
}
