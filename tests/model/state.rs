//! What there is: processes, their records, their tickets, and the links in the directory.
//!
//! One process makes one record, so a process and the inode of its record are one index here. Whatever compares two
//! inodes in the program compares two indices in the model. That is right because a process that looks at a record
//! has it open, and an inode that is open is never given to another file.

use std::hash::{Hash, Hasher};

/// Processes of a configuration (at most four) and the visitor that the properties send into a quiet state.
pub(crate) const MAX: usize = 5;
/// Slots at most.
pub(crate) const SLOTS: usize = 3;
/// No process: no lock, no link, no one referred to.
pub(crate) const NOBODY: u8 = 15;
/// The owner of a lock on a record that is not one of the `claim` processes: the child that registers itself.
pub(crate) const CHILD: u8 = 14;
/// Watching COMMAND of process `i` is `COMMAND_OF + i`; watching `claim` itself is `i`.
pub(crate) const COMMAND_OF: u8 = 32;
/// "Somebody else has the lock": nothing to watch, only the clock brings the waiter back.
pub(crate) const CLOCK_ONLY: u8 = 16;

/// Where a `claim` process is: each name is the step that it does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Pc {
    /// Not started, or between two acquisitions of one handle.
    Idle,
    // take and reclaim, at slot `s`
    Take,
    Open,
    Judge,
    Lock,
    Again,
    Same,
    Unlink,
    LetGo,
    Fence,
    Check,
    // hold
    Fork,
    Hold,
    // release
    Swap,
    Drop,
    Door,
    DoorUnlink,
    Tell,
    Write,
    Tidy,
    Sweep,
    LastOut,
    Stats,
    Rmdir,
    // enqueue
    Mkdir,
    Mkfifo,
    OpenFifo,
    LinkRecord,
    Publish,
    StartOver,
    WakeBehind,
    WriteBehind,
    // look and wait
    Look,
    Watch,
    Asleep,
    // leave
    Close,
    Unticket,
    // force
    ForceOpen,
    ForceCas,
    ForceDoor,
    ForceUnlink,
    // the end
    Done,
    Dead,
}

/// How a process fares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Life {
    Running,
    /// Stopped, and /proc/PID/stat says so (T, t).
    Stopped,
    /// Stopped in a way that cannot be seen from outside (a frozen cgroup, a system call that does not return).
    Frozen,
    Dead,
}

/// The child between fork and exec, and what becomes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Command {
    None,
    /// Forked: it takes the lock on its parent's record next.
    Forked,
    /// It has the lock: it looks next whether the slot still names the record.
    Locked,
    /// The slot does: it stores its pid next.
    Checked,
    /// Stored: it unlocks and executes next.
    Stored,
    /// Executed: a holder, whatever the directory says.
    Running,
    Ended,
}

/// The state word of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Word {
    Held,
    Releasing,
    Revoked,
}

/// The name of a FIFO in the queue's directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Ticket {
    None,
    Hidden,
    Published,
}

/// One process, its record and its ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Proc {
    pub(crate) pc: Pc,
    pub(crate) life: Life,
    pub(crate) command: Command,
    /// Record: the state word.
    pub(crate) word: Word,
    /// Record: COMMAND's pid is in it.
    pub(crate) registered: bool,
    /// Record: who has the `flock` on it.
    pub(crate) lock: u8,
    pub(crate) ticket: Ticket,
    /// The FIFO is open for reading: its owner is there.
    pub(crate) reader: bool,
    /// holders/KEY/rev exists.
    pub(crate) private: bool,
    /// Place number; 0 where none. Only the order counts, so they are kept dense.
    pub(crate) rev: u8,
    /// A byte is in the FIFO.
    pub(crate) byte: bool,
    /// A descriptor that the process polls is ready: a predecessor's FIFO is closed, a holder's pidfd readable.
    pub(crate) awake: bool,
    /// The slot that this process linked and did not yet give up.
    pub(crate) slot: u8,
    /// The slot it is at, in take, reclaim and force.
    pub(crate) s: u8,
    /// The process it is at: whose record it opened, whose FIFO it watches or writes to.
    pub(crate) r: u8,
    /// The record that it read last had COMMAND's pid in it.
    pub(crate) knows: bool,
    /// It reclaims for the sake of order, not to take.
    pub(crate) tidying: bool,
    /// What a waiter that is first polls, slot by slot.
    pub(crate) watch: [u8; SLOTS],
    /// Who stood first beside a free slot at this waiter's last periodic look; for who tidies, whose tickets to sweep.
    pub(crate) suspects: u8,
    /// Acquisitions behind it.
    pub(crate) round: u8,
    /// Its fence, from when it is drawn until it is told.
    pub(crate) fence: u8,
    // What nobody in the program knows, kept for the properties.
    /// Who waits and has to be served before this process may take a slot.
    pub(crate) older: u8,
    /// An operator forced this custody.
    pub(crate) forced: bool,
    /// A cleaner removed the ticket, and its owner has not looked since.
    pub(crate) lost: bool,
    /// Another process linked the slot after this one, which has not been told its fence yet.
    pub(crate) stale: bool,
    /// ... and was told a smaller number than this one has or will have.
    pub(crate) overtaken: bool,
}

impl Proc {
    pub(crate) const NEW: Proc = Proc {
        pc: Pc::Idle,
        life: Life::Running,
        command: Command::None,
        word: Word::Held,
        registered: false,
        lock: NOBODY,
        ticket: Ticket::None,
        reader: false,
        private: false,
        rev: 0,
        byte: false,
        awake: false,
        slot: NOBODY,
        s: 0,
        r: NOBODY,
        knows: false,
        tidying: false,
        watch: [NOBODY; SLOTS],
        suspects: 0,
        round: 0,
        fence: 0,
        older: 0,
        forced: false,
        lost: false,
        stale: false,
        overtaken: false,
    };

    /// COMMAND executes, or is a child that may still do so.
    pub(crate) fn command_lives(&self) -> bool {
        !matches!(self.command, Command::None | Command::Ended)
    }

    fn pack(&self) -> [u8; 16] {
        let flag = |b: bool, n: u8| u8::from(b) << n;
        [
            self.pc as u8,
            self.life as u8 | (self.command as u8) << 2 | (self.word as u8) << 5,
            self.ticket as u8
                | flag(self.registered, 2)
                | flag(self.reader, 3)
                | flag(self.private, 4)
                | flag(self.byte, 5)
                | flag(self.awake, 6)
                | flag(self.forced, 7),
            flag(self.lost, 0) | flag(self.stale, 1) | flag(self.overtaken, 2) | self.rev << 3,
            self.lock | self.slot << 4,
            self.s | self.r << 4,
            self.watch[0],
            self.watch[1],
            self.watch[2],
            self.suspects,
            self.older,
            self.round,
            self.fence,
            flag(self.knows, 0) | flag(self.tidying, 1),
            0,
            0,
        ]
    }
}

/// What is wrong, noticed in the step that did it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Wrong {
    Nothing,
    /// A slot went to one behind a waiter that should have been served before.
    Order,
    /// A holder was told a fence that is not above those of earlier custodies, or below one of a later custody.
    Fence,
}

/// The directory and everybody.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct State {
    pub(crate) procs: [Proc; MAX],
    /// claims/KEY.SLOT: whose record it is.
    pub(crate) slots: [u8; SLOTS],
    /// queues/KEY exists.
    pub(crate) queue: bool,
    /// queues/KEY/stats exists.
    pub(crate) stats: bool,
    /// The last number drawn, and the one that the last custody was told; both 0 while no custody waits for its own.
    pub(crate) drawn: u8,
    pub(crate) told: u8,
    pub(crate) crashes: u8,
    pub(crate) stops: u8,
    pub(crate) cleanings: u8,
    pub(crate) wrong: Wrong,
}

impl Hash for State {
    /// One write instead of two hundred: the hash is most of the cost of a state.
    fn hash<H: Hasher>(&self, h: &mut H) {
        let mut all = [0u8; 16 * MAX + 12];
        for (i, p) in self.procs.iter().enumerate() {
            all[16 * i..16 * i + 16].copy_from_slice(&p.pack());
        }
        let rest = [
            self.slots[0],
            self.slots[1],
            self.slots[2],
            u8::from(self.queue),
            u8::from(self.stats),
            self.drawn,
            self.told,
            self.crashes,
            self.stops,
            self.cleanings,
            self.wrong as u8,
            0,
        ];
        all[16 * MAX..].copy_from_slice(&rest);
        h.write(&all);
    }
}

impl State {
    pub(crate) const NEW: State = State {
        procs: [Proc::NEW; MAX],
        slots: [NOBODY; SLOTS],
        queue: false,
        stats: false,
        drawn: 0,
        told: 0,
        crashes: 0,
        stops: 0,
        cleanings: 0,
        wrong: Wrong::Nothing,
    };

    /// The slot that names the record of `p`.
    pub(crate) fn named(&self, p: usize) -> Option<usize> {
        self.slots.iter().position(|&o| usize::from(o) == p)
    }

    /// Proven dead: `claim` is, and so is COMMAND as far as the record knows one.
    pub(crate) fn dead(&self, p: usize) -> bool {
        let q = &self.procs[p];
        q.life == Life::Dead && !(q.registered && q.command_lives())
    }

    /// A holder that may do the work that the claim protects. Forced custodies do not count: an operator decided.
    pub(crate) fn live_holder(&self, p: usize) -> bool {
        let q = &self.procs[p];
        !q.forced && ((q.life != Life::Dead && q.slot != NOBODY) || q.command == Command::Running)
    }

    /// Brings what means the same into one form: place numbers dense, and nothing kept of records that nobody can
    /// reach any more.
    pub(crate) fn normalise(&mut self) {
        let revs = self.procs.map(|p| p.rev);
        for p in &mut self.procs {
            if p.rev > 0 {
                let below = (1..p.rev).filter(|r| revs.contains(r)).count();
                p.rev = below as u8 + 1;
            }
        }
        if self.procs.iter().all(|p| p.fence == 0) {
            (self.drawn, self.told) = (0, 0);
        }
        for i in 0..MAX {
            let p = &self.procs[i];
            if !matches!(p.pc, Pc::Dead | Pc::Done | Pc::Idle) || p.command_lives() || self.named(i).is_some() {
                continue;
            }
            let i8 = i as u8;
            if self.procs.iter().any(|q| q.r == i8 || q.watch.contains(&i8) || q.watch.contains(&(COMMAND_OF + i8))) {
                continue;
            }
            let p = &mut self.procs[i];
            p.word = Word::Held;
            p.registered = false;
            p.command = Command::None;
            p.forced = false;
        }
    }

    /// The same state with the processes renumbered: old index `order[i]` becomes `i`.
    pub(crate) fn renumbered(&self, order: &[usize; MAX]) -> State {
        let mut new_of = [0u8; MAX];
        for (new, &old) in order.iter().enumerate() {
            new_of[old] = new as u8;
        }
        let one = |r: u8| if usize::from(r) < MAX { new_of[usize::from(r)] } else { r };
        let watched = |w: u8| if w >= COMMAND_OF { COMMAND_OF + one(w - COMMAND_OF) } else { one(w) };
        let mask = |m: u8| {
            let mut out = 0;
            for (old, new) in new_of.iter().enumerate() {
                out |= (m >> old & 1) << new;
            }
            out
        };
        let mut out = self.clone();
        for (new, &old) in order.iter().enumerate() {
            let mut p = self.procs[old];
            p.lock = one(p.lock);
            p.r = one(p.r);
            p.watch = p.watch.map(watched);
            p.suspects = mask(p.suspects);
            p.older = mask(p.older);
            out.procs[new] = p;
        }
        out.slots = self.slots.map(one);
        out
    }

    /// Something to sort equal processes by. It may not depend on the numbering, so references count only as far as
    /// they are there at all. Where two get the same key the states stay apart: that costs states, never soundness,
    /// since every numbering is a picture of the same state.
    pub(crate) fn sort_key(&self, p: usize) -> u64 {
        let q = &self.procs[p];
        let b = q.pack();
        let mut key = 0u64;
        for byte in [b[0], b[1], b[2], b[3]] {
            key = key << 8 | u64::from(byte);
        }
        let named = self.named(p).map_or(SLOTS, |s| s) as u64;
        key = key << 2 | named;
        key = key << 2 | u64::from(q.s);
        key = key << 2 | u64::from(q.round);
        key = key << 3 | u64::from(q.older.count_ones());
        key = key << 1 | u64::from(q.r == NOBODY);
        let locks = self.procs.iter().any(|o| usize::from(o.lock) == p);
        key << 2 | u64::from(q.lock == NOBODY) << 1 | u64::from(locks)
    }
}
