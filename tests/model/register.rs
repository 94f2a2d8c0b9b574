//! The child of a supervised run: it registers itself and becomes COMMAND.

use crate::local::Local;
use crate::mutations::Mutation as M;
use crate::state::{CHILD, COMMAND_OF, Command, NOBODY, State};

impl Local {
    /// Whether the child of `p` can do its next step.
    pub(crate) fn child_ready(&self, st: &State, p: usize) -> bool {
        let q = &st.procs[p];
        match q.command {
            Command::Forked => q.lock == NOBODY || self.is(M::RegisterUnlocked),
            Command::None | Command::Ended => false,
            _ => true,
        }
    }

    /// register, in the child, and then exec.
    pub(crate) fn child_step(&self, st: &mut State, p: usize) {
        match st.procs[p].command {
            Command::Forked => {
                let q = &mut st.procs[p];
                q.command = Command::Locked;
                if !self.is(M::RegisterUnlocked) {
                    q.lock = CHILD;
                }
            }
            Command::Locked if st.named(p).is_none() && !self.is(M::RegisterUnchecked) => self.command_ends(st, p),
            Command::Locked => st.procs[p].command = Command::Checked,
            Command::Checked => {
                let q = &mut st.procs[p];
                q.registered = true;
                q.command = Command::Stored;
            }
            // Unlocks and executes. It is on record, so nobody asks the lock any more what it is.
            Command::Stored => {
                let q = &mut st.procs[p];
                q.command = Command::Running;
                if q.lock == CHILD {
                    q.lock = NOBODY;
                }
            }
            Command::Running => self.command_ends(st, p),
            Command::None | Command::Ended => {}
        }
    }

    pub(crate) fn command_ends(&self, st: &mut State, p: usize) {
        let q = &mut st.procs[p];
        q.command = Command::Ended;
        if q.lock == CHILD {
            q.lock = NOBODY;
        }
        Self::pidfd_readable(st, COMMAND_OF + p as u8);
    }
}
