//! Forcing: an operator ends a custody, whoever has it.

use crate::local::Local;
use crate::mutations::Mutation as M;
use crate::state::{NOBODY, Pc, State, Word};

impl Local {
    /// Opens the first slot that is held.
    pub(crate) fn force_open(&self, st: &mut State, p: usize) {
        let s = usize::from(st.procs[p].s);
        if st.slots[s] != NOBODY {
            st.procs[p].r = st.slots[s];
            st.procs[p].pc = Pc::ForceCas;
        } else if s + 1 < self.slots {
            st.procs[p].s += 1;
        } else {
            self.finish(st, p);
        }
    }

    /// CAS(state, HELD -> REVOKED). RELEASING: the holder is just going. REVOKED: another forcer was here and may have
    /// died; its work is finished.
    pub(crate) fn force_cas(&self, st: &mut State, p: usize) {
        let r = usize::from(st.procs[p].r);
        if st.procs[r].word == Word::Releasing && !self.is(M::ForceWithoutCas) {
            return self.finish(st, p);
        }
        if !self.is(M::ForceWithoutCas) {
            st.procs[r].word = Word::Revoked;
        }
        st.procs[r].forced = true;
        st.procs[p].pc = Pc::ForceDoor;
    }

    /// Locks, and looks whether the record is still REVOKED and the slot still names it. The first is for records that
    /// are used again: in a later custody the same inode may have the same slot. The holder gets rid of REVOKED only
    /// through the same lock, so under it neither answer can change: one step.
    pub(crate) fn force_door(&self, st: &mut State, p: usize) {
        let (s, r) = (usize::from(st.procs[p].s), usize::from(st.procs[p].r));
        let revoked =
            st.procs[r].word == Word::Revoked || self.is(M::ForceWordUnchecked) || self.is(M::ForceWithoutCas);
        let same = usize::from(st.slots[s]) == r || self.is(M::ForceNoInodeCheck);
        if !revoked || !same {
            return self.finish(st, p);
        }
        if !self.is(M::ForceUnlocked) {
            st.procs[r].lock = p as u8;
        }
        st.procs[p].pc = Pc::ForceUnlink;
    }

    pub(crate) fn force_unlink(&self, st: &mut State, p: usize) {
        let (s, r) = (usize::from(st.procs[p].s), usize::from(st.procs[p].r));
        st.slots[s] = NOBODY;
        self.unlock(st, p, r);
        st.procs[p].r = NOBODY;
        st.procs[p].s = 0;
        if self.is(M::ForceWithoutWake) {
            self.finish(st, p);
        } else {
            st.procs[p].pc = Pc::Tell;
        }
    }
}
