//! What holds in every state.
//!
//! "For ever" is checked without paths: a state is quiet when nobody can go on but by the clock, an operator or an
//! accident. Every run comes to such a state (there is a test for that), so what has to happen at last has happened in
//! the quiet states, or happens there when the clock lets the sleepers look.

use stateright::Property;

use crate::local::{Clock, Local, VISITOR};
use crate::mutations::Mutation;
use crate::state::{CLOCK_ONLY, Command, Life, NOBODY, Pc, Proc, SLOTS, State, Ticket, Wrong};

pub(crate) const HOLDERS: &str = "I1 at most N live holders";
pub(crate) const NAMED: &str = "I1 the slot of a live holder names it";
pub(crate) const SLEEPER: &str = "I2 nobody sleeps for ever beside a slot that could be had";
pub(crate) const CAPACITY: &str = "I2 every slot is free, held, or can be reclaimed by a newcomer";
pub(crate) const FENCE: &str = "I4 the fence grows with every custody";
pub(crate) const ORDER: &str = "I5 nobody is served before one that was to be served before";
pub(crate) const WAKES: &str = "I5 one event wakes one waiter";
pub(crate) const RESIDUE: &str = "I6 nothing is left behind";

/// A process that is stopped between locking a dead holder's record and letting go of it keeps that slot from everybody
/// for as long as it is stopped: the lock is the only thing that tells one reclaimer from two.
const STOPPED_RECLAIMER: &str = "limit: a stopped reclaimer keeps a dead holder's slot";

/// The properties of a configuration.
pub(crate) fn of(model: &Local) -> Vec<Property<Local>> {
    let mut all = vec![
        Property::always(HOLDERS, |m: &Local, st: &State| m.holders(st) <= m.slots),
        Property::always(NAMED, |_: &Local, st: &State| live_holders_are_named(st)),
        Property::always(SLEEPER, |m: &Local, st: &State| !m.quiet(st) || m.no_sleeper_is_stranded(st)),
        Property::always(CAPACITY, |m: &Local, st: &State| !m.quiet(st) || m.no_capacity_is_lost(st)),
        Property::always(FENCE, |_: &Local, st: &State| st.wrong != Wrong::Fence),
        Property::always(ORDER, |_: &Local, st: &State| st.wrong != Wrong::Order),
        Property::always(RESIDUE, |m: &Local, st: &State| m.nothing_is_left(st)),
    ];
    // A stopped process is passed over and may find itself beside another that is first by its own lights; a crash can
    // swallow the byte for the one it stepped in front of. Both cost wake-ups, a bounded number.
    if model.crashes + model.stops + model.freezes + model.cleanings == 0 {
        all.push(Property::always(WAKES, |_: &Local, st: &State| one_sleeper_per_event(st)));
    }
    all
}

/// What must be seen somewhere, lest the properties hold for want of anything that could break them. The last is a
/// limit of the protocol that is known and accepted.
pub(crate) fn seen() -> Vec<Property<Local>> {
    fn any(st: &State, of: impl Fn(&State, usize) -> bool) -> bool {
        (0..st.procs.len()).any(|p| of(st, p))
    }
    vec![
        Property::sometimes("every slot is held", |m: &Local, st: &State| m.holders(st) == m.slots),
        Property::sometimes("COMMAND outlives claim and holds", |_: &Local, st: &State| {
            any(st, |st, p| st.procs[p].life == Life::Dead && st.live_holder(p))
        }),
        Property::sometimes("a dead holder's slot is unlinked", |_: &Local, st: &State| {
            any(st, |st, p| st.procs[p].pc == Pc::Unlink)
        }),
        Property::sometimes("the second reading finds COMMAND", |_: &Local, st: &State| {
            any(st, |st, p| st.procs[p].pc == Pc::Again && !st.dead(usize::from(st.procs[p].r)))
        }),
        Property::sometimes("the slot names another inode by then", |_: &Local, st: &State| {
            any(st, |st, p| {
                let q = &st.procs[p];
                q.pc == Pc::Same && st.slots[usize::from(q.s)] != q.r && st.slots[usize::from(q.s)] != NOBODY
            })
        }),
        Property::sometimes("another reclaimer has the lock", |_: &Local, st: &State| {
            any(st, |st, p| st.procs[p].watch.contains(&CLOCK_ONLY))
        }),
        Property::sometimes("a child finds its slot gone", |_: &Local, st: &State| {
            any(st, |st, p| st.procs[p].command == Command::Locked && st.named(p).is_none())
        }),
        Property::sometimes("a hidden ticket is swept and its owner starts over", |_: &Local, st: &State| {
            any(st, |st, p| st.procs[p].pc == Pc::StartOver)
        }),
        Property::sometimes("a stopped waiter is passed over", |_: &Local, st: &State| {
            any(st, |st, p| {
                let overtaken = |q: &Proc| q.life == Life::Stopped && q.pc == Pc::Asleep && q.rev < st.procs[p].rev;
                st.procs[p].pc == Pc::Close && st.procs[p].slot != NOBODY && st.procs.iter().any(overtaken)
            })
        }),
        Property::sometimes(STOPPED_RECLAIMER, |m: &Local, st: &State| {
            let stuck =
                |r: &&u8| **r != NOBODY && st.dead(usize::from(**r)) && st.procs[usize::from(**r)].lock != NOBODY;
            m.quiet(st) && m.sleepers(st).next().is_some() && st.slots.iter().filter(stuck).count() == m.slots
        }),
    ]
}

fn live_holders_are_named(st: &State) -> bool {
    (0..st.procs.len()).all(|p| !st.live_holder(p) || st.named(p).is_some())
}

/// Sleepers that nothing has disturbed yet watch different things: one watches the holders, and each ticket is watched
/// by one.
fn one_sleeper_per_event(st: &State) -> bool {
    // Between publishing a ticket and waking the one behind it both may watch the same.
    if st.procs.iter().any(|q| matches!(q.pc, Pc::LinkRecord | Pc::WakeBehind | Pc::WriteBehind)) {
        return true;
    }
    let mut seen = 0u16;
    st.procs.iter().filter(|q| q.pc == Pc::Asleep && !q.byte && !q.awake).all(|q| {
        let bit = 1 << q.r;
        let first = seen & bit == 0;
        seen |= bit;
        first
    })
}

impl Local {
    fn holders(&self, st: &State) -> usize {
        (0..st.procs.len()).filter(|&p| st.live_holder(p)).count()
    }

    /// Nobody is in the middle of anything, but for those that are stopped there. A holder may hold as long as it
    /// likes, and who has not begun need not.
    fn quiet(&self, st: &State) -> bool {
        (0..st.procs.len()).all(|p| {
            let q = &st.procs[p];
            let resting = q.pc == Pc::Idle || (q.pc == Pc::Hold && !self.roles[p].command);
            let still = q.life != Life::Running || resting || !self.ready(st, p);
            still && (q.command == Command::Running || !self.child_ready(st, p))
        })
    }

    /// A slot that whoever looks at it can have now. Where the lock of a dead holder's record is taken in a quiet
    /// state, one who is stopped has it: the limit above.
    fn can_be_had(&self, st: &State, s: usize) -> bool {
        let r = st.slots[s];
        r == NOBODY || (st.dead(usize::from(r)) && st.procs[usize::from(r)].lock == NOBODY)
    }

    fn any_can_be_had(&self, st: &State) -> bool {
        (0..self.slots).any(|s| self.can_be_had(st, s))
    }

    fn sleepers<'a>(&self, st: &'a State) -> impl Iterator<Item = usize> + 'a {
        (0..st.procs.len()).filter(|&p| st.procs[p].pc == Pc::Asleep && st.procs[p].life == Life::Running)
    }

    /// In a quiet state: where a slot can be had and somebody sleeps, the clock brings one of them to it. Without the
    /// clock there must be nobody, but for one that found the lock taken and set its clock for that reason.
    fn no_sleeper_is_stranded(&self, st: &State) -> bool {
        let mut sleepers = self.sleepers(st).peekable();
        if sleepers.peek().is_none() || !self.any_can_be_had(st) {
            return true;
        }
        let comes = |p| self.alone(st, p, |q| q != Pc::Fence).is_some();
        let clock = if self.is(Mutation::NoPeriodicLook) { Clock::Off } else { self.clock };
        match clock {
            Clock::Off => sleepers.any(|p| st.procs[p].watch.contains(&CLOCK_ONLY)),
            Clock::First => sleepers.any(|p| st.procs[p].r == NOBODY && comes(p)),
            Clock::All => sleepers.any(comes),
        }
    }

    /// Lets `p` go on alone, woken by its clock at most as often as others can stand in its way, while `unfinished`.
    fn alone(&self, st: &State, p: usize, unfinished: fn(Pc) -> bool) -> Option<State> {
        let mut st = st.clone();
        let mut looks = 0;
        while unfinished(st.procs[p].pc) {
            if self.ready(&st, p) {
                self.step(&mut st, p);
            } else if st.procs[p].pc == Pc::Asleep && looks < 4 {
                looks += 1;
                self.look(&mut st, p, true);
            } else {
                return None;
            }
        }
        Some(st)
    }

    fn no_capacity_is_lost(&self, st: &State) -> bool {
        let accounted_for = (0..self.slots).all(|s| {
            let r = usize::from(st.slots[s]);
            r == usize::from(NOBODY) || st.dead(r) || st.procs[r].life == Life::Dead || st.procs[r].slot == s as u8
        });
        let waiting = self.sleepers(st).next().is_some();
        accounted_for && (waiting || !self.any_can_be_had(st) || self.visit(st, |q| q != Pc::Fence).is_some())
    }

    /// One more process comes into a quiet state.
    fn visit(&self, st: &State, unfinished: fn(Pc) -> bool) -> Option<State> {
        self.alone(st, VISITOR, unfinished)
    }

    /// Where everybody has ended there is nothing. Where somebody was killed there is nothing after the next run.
    fn nothing_is_left(&self, st: &State) -> bool {
        let ended = |p: usize| matches!(st.procs[p].pc, Pc::Idle | Pc::Done | Pc::Dead) && !st.procs[p].command_lives();
        if !(0..st.procs.len()).all(ended) || clean(st) {
            return true;
        }
        let killed = st.procs.iter().any(|q| q.pc == Pc::Dead);
        killed && self.visit(st, |q| q != Pc::Done).is_some_and(|after| clean(&after))
    }
}

fn clean(st: &State) -> bool {
    st.slots == [NOBODY; SLOTS]
        && !st.queue
        && !st.stats
        && st.procs.iter().all(|q| q.ticket == Ticket::None && !q.private)
}
