//! The configurations, and what may happen next in a state.

use stateright::{Model, Property};

use crate::mutations::Mutation;
use crate::properties;
use crate::state::{Command, Life, MAX, NOBODY, Pc, State, Ticket};

/// The process that the properties send into quiet states.
pub(crate) const VISITOR: usize = MAX - 1;

/// What a process is going to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Role {
    /// 0 is served first.
    pub(crate) class: u8,
    /// Runs a COMMAND that registers itself and may outlive it.
    pub(crate) command: bool,
    /// Does not wait.
    pub(crate) nonblock: bool,
    /// Does not want the claim, but somebody to lose it.
    pub(crate) force: bool,
    /// How often it acquires, with one record.
    pub(crate) rounds: u8,
}

/// A handle of the library, held and released by its own process.
pub(crate) const HANDLE: Role = Role { class: 0, command: false, nonblock: false, force: false, rounds: 1 };
/// A supervised run.
pub(crate) const RUN: Role = Role { command: true, ..HANDLE };
/// `--nonblock`.
pub(crate) const TRY: Role = Role { nonblock: true, ..HANDLE };
/// The same, supervised.
pub(crate) const TRY_RUN: Role = Role { command: true, ..TRY };
/// `--release --force`.
pub(crate) const FORCE: Role = Role { force: true, ..HANDLE };
/// A handle of the lowest class.
pub(crate) const LOW: Role = Role { class: 3, ..HANDLE };
/// A handle that is used twice.
pub(crate) const TWICE: Role = Role { rounds: 2, ..HANDLE };

/// Who looks without having been woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Clock {
    /// Nobody. Wake-ups alone must do.
    Off,
    /// Those who stand first as far as they know: after 20 ms.
    First,
    /// The others too: after a second or some.
    All,
}

/// A configuration of the model.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    pub(crate) roles: [Role; MAX],
    pub(crate) count: usize,
    pub(crate) slots: usize,
    /// How many of `claim`'s processes, or children before they execute, are killed.
    pub(crate) crashes: u8,
    /// How many are stopped, visibly and invisibly.
    pub(crate) stops: u8,
    pub(crate) freezes: u8,
    /// Only sleepers are stopped, in either way. The smaller configurations stop processes everywhere.
    pub(crate) only_sleepers: bool,
    /// How many tickets a cleaner of temporary files removes.
    pub(crate) cleanings: u8,
    /// Whether waiters may give up.
    pub(crate) timeouts: bool,
    /// Whether waiters look by themselves.
    pub(crate) clock: Clock,
    /// Whether states that do not matter are left out: of those that differ in the numbers of equal processes all but
    /// one, and the places between a step that no other process can notice and the next.
    pub(crate) reduced: bool,
    pub(crate) mutation: Mutation,
    /// Instead of what must hold, look for what must be seen lest it hold of nothing.
    pub(crate) seen: bool,
}

/// Whose turn it is. A step carries its name for whoever reads a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Step(u8, Pc),
    Child(u8, Command),
    TimeOut(u8),
    Clock(u8),
    Crash(u8, Pc),
    CrashChild(u8, Command),
    Stop(u8, Pc),
    Freeze(u8, Pc),
    Continue(u8),
    Clean(u8),
}

impl Local {
    pub(crate) fn new(slots: usize, roles: &[Role]) -> Local {
        let mut all = [HANDLE; MAX];
        all[VISITOR] = TRY;
        all[..roles.len()].copy_from_slice(roles);
        Local {
            roles: all,
            count: roles.len(),
            slots,
            crashes: 0,
            stops: 0,
            freezes: 0,
            only_sleepers: false,
            cleanings: 0,
            timeouts: false,
            clock: Clock::Off,
            reduced: true,
            mutation: Mutation::None,
            seen: false,
        }
    }

    pub(crate) fn is(&self, m: Mutation) -> bool {
        self.mutation == m
    }

    /// Whether the next step of `p` neither notices nor is noticed by what anybody else does, so that it may come first
    /// without anything being missed: every other step, an accident to `p` itself too, finds afterwards what it would
    /// have found before, and no property looks at the difference (nothing is quiet while somebody is at such a step).
    /// None of them leads back to itself.
    fn unnoticed(&self, st: &State, p: usize) -> bool {
        let roles = &self.roles[..self.count];
        st.procs[p].life == Life::Running
            && match st.procs[p].pc {
                // Only a forcer touches the state word of another, and only with it can fences be told out of turn.
                Pc::Fence | Pc::Check => !roles.iter().any(|r| r.force),
                // Nobody can be dead.
                Pc::Judge => self.crashes == 0,
                // Only who finds the ticket of a dead process looks at the private name.
                Pc::LinkRecord => self.crashes == 0,
                _ => false,
            }
    }

    /// The representative of all states that differ in the numbers of equal processes only.
    fn representative(&self, st: State) -> State {
        let mut order: [usize; MAX] = [0, 1, 2, 3, 4];
        let keys: [u64; MAX] = std::array::from_fn(|p| st.sort_key(p));
        // Sorted within equal roles, which need not stand side by side.
        for i in 0..self.count {
            for j in i + 1..self.count {
                if self.roles[i] == self.roles[j] && keys[order[j]] < keys[order[i]] {
                    order.swap(i, j);
                }
            }
        }
        if order == [0, 1, 2, 3, 4] { st } else { st.renumbered(&order) }
    }
}

impl Model for Local {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::NEW]
    }

    fn actions(&self, st: &State, out: &mut Vec<Action>) {
        if let Some(p) = (0..self.count).find(|&p| self.reduced && self.unnoticed(st, p)) {
            out.push(Action::Step(p as u8, st.procs[p].pc));
            return;
        }
        for p in 0..self.count {
            let (q, n) = (&st.procs[p], p as u8);
            if self.child_ready(st, p) {
                out.push(Action::Child(n, q.command));
            }
            if st.crashes < self.crashes && q.command_lives() && q.command != Command::Running {
                out.push(Action::CrashChild(n, q.command));
            }
            if matches!(q.pc, Pc::Idle | Pc::Done | Pc::Dead) {
                if q.pc == Pc::Idle {
                    out.push(Action::Step(n, q.pc));
                }
                continue;
            }
            if st.crashes < self.crashes {
                out.push(Action::Crash(n, q.pc));
            }
            if q.life != Life::Running {
                out.push(Action::Continue(n));
                continue;
            }
            if self.ready(st, p) {
                out.push(Action::Step(n, q.pc));
            }
            if q.pc == Pc::Asleep || !self.only_sleepers {
                if st.stops < self.stops {
                    out.push(Action::Stop(n, q.pc));
                }
                if st.stops < self.freezes {
                    out.push(Action::Freeze(n, q.pc));
                }
            }
            if q.pc == Pc::Asleep {
                if self.timeouts {
                    out.push(Action::TimeOut(n));
                }
                let looks = match self.clock {
                    Clock::Off => false,
                    Clock::First => q.r == NOBODY,
                    Clock::All => !self.is(Mutation::NoPeriodicLook),
                };
                if looks {
                    out.push(Action::Clock(n));
                }
            }
            if q.ticket == Ticket::Published && st.cleanings < self.cleanings {
                out.push(Action::Clean(n));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut st = last.clone();
        match action {
            Action::Step(p, _) => self.step(&mut st, usize::from(p)),
            Action::Child(p, _) => self.child_step(&mut st, usize::from(p)),
            Action::TimeOut(p) => self.time_out(&mut st, usize::from(p)),
            Action::Clock(p) => self.look(&mut st, usize::from(p), true),
            Action::Crash(p, _) => {
                st.crashes += 1;
                self.die(&mut st, usize::from(p));
            }
            Action::CrashChild(p, _) => {
                st.crashes += 1;
                self.command_ends(&mut st, usize::from(p));
            }
            Action::Stop(p, _) => self.stop(&mut st, usize::from(p), Life::Stopped),
            Action::Freeze(p, _) => self.stop(&mut st, usize::from(p), Life::Frozen),
            Action::Continue(p) => st.procs[usize::from(p)].life = Life::Running,
            Action::Clean(p) => {
                st.cleanings += 1;
                self.clean(&mut st, usize::from(p));
            }
        }
        st.normalise();
        Some(if self.reduced { self.representative(st) } else { st })
    }

    fn properties(&self) -> Vec<Property<Local>> {
        if self.seen { properties::seen() } else { properties::of(self) }
    }
}

impl Local {
    fn stop(&self, st: &mut State, p: usize, life: Life) {
        st.stops += 1;
        st.procs[p].life = life;
        self.no_longer_waits(st, p);
    }

    fn time_out(&self, st: &mut State, p: usize) {
        self.no_longer_waits(st, p);
        let me = &mut st.procs[p];
        me.older = 0;
        me.r = NOBODY;
        me.watch = [NOBODY; 3];
        me.suspects = 0;
        me.pc = Pc::Close;
    }
}
