//! Taking, reclaiming, holding, releasing, dying. Each function is one step: what other processes can see of it
//! happens at once. Reading that cannot be told apart from reading a moment later is in the same step; every such
//! place says why.

use crate::local::Local;
use crate::mutations::Mutation as M;
use crate::state::{CLOCK_ONLY, COMMAND_OF, Command, Life, MAX, NOBODY, Pc, State, Ticket, Word, Wrong};

impl Local {
    /// Whether the next step of `p` can be done, for a process that is running.
    pub(crate) fn ready(&self, st: &State, p: usize) -> bool {
        let q = &st.procs[p];
        match q.pc {
            Pc::Done | Pc::Dead => false,
            Pc::Asleep => q.byte || q.awake,
            Pc::Hold => !self.roles[p].command || q.command == Command::Ended || self.is(M::ReleaseBeforeReap),
            // The slow doors wait for the lock.
            Pc::Door => q.lock == NOBODY,
            Pc::ForceDoor => st.procs[usize::from(q.r)].lock == NOBODY || self.is(M::ForceUnlocked),
            _ => true,
        }
    }

    /// Does the next step of `p`.
    pub(crate) fn step(&self, st: &mut State, p: usize) {
        match st.procs[p].pc {
            Pc::Idle => self.start(st, p),
            Pc::Take => self.take(st, p),
            Pc::Open => self.open(st, p),
            Pc::Judge => self.judge(st, p),
            Pc::Lock => self.lock(st, p),
            Pc::Again => self.again(st, p),
            Pc::Same => self.same(st, p),
            Pc::Unlink => self.unlink(st, p),
            Pc::LetGo => self.let_go(st, p),
            Pc::Fence => self.fence(st, p),
            Pc::Check => self.check(st, p),
            Pc::Fork => {
                st.procs[p].command = Command::Forked;
                st.procs[p].pc = Pc::Hold;
            }
            Pc::Hold if self.is(M::WakeBeforeUnlink) => st.procs[p].pc = Pc::Tell,
            Pc::Hold => st.procs[p].pc = Pc::Swap,
            Pc::Swap => self.swap(st, p),
            Pc::Drop => self.drop_slot(st, p),
            Pc::Door => self.door(st, p),
            Pc::DoorUnlink => self.door_unlink(st, p),
            Pc::ForceOpen => self.force_open(st, p),
            Pc::ForceCas => self.force_cas(st, p),
            Pc::ForceDoor => self.force_door(st, p),
            Pc::ForceUnlink => self.force_unlink(st, p),
            _ => self.queue_step(st, p),
        }
    }

    /// A process begins. The newcomer's look at the queue is part of this step, and so is what the order demands of
    /// it: who is in the queue when it begins is served before it.
    fn start(&self, st: &mut State, p: usize) {
        let me = &mut st.procs[p];
        // A record that is used again becomes HELD before it is linked.
        me.word = Word::Held;
        me.forced = false;
        if self.roles[p].force {
            me.pc = Pc::ForceOpen;
            return;
        }
        for q in 0..MAX {
            if self.ought_to_be_served(st, q) && self.roles[q].class <= self.roles[p].class {
                st.procs[p].older |= 1 << q;
            }
        }
        if st.queue && !self.is(M::NewcomerIgnoresQueue) {
            self.drop_dead_tickets(st);
            if (0..MAX).any(|q| self.eligible(st, q) && self.roles[q].class <= self.roles[p].class) {
                if self.roles[p].nonblock {
                    self.finish(st, p);
                } else {
                    st.procs[p].pc = Pc::Mkdir;
                }
                return;
            }
        }
        self.go_take(st, p);
    }

    pub(crate) fn go_take(&self, st: &mut State, p: usize) {
        st.procs[p].s = 0;
        st.procs[p].r = NOBODY;
        st.procs[p].pc = Pc::Take;
        if self.is(M::FenceBeforeLink) && st.procs[p].fence == 0 {
            st.drawn += 1;
            st.procs[p].fence = st.drawn;
        }
    }

    /// linkat(record, claims/KEY.s)
    fn take(&self, st: &mut State, p: usize) {
        let s = st.procs[p].s;
        if st.slots[usize::from(s)] != NOBODY {
            st.procs[p].pc = Pc::Open;
            return;
        }
        st.slots[usize::from(s)] = p as u8;
        // Nobody may still be waiting that had to be served before.
        if st.procs[p].older != 0 {
            st.wrong = Wrong::Order;
        }
        self.no_longer_waits(st, p);
        if self.slots == 1 {
            for (o, q) in st.procs.iter_mut().enumerate() {
                q.stale |= o != p && matches!(q.pc, Pc::Fence | Pc::Check);
            }
        }
        let me = &mut st.procs[p];
        me.slot = s;
        me.s = 0;
        me.older = 0;
        me.watch = [NOBODY; 3];
        me.suspects = 0;
        me.pc = Pc::Fence;
    }

    /// Opens the slot and reads the record.
    fn open(&self, st: &mut State, p: usize) {
        let r = st.slots[usize::from(st.procs[p].s)];
        if r == NOBODY && st.procs[p].tidying {
            self.next_slot(st, p);
        } else if r != NOBODY {
            st.procs[p].r = r;
            st.procs[p].knows = st.procs[usize::from(r)].registered;
            st.procs[p].pc = Pc::Judge;
        } else if self.is(M::VanishedIsHeld) {
            self.held(st, p, NOBODY);
        } else {
            st.procs[p].pc = Pc::Take;
        }
    }

    /// Asks after the pids in what was read. Dead stays dead, so one moment serves for both.
    fn judge(&self, st: &mut State, p: usize) {
        let r = usize::from(st.procs[p].r);
        if self.found_dead(st, p, r) {
            st.procs[p].knows = false;
            st.procs[p].pc = Pc::Lock;
        } else {
            let watched = Self::living_part(st, r);
            self.held(st, p, watched);
        }
    }

    fn found_dead(&self, st: &State, p: usize, r: usize) -> bool {
        let command = st.procs[p].knows && st.procs[r].command_lives();
        st.procs[r].life == Life::Dead && (!command || self.is(M::JudgeClaimOnly))
    }

    /// Whose end a waiter waits for: `claim` while it lives, then COMMAND.
    fn living_part(st: &State, r: usize) -> u8 {
        if st.procs[r].life == Life::Dead { COMMAND_OF + r as u8 } else { r as u8 }
    }

    /// The slot is held. On to the next one; after the last a waiter sleeps, and a newcomer becomes a waiter.
    fn held(&self, st: &mut State, p: usize, watched: u8) {
        let waiter = st.procs[p].reader;
        let me = &mut st.procs[p];
        me.r = NOBODY;
        me.knows = false;
        if me.tidying {
            return self.next_slot(st, p);
        }
        if waiter {
            me.watch[usize::from(me.s)] = watched;
        }
        if usize::from(me.s) + 1 < self.slots {
            me.s += 1;
            me.pc = Pc::Take;
            return;
        }
        me.s = 0;
        if waiter {
            me.pc = Pc::Asleep;
            if self.is(M::DrainAfterLook) {
                me.byte = false;
            }
        } else if self.roles[p].nonblock {
            self.finish(st, p);
        } else {
            me.pc = Pc::Mkdir;
        }
    }

    /// flock(inode, LOCK_EX | LOCK_NB)
    fn lock(&self, st: &mut State, p: usize) {
        let r = usize::from(st.procs[p].r);
        if !self.is(M::NoReclaimLock) {
            if st.procs[r].lock != NOBODY {
                return self.held(st, p, CLOCK_ONLY);
            }
            st.procs[r].lock = p as u8;
        }
        st.procs[p].pc = Pc::Again;
    }

    /// Reads the record again and judges again. Under the lock nobody but the kernel changes the answer, and that only
    /// from alive to dead: so this may be one step.
    fn again(&self, st: &mut State, p: usize) {
        let r = usize::from(st.procs[p].r);
        st.procs[p].knows = st.procs[r].registered;
        if self.is(M::NoSecondReading) || self.found_dead(st, p, r) {
            st.procs[p].knows = false;
            st.procs[p].pc = Pc::Same;
        } else {
            self.unlock(st, p, r);
            let watched = Self::living_part(st, r);
            self.held(st, p, watched);
        }
    }

    /// Looks whether the path still names the inode.
    fn same(&self, st: &mut State, p: usize) {
        let (s, r) = (usize::from(st.procs[p].s), usize::from(st.procs[p].r));
        let same = usize::from(st.slots[s]) == r || self.is(M::NoInodeCheck);
        st.procs[p].pc = if same { Pc::Unlink } else { Pc::LetGo };
    }

    pub(crate) fn unlock(&self, st: &mut State, p: usize, r: usize) {
        if usize::from(st.procs[r].lock) == p {
            st.procs[r].lock = NOBODY;
        }
    }

    fn unlink(&self, st: &mut State, p: usize) {
        st.slots[usize::from(st.procs[p].s)] = NOBODY;
        st.procs[p].pc = Pc::LetGo;
    }

    /// Unlocks, and goes on as anyone who finds the slot free.
    fn let_go(&self, st: &mut State, p: usize) {
        self.unlock(st, p, usize::from(st.procs[p].r));
        let me = &mut st.procs[p];
        me.r = NOBODY;
        me.pc = Pc::Take;
        if me.tidying {
            // Who frees a slot wakes the one whose turn it is.
            (me.tidying, me.s, me.pc) = (false, 0, Pc::Tell);
        }
    }

    /// Draws the fence.
    fn fence(&self, st: &mut State, p: usize) {
        if self.slots == 1 && !self.is(M::FenceBeforeLink) {
            st.drawn += 1;
            st.procs[p].fence = st.drawn;
        }
        st.procs[p].pc = Pc::Check;
    }

    /// Looks at the state word: who was forced is told nothing, since a later holder may have been told less.
    fn check(&self, st: &mut State, p: usize) {
        let me = st.procs[p];
        if me.word == Word::Held || self.is(M::FenceUnchecked) {
            self.tell_fence(st, p);
        }
        let me = &mut st.procs[p];
        (me.stale, me.overtaken, me.fence) = (false, false, 0);
        if me.reader {
            me.pc = Pc::Close;
        } else {
            self.served(st, p);
        }
    }

    fn tell_fence(&self, st: &mut State, p: usize) {
        if self.slots != 1 {
            // Above one slot all that is promised is that no two are the same: an atomic addition.
            return;
        }
        let me = st.procs[p];
        if me.overtaken || (!me.stale && me.fence <= st.told) {
            st.wrong = Wrong::Fence;
        }
        if !me.stale {
            st.told = me.fence;
            // Earlier custodies that have a larger number by now, or will have one when they draw it.
            for q in st.procs.iter_mut().filter(|q| q.stale) {
                q.overtaken |= q.fence == 0 || q.fence > me.fence;
            }
        }
    }

    /// The slot is had and the queue left.
    pub(crate) fn served(&self, st: &mut State, p: usize) {
        let me = &mut st.procs[p];
        me.pc = if me.word == Word::Revoked && !self.is(M::FenceUnchecked) {
            Pc::Swap
        } else if self.roles[p].command {
            Pc::Fork
        } else {
            Pc::Hold
        };
    }

    /// swap(state, RELEASING). The hold time goes into the queue's statistics before: who wrote there has its own
    /// tidying still to come.
    fn swap(&self, st: &mut State, p: usize) {
        let old = st.procs[p].word;
        if !self.is(M::ReleaseWithoutHandshake) {
            st.procs[p].word = Word::Releasing;
        }
        st.stats |= st.queue;
        if old == Word::Revoked && self.is(M::RevokedIsLeft) {
            return self.given_up(st, p);
        }
        let slow = old == Word::Revoked && !self.is(M::ReleaseIgnoresRevoked);
        st.procs[p].pc = if slow { Pc::Door } else { Pc::Drop };
    }

    /// Unlinks the slot without a look at it: since the state word was HELD, nobody else may.
    fn drop_slot(&self, st: &mut State, p: usize) {
        st.slots[usize::from(st.procs[p].slot)] = NOBODY;
        self.given_up(st, p);
    }

    /// The door that forcers use: lock, and look whether the slot is still mine. Under the lock nobody else unlinks it:
    /// this may be one step.
    fn door(&self, st: &mut State, p: usize) {
        if usize::from(st.slots[usize::from(st.procs[p].slot)]) == p {
            st.procs[p].lock = p as u8;
            st.procs[p].pc = Pc::DoorUnlink;
        } else {
            self.given_up(st, p);
        }
    }

    fn door_unlink(&self, st: &mut State, p: usize) {
        st.slots[usize::from(st.procs[p].slot)] = NOBODY;
        st.procs[p].lock = NOBODY;
        self.given_up(st, p);
    }

    fn given_up(&self, st: &mut State, p: usize) {
        let me = &mut st.procs[p];
        me.slot = NOBODY;
        let silent = self.is(M::WakeBeforeUnlink) || self.is(M::ReleaseWithoutWake);
        me.pc = if silent { Pc::Tidy } else { Pc::Tell };
    }

    pub(crate) fn finish(&self, st: &mut State, p: usize) {
        let me = &mut st.procs[p];
        me.r = NOBODY;
        me.s = 0;
        me.older = 0;
        me.fence = 0;
        if me.round + 1 < self.roles[p].rounds {
            me.round += 1;
            me.pc = Pc::Idle;
        } else {
            me.pc = Pc::Done;
        }
    }

    /// Everybody who polls this pidfd sees it, now or when it polls next.
    pub(crate) fn pidfd_readable(st: &mut State, who: u8) {
        for q in &mut st.procs {
            q.awake |= q.watch.contains(&who);
        }
    }

    /// `claim` is killed. The kernel drops its locks and closes its FIFO.
    pub(crate) fn die(&self, st: &mut State, p: usize) {
        self.no_longer_waits(st, p);
        if st.procs[p].reader {
            self.close_fifo(st, p);
        }
        for q in &mut st.procs {
            if usize::from(q.lock) == p {
                q.lock = NOBODY;
            }
        }
        Self::pidfd_readable(st, p as u8);
        let me = &mut st.procs[p];
        me.pc = Pc::Dead;
        me.life = Life::Dead;
        (me.byte, me.awake, me.knows, me.tidying) = (false, false, false, false);
        (me.lost, me.stale, me.overtaken) = (false, false, false);
        (me.slot, me.s, me.r, me.fence, me.suspects, me.older, me.round) = (NOBODY, 0, NOBODY, 0, 0, 0, 0);
        me.watch = [NOBODY; 3];
        if me.ticket == Ticket::None {
            me.rev = 0;
        }
    }
}
