//! The local protocol, explored exhaustively: take, release, reclaim, force, register, enqueue, look, wait, leave and
//! wake, with time-outs, crashes, stops, a cleaner of temporary files, and a clock that can be switched off.
//!
//! `state` is what there is, `steps`, `force`, `register` and `queue` are the protocol, `local` the configurations and
//! whose turn it is, `properties` what must hold, `mutations` the guards that can be taken away.
//!
//! Left out: displacement from a bounded queue (a byte and an unlink: to the others a waiter that leaves), `--at-least`
//! (a holder that is not dead yet), other pid namespaces (a holder that is never proven dead), and stops of the child
//! between fork and exec (nothing but a holder that takes its time).
//!
//! With `--nocapture` the tests print the states of each configuration and a short path to each failure that a mutation
//! brings about.

mod force;
mod local;
mod mutations;
mod properties;
mod queue;
mod register;
mod state;
mod steps;

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use local::{Clock, FORCE, HANDLE, LOW, Local, RUN, Role, TRY, TRY_RUN, TWICE, VISITOR};
use mutations::Mutation;
use properties::{CAPACITY, FENCE, HOLDERS, NAMED, ORDER, RESIDUE, SLEEPER, WAKES};
use state::State;

const THREADS: usize = 2;

/// Explores all there is.
fn holds(name: &str, model: Local) {
    let begun = Instant::now();
    let checker = model.checker().threads(THREADS).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: {states} states, at most {depth} steps, {:.1?}", begun.elapsed());
    if let Some((what, path)) = checker.discoveries().into_iter().next() {
        panic!("{name}: {what} fails after {:?} in {:#?}", path.clone().into_actions(), path.last_state());
    }
}

/// Explores until `property` fails.
fn caught(mutation: Mutation, property: &'static str, model: Local) {
    let begun = Instant::now();
    let model = Local { mutation, ..model };
    let expected = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = model.checker().threads(THREADS).finish_when(expected).spawn_bfs().join();
    let states = checker.unique_state_count();
    let path = checker.discovery(property).unwrap_or_else(|| panic!("{mutation:?} does not break: {property}"));
    println!(
        "{mutation:?} breaks: {property} ({states} states, {:.1?})\n    {:?}",
        begun.elapsed(),
        path.into_actions()
    );
}

/// Nobody is killed or stopped, and nobody looks without having been woken.
fn wakes(slots: usize, roles: &[Role]) -> Local {
    Local { timeouts: true, ..Local::new(slots, roles) }
}

/// Some are killed; those who stand first look every 20 ms.
fn crashes(crashes: u8, slots: usize, roles: &[Role]) -> Local {
    Local { crashes, timeouts: true, clock: Clock::First, ..Local::new(slots, roles) }
}

/// Some are killed, some stopped so that it can be seen; all look, sooner or later.
fn stops(crashes: u8, stops: u8, slots: usize, roles: &[Role]) -> Local {
    Local { crashes, stops, timeouts: true, clock: Clock::All, ..Local::new(slots, roles) }
}

/// Some are killed, some stopped so that it cannot be seen: a newcomer must have some patience then.
fn freezes(crashes: u8, freezes: u8, slots: usize, roles: &[Role]) -> Local {
    let mut model = Local { crashes, freezes, clock: Clock::All, ..Local::new(slots, roles) };
    model.roles[VISITOR] = HANDLE;
    model
}

/// A cleaner removes tickets.
fn cleaner(cleanings: u8, slots: usize, roles: &[Role]) -> Local {
    Local { cleanings, timeouts: true, clock: Clock::All, ..Local::new(slots, roles) }
}

/// Paths that can be read: all states, with the processes numbered as they are.
fn readable(model: Local) -> Local {
    Local { reduced: false, ..model }
}

#[test]
fn wake_ups_alone_suffice_where_nobody_is_killed_or_stopped() {
    holds("3 handles", wakes(1, &[HANDLE; 3]));
    holds("4 handles", wakes(1, &[HANDLE; 4]));
    holds("4 handles, 2 slots", wakes(2, &[HANDLE; 4]));
    holds("4 handles, 3 slots", wakes(3, &[HANDLE; 4]));
    holds("3 handles that are used twice", wakes(1, &[TWICE; 3]));
    holds("3 runs", wakes(1, &[RUN; 3]));
    holds("2 handles, one that does not wait", wakes(1, &[HANDLE, HANDLE, TRY]));
}

#[test]
fn classes() {
    holds("1 high, 2 low", wakes(1, &[HANDLE, LOW, LOW]));
    holds("2 high, 2 low, no time-outs", Local { timeouts: false, ..wakes(1, &[HANDLE, HANDLE, LOW, LOW]) });
    holds("2 high, 2 low, 2 slots", wakes(2, &[HANDLE, HANDLE, LOW, LOW]));
    holds("1 high, 1 low, 1 low that does not wait", wakes(1, &[HANDLE, LOW, Role { nonblock: true, ..LOW }]));
    holds("1 high, 2 low, 2 crashes", crashes(2, 1, &[HANDLE, LOW, LOW]));
}

#[test]
fn crashes_cost_nobody_more_than_the_look_of_the_first() {
    holds("3 handles, 2 crashes", crashes(2, 1, &[HANDLE; 3]));
    holds("4 handles, 1 crash", crashes(1, 1, &[HANDLE; 4]));
    holds("4 handles, 2 slots, 1 crash", crashes(1, 2, &[HANDLE; 4]));
    holds("3 runs, 2 crashes", crashes(2, 1, &[RUN; 3]));
    holds("3 runs, 2 slots, 2 crashes", crashes(2, 2, &[RUN; 3]));
    // Without the queue there is room for more: nothing but taking, reclaiming, registering and releasing.
    holds("4 runs that do not wait, 3 crashes", crashes(3, 1, &[TRY_RUN; 4]));
    holds("4 runs that do not wait, 2 slots, 2 crashes", crashes(2, 2, &[TRY_RUN; 4]));
    holds("4 runs that do not wait, 3 slots, 1 crash", crashes(1, 3, &[TRY_RUN; 4]));
}

#[test]
fn forcing() {
    holds("3 handles, a forcer", wakes(1, &[HANDLE, HANDLE, HANDLE, FORCE]));
    holds("3 handles, 2 slots, a forcer", wakes(2, &[HANDLE, HANDLE, HANDLE, FORCE]));
    holds("2 handles that are used twice, a forcer", wakes(1, &[TWICE, TWICE, FORCE]));
    holds("2 handles, 2 forcers, 1 crash", crashes(1, 1, &[HANDLE, HANDLE, FORCE, FORCE]));
    holds("2 runs, a forcer, 2 crashes", crashes(2, 1, &[RUN, RUN, FORCE]));
    holds("a run, a handle, a forcer, 1 crash, 1 stop", stops(1, 1, 1, &[RUN, HANDLE, FORCE]));
}

#[test]
fn stopped_processes_strand_nobody() {
    holds("3 handles, 1 crash, 2 stops", stops(1, 2, 1, &[HANDLE; 3]));
    holds("3 runs, 1 crash, 1 stop", stops(1, 1, 1, &[RUN; 3]));
    holds("4 handles, 1 stop, no time-outs", Local { timeouts: false, ..stops(0, 1, 1, &[HANDLE; 4]) });
    holds("4 handles, 2 slots, 1 stop", stops(0, 1, 2, &[HANDLE; 4]));
    holds("3 handles, 1 crash, 1 frozen", freezes(1, 1, 1, &[HANDLE; 3]));
    holds("3 handles, 2 frozen", freezes(0, 2, 1, &[HANDLE; 3]));
    let three_may_wait = [TRY, HANDLE, HANDLE, HANDLE];
    holds("4 handles, 2 frozen asleep", Local { only_sleepers: true, ..freezes(0, 2, 1, &three_may_wait) });
}

#[test]
fn a_cleaner_costs_places_only() {
    holds("3 handles, 2 tickets removed", cleaner(2, 1, &[HANDLE; 3]));
    holds("2 handles, 1 low, 1 ticket removed", cleaner(1, 1, &[HANDLE, HANDLE, LOW]));
}

/// What the reduction leaves out makes no difference where both can be had.
#[test]
fn nothing_left_out() {
    holds("3 handles, all states", readable(wakes(1, &[HANDLE; 3])));
    holds("3 handles, 2 slots, 1 crash, all states", readable(crashes(1, 2, &[HANDLE; 3])));
    holds("2 runs, a forcer, 1 crash, all states", readable(crashes(1, 1, &[RUN, RUN, FORCE])));
    holds("3 handles, 1 stop, all states", readable(stops(0, 1, 1, &[HANDLE; 3])));
}

/// Whether some run comes back to where it was, by the steps of the processes alone.
fn goes_in_circles(model: &Local) -> bool {
    let next = |st: &State| {
        let mut actions = Vec::new();
        model.actions(st, &mut actions);
        actions.into_iter().filter_map(|a| model.next_state(st, a)).collect::<Vec<_>>()
    };
    // True while the state is on the way that is being followed.
    let mut on_the_way = HashMap::from([(State::NEW, true)]);
    let mut way = vec![(State::NEW, next(&State::NEW))];
    while let Some((st, ahead)) = way.last_mut() {
        let Some(to) = ahead.pop() else {
            on_the_way.insert(st.clone(), false);
            way.pop();
            continue;
        };
        match on_the_way.get(&to) {
            Some(true) => return true,
            Some(false) => {}
            None => {
                on_the_way.insert(to.clone(), true);
                let ahead = next(&to);
                way.push((to, ahead));
            }
        }
    }
    false
}

/// The properties speak of quiet states; so every run must come to one. Nobody tries the same thing again and again
/// without something having happened that cannot happen for ever.
#[test]
fn every_run_comes_to_rest() {
    assert!(!goes_in_circles(&wakes(1, &[HANDLE; 3])));
    assert!(!goes_in_circles(&wakes(2, &[HANDLE, HANDLE, LOW])));
    assert!(!goes_in_circles(&wakes(1, &[HANDLE, HANDLE, FORCE, FORCE])));
    let asleep = |model: Local| Local { clock: Clock::Off, ..model };
    assert!(!goes_in_circles(&asleep(crashes(2, 1, &[HANDLE; 3]))));
    assert!(!goes_in_circles(&asleep(crashes(1, 2, &[HANDLE; 3]))));
    assert!(!goes_in_circles(&asleep(crashes(2, 1, &[RUN, RUN, HANDLE]))));
    assert!(!goes_in_circles(&asleep(cleaner(1, 1, &[HANDLE; 3]))));
    assert!(goes_in_circles(&Local { mutation: Mutation::SweepUntilEmpty, ..wakes(1, &[HANDLE; 2]) }));
}

#[test]
fn what_must_be_seen_is_seen() {
    let model = Local { seen: true, ..readable(stops(1, 1, 1, &[RUN, RUN, HANDLE])) };
    let checker = model.checker().threads(THREADS).finish_when(HasDiscoveries::All).spawn_bfs().join();
    for (what, path) in checker.discoveries() {
        println!("{what}: {:?}", path.into_actions());
    }
    checker.assert_properties();
}

#[test]
fn every_guard_of_reclaim_and_register_is_needed() {
    let runs = || readable(crashes(1, 1, &[RUN, HANDLE]));
    caught(Mutation::JudgeClaimOnly, HOLDERS, runs());
    caught(Mutation::NoSecondReading, HOLDERS, runs());
    caught(Mutation::RegisterUnchecked, HOLDERS, runs());
    caught(Mutation::RegisterUnlocked, HOLDERS, runs());
    caught(Mutation::NoInodeCheck, NAMED, readable(crashes(1, 1, &[HANDLE; 3])));
    caught(Mutation::NoInodeCheck, HOLDERS, readable(crashes(1, 1, &[HANDLE; 4])));
    caught(Mutation::NoReclaimLock, HOLDERS, readable(crashes(1, 1, &[HANDLE; 3])));
}

#[test]
fn every_guard_of_force_and_release_is_needed() {
    let forced = || readable(wakes(1, &[HANDLE, HANDLE, HANDLE, FORCE]));
    caught(Mutation::ForceWithoutCas, HOLDERS, forced());
    caught(Mutation::ForceUnlocked, HOLDERS, forced());
    caught(Mutation::ForceNoInodeCheck, NAMED, readable(wakes(1, &[HANDLE, HANDLE, FORCE, FORCE])));
    caught(Mutation::ForceWordUnchecked, HOLDERS, readable(wakes(1, &[TWICE, HANDLE, FORCE])));
    caught(Mutation::ForceWithoutWake, SLEEPER, readable(wakes(1, &[HANDLE, HANDLE, FORCE])));
    caught(Mutation::ReleaseWithoutHandshake, HOLDERS, forced());
    caught(Mutation::ReleaseIgnoresRevoked, HOLDERS, forced());
    caught(Mutation::ReleaseBeforeReap, HOLDERS, readable(wakes(1, &[RUN, HANDLE])));
    caught(Mutation::ReleaseWithoutWake, SLEEPER, readable(wakes(1, &[HANDLE; 2])));
    caught(Mutation::WakeBeforeUnlink, SLEEPER, readable(wakes(1, &[HANDLE; 2])));
    caught(Mutation::FenceBeforeLink, FENCE, readable(wakes(1, &[HANDLE; 2])));
    caught(Mutation::FenceUnchecked, FENCE, readable(wakes(1, &[HANDLE, HANDLE, FORCE])));
    caught(Mutation::RevokedIsLeft, CAPACITY, readable(crashes(1, 1, &[HANDLE, FORCE])));
}

#[test]
fn every_guard_of_the_queue_is_needed() {
    let three = || readable(wakes(1, &[HANDLE; 3]));
    caught(Mutation::LinkBeforePublish, RESIDUE, readable(crashes(1, 1, &[HANDLE; 2])));
    caught(Mutation::PublishBeforeOpen, ORDER, readable(wakes(1, &[HANDLE; 4])));
    caught(Mutation::NoLookAfterEnqueue, SLEEPER, readable(wakes(1, &[HANDLE; 2])));
    caught(Mutation::NewcomerIgnoresQueue, ORDER, three());
    caught(Mutation::TakeWithoutList, ORDER, readable(wakes(1, &[HANDLE, LOW, LOW])));
    caught(Mutation::NoRepublish, ORDER, readable(cleaner(1, 1, &[HANDLE; 3])));
    caught(Mutation::NoWakeBehind, SLEEPER, three());
    caught(Mutation::NoWakeBehind, WAKES, three());
    caught(Mutation::DrainAfterLook, SLEEPER, readable(wakes(1, &[HANDLE; 2])));
    caught(Mutation::WatchUnchecked, SLEEPER, three());
    caught(Mutation::LeaveSilently, SLEEPER, three());
    caught(Mutation::LeaveWithoutTidy, RESIDUE, readable(wakes(1, &[HANDLE; 2])));
    caught(Mutation::LeaveDeadSlots, RESIDUE, readable(crashes(1, 2, &[HANDLE; 3])));
    caught(Mutation::RemoveQueueWithAll, SLEEPER, three());
    caught(Mutation::RemoveQueueWithAll, ORDER, three());
}

#[test]
fn every_guard_against_stopped_processes_is_needed() {
    let frozen = |crashes| readable(freezes(crashes, 1, 1, &[HANDLE; 3]));
    caught(Mutation::NoPassingStopped, SLEEPER, readable(stops(0, 1, 1, &[HANDLE; 3])));
    caught(Mutation::NoPeriodicLook, SLEEPER, readable(stops(0, 1, 1, &[HANDLE; 3])));
    caught(Mutation::NoPassingUnresponsive, SLEEPER, frozen(0));
    caught(Mutation::UnresponsiveNeedsFree, SLEEPER, frozen(1));
    let two = Local { only_sleepers: true, ..freezes(0, 2, 1, &[TRY, HANDLE, HANDLE, HANDLE]) };
    caught(Mutation::OneSuspect, SLEEPER, two);
}

/// A slot that was held when it was to be linked and is gone when it is to be read may as well be tried again as not:
/// whoever gave it up wakes the one whose turn it is, and it was held when `--nonblock` asked.
#[test]
fn a_guard_that_is_not_needed() {
    let mutation = Mutation::VanishedIsHeld;
    holds("3 handles, vanished is held", Local { mutation, ..wakes(1, &[HANDLE; 3]) });
    holds("3 handles, vanished is held, 1 crash", Local { mutation, ..crashes(1, 1, &[HANDLE; 3]) });
}
