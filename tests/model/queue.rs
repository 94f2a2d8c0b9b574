//! The queue: enqueue, look, wait, leave, wake, and the last one who turns out the light.

use crate::local::Local;
use crate::mutations::Mutation as M;
use crate::state::{Life, MAX, NOBODY, Pc, State, Ticket};

impl Local {
    /// Does the next step of `p`, which is one of those in this file.
    pub(crate) fn queue_step(&self, st: &mut State, p: usize) {
        match st.procs[p].pc {
            Pc::Mkdir => {
                st.queue = true;
                st.procs[p].pc = Pc::Mkfifo;
            }
            Pc::Mkfifo => self.mkfifo(st, p),
            Pc::OpenFifo => self.open_fifo(st, p),
            Pc::LinkRecord => {
                st.procs[p].private = true;
                st.procs[p].pc = if self.is(M::LinkBeforePublish) { Pc::Publish } else { Pc::WakeBehind };
            }
            Pc::Publish => self.publish(st, p),
            Pc::StartOver => self.start_over(st, p),
            Pc::WakeBehind => self.wake_behind(st, p),
            Pc::WriteBehind => self.write_behind(st, p),
            Pc::Look => self.look(st, p, false),
            Pc::Asleep if self.is(M::TakeWithoutList) => {
                st.procs[p].older |= self.served_before(st, p);
                st.procs[p].byte = false;
                st.procs[p].awake = false;
                st.procs[p].watch = [NOBODY; 3];
                self.go_take(st, p);
            }
            Pc::Asleep => self.look(st, p, false),
            Pc::Watch => self.watch(st, p),
            Pc::Close => self.close(st, p),
            Pc::Unticket => self.unticket(st, p),
            Pc::Tell => self.tell(st, p),
            Pc::Write => self.write(st, p),
            Pc::Tidy => self.tidy(st, p),
            Pc::Sweep => self.sweep(st, p),
            Pc::LastOut => self.last_out(st, p),
            Pc::Stats => {
                st.stats = false;
                st.procs[p].pc = Pc::Rmdir;
            }
            Pc::Rmdir => self.rmdir(st, p),
            _ => {}
        }
    }

    // Who stands before whom

    /// A ticket with a reader, of a process that is not seen to be stopped.
    pub(crate) fn eligible(&self, st: &State, q: usize) -> bool {
        let t = &st.procs[q];
        let stopped = t.life == Life::Stopped && !self.is(M::NoPassingStopped);
        t.ticket == Ticket::Published && t.reader && !stopped
    }

    fn precedes(&self, st: &State, q: usize, p: usize) -> bool {
        (self.roles[q].class, st.procs[q].rev) < (self.roles[p].class, st.procs[p].rev)
    }

    /// What the order demands, told without the directory: a process that has published a ticket, has neither taken a
    /// slot nor begun to leave, runs, and has had a chance to look since a cleaner took its ticket.
    pub(crate) fn ought_to_be_served(&self, st: &State, q: usize) -> bool {
        let t = &st.procs[q];
        let waiting = match t.pc {
            Pc::LinkRecord | Pc::WakeBehind | Pc::WriteBehind | Pc::Look | Pc::Watch | Pc::Asleep => true,
            Pc::Take | Pc::Open | Pc::Judge | Pc::Lock | Pc::Again | Pc::Same | Pc::Unlink | Pc::LetGo => t.reader,
            _ => false,
        };
        waiting && t.life == Life::Running && !t.lost
    }

    /// Those that ought to be served before `p`, seen from now.
    fn served_before(&self, st: &State, p: usize) -> u8 {
        let before = |q: usize| q != p && self.ought_to_be_served(st, q) && self.precedes(st, q, p);
        (0..MAX).filter(|&q| before(q)).fold(0, |m, q| m | 1 << q)
    }

    /// `p` waits no more, or has lost its claim to be served before those that can go on.
    pub(crate) fn no_longer_waits(&self, st: &mut State, p: usize) {
        for q in &mut st.procs {
            q.older &= !(1 << p);
        }
    }

    /// A slot that could be had at once. Where its holder is dead it counts, or else nobody would ever pass over a
    /// waiter that does not respond beside it.
    fn seen_available(&self, st: &State) -> bool {
        st.slots[..self.slots]
            .iter()
            .any(|&r| r == NOBODY || (!self.is(M::UnresponsiveNeedsFree) && st.dead(usize::from(r))))
    }

    // enqueue

    /// Draws the place number and makes the hidden FIFO. The number alone is seen by nobody: one step.
    fn mkfifo(&self, st: &mut State, p: usize) {
        if !st.queue {
            st.procs[p].pc = Pc::Mkdir;
            return;
        }
        let last = st.procs.iter().map(|q| q.rev).max().unwrap_or(0);
        let me = &mut st.procs[p];
        me.rev = last + 1;
        me.ticket = if self.is(M::PublishBeforeOpen) { Ticket::Published } else { Ticket::Hidden };
        me.pc = Pc::OpenFifo;
    }

    fn open_fifo(&self, st: &mut State, p: usize) {
        if st.procs[p].ticket == Ticket::None {
            st.procs[p].pc = Pc::StartOver;
        } else {
            st.procs[p].reader = true;
            st.procs[p].pc = if self.is(M::LinkBeforePublish) { Pc::LinkRecord } else { Pc::Publish };
        }
    }

    /// rename(`.rev`, class and rev)
    fn publish(&self, st: &mut State, p: usize) {
        if st.procs[p].ticket == Ticket::None {
            st.procs[p].pc = Pc::StartOver;
            return;
        }
        st.procs[p].ticket = Ticket::Published;
        st.procs[p].pc = if self.is(M::LinkBeforePublish) { Pc::WakeBehind } else { Pc::LinkRecord };
    }

    /// The ticket is gone: another name, another FIFO. What is left of the old ones goes first.
    fn start_over(&self, st: &mut State, p: usize) {
        if st.procs[p].reader {
            self.close_fifo(st, p);
        }
        st.procs[p].private = false;
        st.procs[p].rev = 0;
        st.procs[p].pc = Pc::Mkdir;
    }

    /// Lists the queue and finds the one that stood here until now.
    fn wake_behind(&self, st: &mut State, p: usize) {
        let behind = (0..MAX)
            .filter(|&q| q != p && self.eligible(st, q) && self.precedes(st, p, q))
            .reduce(|a, b| if self.precedes(st, a, b) { a } else { b });
        let look = if self.is(M::NoLookAfterEnqueue) { Pc::Asleep } else { Pc::Look };
        st.procs[p].pc = look;
        if let Some(q) = behind.filter(|_| !self.is(M::NoWakeBehind)) {
            st.procs[p].r = q as u8;
            st.procs[p].pc = Pc::WriteBehind;
        }
    }

    /// Wakes it. If it has gone meanwhile, its own successor was woken by that.
    fn write_behind(&self, st: &mut State, p: usize) {
        let r = usize::from(st.procs[p].r);
        st.procs[r].byte |= st.procs[r].reader;
        st.procs[p].r = NOBODY;
        st.procs[p].pc = if self.is(M::NoLookAfterEnqueue) { Pc::Asleep } else { Pc::Look };
    }

    // look and wait

    /// Tickets without a reader are unlinked, the private name first. Names are never used again, so a second one who
    /// does the same does no harm.
    pub(crate) fn drop_dead_tickets(&self, st: &mut State) {
        for q in &mut st.procs {
            if q.ticket == Ticket::Published && !q.reader {
                q.ticket = Ticket::None;
                q.private = false;
                q.rev = 0;
            }
        }
    }

    /// Empties the own FIFO, then lists the queue. A byte that comes in between costs a look for nothing: one step.
    pub(crate) fn look(&self, st: &mut State, p: usize, periodic: bool) {
        let me = &mut st.procs[p];
        me.byte &= self.is(M::DrainAfterLook);
        me.awake = false;
        me.watch = [NOBODY; 3];
        me.r = NOBODY;
        me.lost = false;
        st.procs[p].older |= self.served_before(st, p);
        if st.procs[p].ticket == Ticket::None && !self.is(M::NoRepublish) {
            self.no_longer_waits(st, p);
            st.procs[p].pc = Pc::StartOver;
            return;
        }
        self.drop_dead_tickets(st);
        let mut before: Vec<usize> =
            (0..MAX).filter(|&q| q != p && self.eligible(st, q) && self.precedes(st, q, p)).collect();
        before.sort_by_key(|&q| (self.roles[q].class, st.procs[q].rev));
        if periodic {
            self.pass_over_unresponsive(st, p, &mut before);
        }
        if let Some(&nearest) = before.last() {
            st.procs[p].r = nearest as u8;
            st.procs[p].pc = Pc::Watch;
        } else {
            self.go_take(st, p);
        }
    }

    /// Whoever stood first beside a slot that could be had at my last look, and does so still, is passed over.
    fn pass_over_unresponsive(&self, st: &mut State, p: usize, before: &mut Vec<usize>) {
        if self.freezes == 0 || self.is(M::NoPassingUnresponsive) {
            return;
        }
        let old = st.procs[p].suspects;
        let mut now = 0;
        if self.seen_available(st) {
            while let Some(&first) = before.first() {
                now |= 1 << first;
                if old & 1 << first == 0 {
                    break;
                }
                if self.is(M::OneSuspect) {
                    now = 1 << first;
                }
                before.remove(0);
                st.procs[p].older &= !(1 << first);
                if self.is(M::OneSuspect) {
                    break;
                }
            }
        }
        st.procs[p].suspects = now;
    }

    /// Opens the predecessor's FIFO for writing; ENXIO says that it has gone since the list.
    fn watch(&self, st: &mut State, p: usize) {
        let r = usize::from(st.procs[p].r);
        let gone = !st.procs[r].reader || st.procs[p].awake;
        if gone && !self.is(M::WatchUnchecked) {
            st.procs[p].r = NOBODY;
            st.procs[p].pc = Pc::Look;
        } else {
            st.procs[p].awake = false;
            st.procs[p].pc = Pc::Asleep;
            if self.is(M::DrainAfterLook) {
                st.procs[p].byte = false;
            }
        }
    }

    // leave

    /// The FIFO is closed: the kernel tells everybody who has it open for writing.
    pub(crate) fn close_fifo(&self, st: &mut State, p: usize) {
        st.procs[p].reader = false;
        st.procs[p].byte = false;
        for q in &mut st.procs {
            q.awake |= usize::from(q.r) == p && matches!(q.pc, Pc::Watch | Pc::Asleep);
        }
    }

    /// leave, first half. Served, timed out, interrupted: all the same.
    fn close(&self, st: &mut State, p: usize) {
        if self.is(M::LeaveSilently) {
            st.procs[p].reader = false;
            st.procs[p].byte = false;
        } else {
            self.close_fifo(st, p);
        }
        st.procs[p].awake = false;
        st.procs[p].pc = Pc::Unticket;
    }

    /// leave, second half: the private name, then the ticket, which is what others find a crash in between by.
    fn unticket(&self, st: &mut State, p: usize) {
        let me = &mut st.procs[p];
        me.private = false;
        me.ticket = Ticket::None;
        me.rev = 0;
        if me.slot != NOBODY {
            self.served(st, p);
        } else if self.is(M::LeaveWithoutTidy) {
            self.finish(st, p);
        } else {
            me.pc = Pc::Tidy;
        }
    }

    // wake, and the end of a queue

    /// Lists the queue and finds the one to wake.
    fn tell(&self, st: &mut State, p: usize) {
        if !st.queue {
            return self.told(st, p);
        }
        self.drop_dead_tickets(st);
        let first = (0..MAX)
            .filter(|&q| q != p && self.eligible(st, q))
            .reduce(|a, b| if self.precedes(st, a, b) { a } else { b });
        if let Some(q) = first {
            st.procs[p].r = q as u8;
            st.procs[p].pc = Pc::Write;
        } else {
            self.told(st, p);
        }
    }

    /// One byte into its FIFO; where it has gone, the next one is looked for.
    fn write(&self, st: &mut State, p: usize) {
        let r = usize::from(st.procs[p].r);
        st.procs[p].r = NOBODY;
        if st.procs[r].reader {
            st.procs[r].byte = true;
            // Somebody waits, and will do the tidying.
            if self.is(M::WakeBeforeUnlink) && st.procs[p].slot != NOBODY {
                st.procs[p].pc = Pc::Swap;
            } else {
                self.finish(st, p);
            }
        } else {
            st.procs[p].pc = Pc::Tell;
        }
    }

    fn told(&self, st: &mut State, p: usize) {
        st.procs[p].pc = if self.is(M::WakeBeforeUnlink) && st.procs[p].slot != NOBODY { Pc::Swap } else { Pc::Tidy };
    }

    /// Lists the queue for the last time: is it in use? If not, hidden tickets without a reader are swept; their
    /// owners, if they live, find out and start over. What comes after the list is not swept: who sweeps until there is
    /// nothing left and who starts over can go on like that for ever.
    fn tidy(&self, st: &mut State, p: usize) {
        if !st.queue {
            return self.tidy_slots(st, p);
        }
        if !self.is(M::PublishBeforeOpen) {
            self.drop_dead_tickets(st);
        }
        if st.procs.iter().any(|q| q.ticket == Ticket::Published && q.reader) {
            return self.finish(st, p);
        }
        let swept = |q: usize| st.procs[q].ticket != Ticket::None && !st.procs[q].reader;
        let all = (0..MAX).filter(|&q| swept(q)).fold(0, |m, q| m | 1 << q);
        if all == 0 {
            self.tidy_slots(st, p);
        } else {
            st.procs[p].suspects = all;
            st.procs[p].pc = Pc::Sweep;
        }
    }

    /// Looks for slots of dead holders. With one slot the next comer does that.
    fn tidy_slots(&self, st: &mut State, p: usize) {
        if self.slots > 1 && !self.is(M::LeaveDeadSlots) {
            st.procs[p].tidying = true;
            st.procs[p].s = 0;
            st.procs[p].pc = Pc::Open;
        } else if st.queue {
            st.procs[p].pc = Pc::LastOut;
        } else {
            self.finish(st, p);
        }
    }

    pub(crate) fn next_slot(&self, st: &mut State, p: usize) {
        let me = &mut st.procs[p];
        me.pc = Pc::Open;
        me.s += 1;
        if usize::from(me.s) == self.slots {
            (me.tidying, me.s, me.pc) = (false, 0, Pc::LastOut);
        }
    }

    /// Unlinks a hidden ticket that was found without a reader. It may have one by now, or another name.
    fn sweep(&self, st: &mut State, p: usize) {
        let all = st.procs[p].suspects;
        let r = all.trailing_zeros() as usize;
        let q = &mut st.procs[r];
        if q.ticket == Ticket::Hidden || self.is(M::PublishBeforeOpen) {
            q.ticket = Ticket::None;
            q.private = false;
            if q.life == Life::Dead {
                q.rev = 0;
            }
        }
        st.procs[p].suspects = if self.is(M::SweepUntilEmpty) { 0 } else { all & (all - 1) };
        if self.is(M::SweepUntilEmpty) {
            st.procs[p].pc = Pc::Tidy;
        } else if st.procs[p].suspects == 0 {
            self.tidy_slots(st, p);
        }
    }

    /// Is a slot held? Then its holder will come here too.
    fn last_out(&self, st: &mut State, p: usize) {
        if !st.queue || st.slots[..self.slots].iter().any(|&r| r != NOBODY) {
            return self.finish(st, p);
        }
        st.procs[p].pc = Pc::Stats;
    }

    /// rmdir: ENOTEMPTY says that somebody has just come.
    fn rmdir(&self, st: &mut State, p: usize) {
        let empty = !st.stats && st.procs.iter().all(|q| q.ticket == Ticket::None);
        if self.is(M::RemoveQueueWithAll) {
            for q in &mut st.procs {
                q.ticket = Ticket::None;
            }
            st.stats = false;
            st.queue = false;
        } else if empty {
            st.queue = false;
        }
        self.finish(st, p);
    }

    /// A cleaner of temporary files removes the ticket of a waiter.
    pub(crate) fn clean(&self, st: &mut State, q: usize) {
        st.procs[q].ticket = Ticket::None;
        st.procs[q].lost = true;
        self.no_longer_waits(st, q);
    }
}
