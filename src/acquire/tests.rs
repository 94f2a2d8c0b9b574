//! What can happen to a contender between two of its steps.

use super::*;
use crate::class::Class;
use crate::local::link::Release;
use crate::local::queue::Message;
use crate::name::{Capacity, Name};
use crate::record::ProcessId;

struct Nobody;

impl Observer for Nobody {
    fn wants_events(&self) -> bool {
        false
    }
}

fn contender(dir: &Directory) -> Contender {
    let terms = Terms {
        class: Class::Low,
        queue_size: None,
        at_least: Duration::ZERO,
        spread: false,
        label: vec![],
        on_behalf_of: None,
        lock_covers: true,
        tree: false,
        reusable: true,
        look_for_rings: false,
    };
    let key = Key { name: Name::new("x").unwrap(), max: Capacity::ONE };
    Contender::new(dir.clone(), key, terms).unwrap()
}

fn scene() -> (tempfile::TempDir, Directory) {
    let at = tempfile::tempdir().unwrap();
    let dir = Directory::at(at.path()).unwrap();
    (at, dir)
}

#[test]
fn a_displacement_between_two_looks_is_not_taken_for_a_lost_ticket() {
    let (_at, dir) = scene();
    let mut waiter = contender(&dir);
    let ticket = waiter.join().unwrap().unwrap();
    waiter.place.displace(ticket.name, 7).unwrap();
    let mut ticket = Some(ticket);
    let look = waiter.look(&mut ticket, &mut Suspicion::default(), Why::default()).unwrap();
    assert_eq!(look.displaced, Some(7));
    assert_eq!(waiter.place.tickets().unwrap(), []);
}

/// A run's record has no name but the one that goes with its ticket.
#[test]
fn a_run_whose_ticket_and_record_were_cleaned_away_comes_back_with_another_record() {
    let (_at, dir) = scene();
    let mut waiter = contender(&dir);
    waiter.terms.reusable = false;
    let mut ticket = Some(waiter.join().unwrap().unwrap());
    let name = ticket.as_ref().unwrap().name;
    let is_listed = |waiter: &Contender| waiter.place.tickets().unwrap() == [name];
    for folder in [waiter.place.layout.queue.clone(), waiter.place.layout.holders.clone()] {
        std::fs::remove_dir_all(dir.full(&folder)).unwrap();
        waiter.look(&mut ticket, &mut Suspicion::default(), Why::default()).unwrap();
        assert!(is_listed(&waiter));
        assert!(
            dir.stat(&waiter.place.layout.holder(&name.holder_id())).unwrap().is_some()
                || folder.starts_with("holders")
        );
    }
    // The record has no name left. That is seen when it would be needed, or at the next look by the clock.
    assert!(matches!(waiter.try_slots(&mut Nobody).unwrap(), Attempt::NoDirectory));
    assert!(waiter.renew_lost_record(ticket.as_ref()).unwrap());
    assert!(!waiter.renew_lost_record(ticket.as_ref()).unwrap());
    assert!(matches!(waiter.try_slots(&mut Nobody).unwrap(), Attempt::Taken(0)));
}

/// Held for a process that dies and is reclaimed before it is given back.
#[test]
fn who_holds_for_another_does_not_give_back_the_slot_of_the_next() {
    let (_at, dir) = scene();
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    let pid = i32::try_from(gone.id()).unwrap();
    gone.wait().unwrap();
    let mut first = contender(&dir);
    first.terms.on_behalf_of = Some(ProcessId { pid, mark: 1 });
    let Attempt::Taken(slot) = first.try_slots(&mut Nobody).unwrap() else { panic!("not taken") };
    let custody = first.take_custody(slot).unwrap().unwrap();
    let mut second = contender(&dir);
    assert!(matches!(second.try_slots(&mut Nobody).unwrap(), Attempt::Taken(0)));
    assert_eq!(first.release(custody, &mut Nobody).unwrap(), Release::WasGone);
    assert!(second.place.is_held().unwrap());
}

#[test]
fn a_slot_that_an_error_was_in_the_way_of_is_given_back() {
    let (_at, dir) = scene();
    let mut first = contender(&dir);
    assert!(matches!(first.try_slots(&mut Nobody).unwrap(), Attempt::Taken(0)));
    // It went no further; then the handle goes out of scope.
    first.close().unwrap();
    assert!(!first.place.is_held().unwrap());
}

#[test]
fn a_ticket_that_was_cleaned_away_comes_back_to_its_place() {
    let (_at, dir) = scene();
    let mut waiter = contender(&dir);
    let mut ticket = Some(waiter.join().unwrap().unwrap());
    let name = ticket.as_ref().unwrap().name;
    std::fs::remove_dir_all(dir.full(&waiter.place.layout.queue)).unwrap();
    let look = waiter.look(&mut ticket, &mut Suspicion::default(), Why::default()).unwrap();
    assert_eq!((look.turn, look.displaced), (Turn::Mine, None));
    assert_eq!(waiter.place.tickets().unwrap(), [name]);
}

#[test]
fn who_is_forced_out_before_it_has_its_number_is_told_none() {
    let (_at, dir) = scene();
    let mut first = contender(&dir);
    let Attempt::Taken(slot) = first.try_slots(&mut Nobody).unwrap() else { panic!("not taken") };
    assert!(first.place.force(slot, &|_| true).unwrap());
    let mut second = contender(&dir);
    let Attempt::Taken(slot) = second.try_slots(&mut Nobody).unwrap() else { panic!("not taken") };
    let fence = second.take_custody(slot).unwrap().unwrap().fence;
    assert!(first.take_custody(slot).unwrap().is_none());
    assert!(second.place.is_held().unwrap(), "the slot of the second is not the first's to give back");
    assert!(second.number().unwrap() > fence);
}

#[test]
fn a_waiter_that_does_not_move_beside_a_free_slot_is_passed_over_after_two_sleeps() {
    let (_at, dir) = scene();
    let (mut stuck, mut next) = (contender(&dir), contender(&dir));
    let _before = stuck.join().unwrap().unwrap();
    let mut ticket = Some(next.join().unwrap().unwrap());
    let mut suspicion = Suspicion::default();
    // Woken, it looks and waits; only a whole sleep counts.
    for _ in 0..3 {
        assert!(matches!(next.look(&mut ticket, &mut suspicion, Why::default()).unwrap().turn, Turn::Behind(_)));
    }
    assert!(matches!(
        next.look(&mut ticket, &mut suspicion, Why { slept_out: true, ..Why::default() }).unwrap().turn,
        Turn::Behind(_)
    ));
    assert_eq!(
        next.look(&mut ticket, &mut suspicion, Why { slept_out: true, ..Why::default() }).unwrap().turn,
        Turn::Mine
    );
}

/// Or it would go on minding whoever stood there before.
#[test]
fn who_steps_in_front_of_a_waiter_tells_it_once() {
    let (_at, dir) = scene();
    let (mut low, mut high) = (contender(&dir), contender(&dir));
    high.terms.class = Class::High;
    let behind = low.join().unwrap().unwrap();
    let mut ticket = Some(high.join().unwrap().unwrap());
    for told in [Some(Message::Wake), None] {
        high.look(&mut ticket, &mut Suspicion::default(), Why::default()).unwrap();
        assert_eq!(behind.read().unwrap(), told);
    }
}
