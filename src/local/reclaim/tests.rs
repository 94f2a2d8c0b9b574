//! The races that the door is for, each as the interleaving that loses without one of its steps.
//!
//! The steps of two contenders are called by hand, in the order that does the harm.

use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::class::Class;
use crate::local::dir::Directory;
use crate::local::holder::Holder;
use crate::local::link::{Release, Take};
use crate::name::{Capacity, Key, Name};
use crate::record::{Body, ProcessId};

struct Scene {
    _at: tempfile::TempDir,
    place: Place,
}

impl Scene {
    fn new() -> Self {
        let at = tempfile::tempdir().unwrap();
        let key = Key { name: Name::new("x").unwrap(), max: Capacity::ONE };
        let place = Place::new(Directory::at(at.path()).unwrap(), key).unwrap();
        Self { _at: at, place }
    }

    fn holder(&self, process: ProcessId) -> Holder {
        let me = &self.place.me;
        let body = Body {
            process,
            boot: me.boot.clone(),
            pid_namespace: me.pid_namespace,
            time_namespace: me.time_namespace_of(me.process).unwrap(),
            host: me.host.clone(),
            name: b"x".to_vec(),
            max: 1,
            class: Class::default(),
            label: vec![],
            lock_covers: false,
            tree: false,
        };
        Holder::new(&self.place.dir, &body).unwrap()
    }

    fn mine(&self) -> Holder {
        self.holder(self.place.me.process)
    }

    /// Leaves the slot as a holder does that is killed.
    fn leave_a_dead_holder(&self) -> Holder {
        let holder = self.holder(dead());
        assert_eq!(self.place.take(&holder, 0).unwrap(), Take::Taken);
        holder
    }

    fn see_dead(&self) -> Dead {
        match self.place.occupant(0).unwrap() {
            Occupant::Dead(dead) => dead,
            other => panic!("not dead: {other:?}"),
        }
    }
}

/// A process that was, and is no more.
fn dead() -> ProcessId {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    child.wait().unwrap();
    ProcessId { pid, mark: 1 }
}

#[test]
fn the_second_reading_finds_a_command_that_registered_meanwhile() {
    let scene = Scene::new();
    let claim = scene.leave_a_dead_holder();
    let seen = scene.see_dead();
    // Its `claim` was killed, but the child it had started is on its way.
    assert!(scene.place.register(&claim, 0, scene.place.me.process).unwrap());
    assert_eq!(scene.place.reclaim(0, &seen).unwrap(), Reclaim::Alive);
    assert!(matches!(scene.place.occupant(0).unwrap(), Occupant::Holder(Occupied { liveness: Liveness::Alive, .. })));
}

#[test]
fn the_inode_check_spares_the_slot_of_who_was_faster() {
    let scene = Scene::new();
    scene.leave_a_dead_holder();
    let (seen_by_a, seen_by_b) = (scene.see_dead(), scene.see_dead());
    assert_eq!(scene.place.reclaim(0, &seen_by_b).unwrap(), Reclaim::Reclaimed);
    drop(seen_by_b);
    let b = scene.mine();
    assert_eq!(scene.place.take(&b, 0).unwrap(), Take::Taken);
    assert_eq!(scene.place.reclaim(0, &seen_by_a).unwrap(), Reclaim::Gone);
    assert_eq!(scene.place.take(&scene.mine(), 0).unwrap(), Take::Occupied);
}

#[test]
fn the_lock_lets_one_at_a_time_through_the_door() {
    let scene = Scene::new();
    scene.leave_a_dead_holder();
    let (seen_by_a, seen_by_b) = (scene.see_dead(), scene.see_dead());
    let path = scene.place.layout.slot(0);
    // A has looked at the name and is about to remove it.
    let locked = try_flock(&scene.place.dir, &path, &seen_by_a).unwrap().unwrap();
    assert_eq!(scene.place.reclaim(0, &seen_by_b).unwrap(), Reclaim::Busy);
    // A dies there: the lock goes with its descriptor, and B is as good.
    std::mem::forget(locked);
    drop(seen_by_a);
    assert_eq!(scene.place.reclaim(0, &seen_by_b).unwrap(), Reclaim::Reclaimed);
}

#[test]
fn a_child_whose_slot_was_reclaimed_does_not_become_a_command() {
    let scene = Scene::new();
    let claim = scene.leave_a_dead_holder();
    let seen = scene.see_dead();
    assert_eq!(scene.place.reclaim(0, &seen).unwrap(), Reclaim::Reclaimed);
    assert!(!scene.place.register(&claim, 0, scene.place.me.process).unwrap());
    let other = scene.mine();
    assert_eq!(scene.place.take(&other, 0).unwrap(), Take::Taken);
    assert!(!scene.place.register(&claim, 0, scene.place.me.process).unwrap());
}

#[test]
fn a_child_registers_only_with_the_lock() {
    let scene = Scene::new();
    let claim = scene.leave_a_dead_holder();
    let seen = scene.see_dead();
    let path = scene.place.layout.slot(0);
    // A reclaimer has the lock and has read for the second time.
    let locked = try_flock(&scene.place.dir, &path, &seen).unwrap().unwrap();
    assert!(!scene.place.register_within(&claim, 0, scene.place.me.process, 3).unwrap());
    let Dead::Recorded(record) = &seen else { panic!("blank") };
    assert_eq!(record.read_again(&scene.place.dir, &path).unwrap().live.command, None);
    drop(locked);
    assert!(scene.place.register_within(&claim, 0, scene.place.me.process, 3).unwrap());
}

#[test]
fn a_child_looks_at_its_slot_once_more_with_the_lock() {
    let scene = Scene::new();
    let claim = scene.leave_a_dead_holder();
    let path = scene.place.layout.slot(0);
    let file = scene.place.open_own(&path, &claim).unwrap().unwrap();
    // Between its opening the record and its getting the lock, the slot is reclaimed.
    assert_eq!(scene.place.reclaim(0, &scene.see_dead()).unwrap(), Reclaim::Reclaimed);
    assert!(!scene.place.register_opened(&path, &file, &claim, scene.place.me.process, 3).unwrap());
}

#[test]
fn a_holder_that_was_forced_out_does_not_remove_the_slot_of_the_next() {
    let scene = Scene::new();
    let first = scene.mine();
    assert_eq!(scene.place.take(&first, 0).unwrap(), Take::Taken);
    assert!(scene.place.force(0, &|_| true).unwrap());
    let second = scene.mine();
    assert_eq!(scene.place.take(&second, 0).unwrap(), Take::Taken);
    assert_eq!(scene.place.release(&first, 0).unwrap(), Release::WasGone);
    assert_eq!(scene.place.take(&scene.mine(), 0).unwrap(), Take::Occupied);
}

#[test]
fn a_force_waits_for_a_holder_that_is_just_releasing() {
    let scene = Scene::new();
    let first = scene.mine();
    assert_eq!(scene.place.take(&first, 0).unwrap(), Take::Taken);
    // It has said so, and is about to unlink.
    assert!(first.live().begin_release());
    let second = scene.mine();
    std::thread::scope(|scope| {
        let force = scope.spawn(|| scene.place.force(0, &|record| record.is_some_and(|r| r.live.fence == 0)));
        scene.place.dir.unlink(&scene.place.layout.slot(0)).unwrap();
        second.live().set_fence(7);
        assert_eq!(scene.place.take(&second, 0).unwrap(), Take::Taken);
        assert!(!force.join().unwrap().unwrap());
    });
    assert!(scene.place.names(&scene.place.layout.slot(0), second.id).unwrap());
}

#[test]
fn what_cannot_be_read_is_neither_free_nor_dead_and_goes_by_force_only() {
    let scene = Scene::new();
    let path = scene.place.dir.full(&scene.place.layout.slot(0));
    for garbage in [&b""[..], b"claim-r1", &[0xff; 9000]] {
        std::fs::write(&path, garbage).unwrap();
        assert_eq!(scene.place.occupant(0).unwrap_err().kind(), ErrorKind::Unreadable);
        assert_eq!(scene.place.take(&scene.mine(), 0).unwrap(), Take::Occupied);
        assert!(!scene.place.force(0, &|record| record.is_some()).unwrap());
        assert!(scene.place.force(0, &|_| true).unwrap());
    }
    let makers: [fn(&std::path::Path); 3] = [
        |path| std::os::unix::fs::symlink("/dev/null", path).unwrap(),
        |path| std::fs::create_dir(path).unwrap(),
        |path| {
            let fifo = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, path, fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        },
    ];
    for make in makers {
        make(&path);
        assert_eq!(scene.place.occupant(0).unwrap_err().kind(), ErrorKind::Unreadable);
        assert!(scene.place.force(0, &|_| true).unwrap());
        assert!(matches!(scene.place.occupant(0).unwrap(), Occupant::Nobody));
    }
}

#[test]
fn a_pid_that_came_back_is_another_process() {
    let scene = Scene::new();
    let me = scene.place.me.process;
    let reused = scene.holder(ProcessId { mark: me.mark - 1, ..me });
    assert_eq!(scene.place.take(&reused, 0).unwrap(), Take::Taken);
    assert!(matches!(scene.place.occupant(0).unwrap(), Occupant::Dead(_)));
}

/// Sixteen contenders on the claim of a dead holder, two thousand times: one winner each.
#[test]
fn of_many_that_meet_a_dead_holder_one_wins() {
    const CONTENDERS: usize = 16;
    const ROUNDS: u32 = 2000;
    let scene = Scene::new();
    let gone = dead();
    let (begin, end, winners) = (Barrier::new(CONTENDERS), Barrier::new(CONTENDERS), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for contender in 0..CONTENDERS {
            let (scene, begin, end, winners) = (&scene, &begin, &end, &winners);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    if contender == 0 {
                        assert_eq!(scene.place.take(&scene.holder(gone), 0).unwrap(), Take::Taken);
                        winners.store(0, Ordering::SeqCst);
                    }
                    let holder = scene.mine();
                    begin.wait();
                    let won = loop {
                        match scene.place.occupant(0).unwrap() {
                            Occupant::Dead(dead) => drop(scene.place.reclaim(0, &dead).unwrap()),
                            Occupant::Holder(..) => break false,
                            Occupant::Nobody => {}
                        }
                        if scene.place.take(&holder, 0).unwrap() == Take::Taken {
                            break true;
                        }
                    };
                    if won {
                        winners.fetch_add(1, Ordering::SeqCst);
                    }
                    end.wait();
                    if contender == 0 {
                        assert_eq!(winners.load(Ordering::SeqCst), 1);
                    }
                    end.wait();
                    if won {
                        assert_eq!(scene.place.release(&holder, 0).unwrap(), Release::Released);
                    }
                    end.wait();
                }
            });
        }
    });
}

#[test]
fn the_lock_of_a_record_is_seen_from_another_description() {
    let scene = Scene::new();
    let holder = scene.mine();
    assert_eq!(scene.place.take(&holder, 0).unwrap(), Take::Taken);
    let opened = Opened::at(&scene.place.dir, &scene.place.layout.slot(0)).unwrap().unwrap();
    assert!(crate::sys::is_locked(opened.as_fd()).unwrap());
    drop(holder);
    assert!(!crate::sys::is_locked(opened.as_fd()).unwrap());
}
