//! The library's handle: section 4 of what `claim` promises.
#![allow(unsafe_code, reason = "fork is what is tested")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostclaim::{Capacity, Claim, Class, Directory, ErrorKind, Event, Happening, Master, Observer, Outcome, Refusal};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

const AT_ONCE: Option<Duration> = Some(Duration::ZERO);

fn scene() -> (tempfile::TempDir, Directory) {
    let at = tempfile::tempdir().unwrap();
    let dir = Directory::at(at.path().join("claims")).unwrap();
    (at, dir)
}

fn claim(dir: &Directory) -> Claim {
    Claim::new(dir, "x").unwrap()
}

fn is_had(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Acquired(_))
}

/// Nothing of any name is left in the directory.
fn is_empty(dir: &Directory) -> bool {
    ["claims", "holders", "queues"].iter().all(|folder| {
        let path: &Path = dir.path();
        std::fs::read_dir(path.join(folder)).unwrap().next().is_none()
    })
}

/// Runs something in a forked child; its answer is the exit status.
fn in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs the closure and leaves by _exit; it takes no lock that another thread of the test might
    // have held when it was forked, but malloc's, which the C library looks after.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let answer = catch_unwind(AssertUnwindSafe(work)).unwrap_or(false);
            // SAFETY: ends the child without running what the parent has registered for its exit.
            unsafe { libc::_exit(i32::from(!answer)) }
        }
        ForkResult::Parent { child } => matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))),
    }
}

#[test]
fn a_handle_holds_nothing_until_it_acquires() {
    let (_at, dir) = scene();
    let mut handle = claim(&dir);
    assert!(!handle.held() && handle.fence().is_none() && handle.available().unwrap());
    assert!(!handle.release().unwrap(), "harmless when nothing is held");
    assert!(is_had(&handle.acquire(AT_ONCE).unwrap()));
    assert!(handle.held() && !handle.available().unwrap());
    assert!(handle.release().unwrap());
    assert!(!handle.held() && handle.available().unwrap());
    drop(handle);
    assert!(is_empty(&dir));
}

#[test]
fn a_handle_that_holds_says_so_and_stays_as_it_is() {
    let (_at, dir) = scene();
    let mut handle = claim(&dir);
    let Outcome::Acquired(fence) = handle.acquire(None).unwrap() else { panic!("not had") };
    assert_eq!(handle.acquire(None).unwrap(), Outcome::AlreadyHeld(fence));
    assert_eq!(handle.fence(), Some(fence));
}

#[test]
fn two_handles_conflict_in_one_process_and_fences_grow() {
    let (_at, dir) = scene();
    let (mut a, mut b) = (claim(&dir), claim(&dir));
    let mut last = None;
    for _ in 0..100 {
        assert!(is_had(&a.acquire(AT_ONCE).unwrap()));
        assert!(a.fence() > last);
        last = a.fence();
        let Outcome::Refused(refused) = b.acquire(AT_ONCE).unwrap() else { panic!("had twice") };
        assert_eq!(refused.reason, Refusal::Held);
        assert_eq!(refused.holder.unwrap().pid, i32::try_from(std::process::id()).unwrap());
        assert!(a.release().unwrap());
        assert!(is_had(&b.acquire(AT_ONCE).unwrap()));
        assert!(b.fence() > last);
        last = b.fence();
        assert!(b.release().unwrap());
    }
}

#[test]
fn out_of_scope_releases_and_so_does_unwinding() {
    let (_at, dir) = scene();
    {
        let mut handle = claim(&dir);
        handle.acquire(None).unwrap();
    }
    let thrown = catch_unwind(AssertUnwindSafe(|| {
        let mut handle = claim(&dir);
        assert!(is_had(&handle.acquire(AT_ONCE).unwrap()));
        panic!("on the way out");
    }));
    assert!(thrown.is_err());
    assert!(is_had(&claim(&dir).acquire(AT_ONCE).unwrap()));
}

#[test]
fn threads_exclude_each_other_and_all_are_served() {
    const THREADS: usize = 8;
    const TURNS: usize = 25;
    let (_at, dir) = scene();
    let spans = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut handle = claim(&dir);
                for _ in 0..TURNS {
                    assert!(is_had(&handle.acquire(None).unwrap()));
                    let begin = std::time::Instant::now();
                    std::thread::yield_now();
                    let fence = handle.fence().unwrap();
                    let end = std::time::Instant::now();
                    assert!(handle.release().unwrap());
                    spans.lock().unwrap().push((begin, end, fence));
                }
            });
        }
    });
    let mut spans = spans.into_inner().unwrap();
    spans.sort();
    assert_eq!(spans.len(), THREADS * TURNS);
    for pair in spans.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two at once");
        assert!(pair[0].2 < pair[1].2, "a fence that did not grow");
    }
    assert!(is_empty(&dir));
}

#[test]
fn a_timeout_is_an_answer_and_leaves_nothing() {
    let (_at, dir) = scene();
    let mut holder = claim(&dir);
    holder.acquire(None).unwrap();
    let mut waiter = claim(&dir);
    // This process has other threads, so that waiting for itself is not hopeless.
    let (done, wait) = mpsc::channel::<()>();
    let other = std::thread::spawn(move || {
        let _ = wait.recv();
    });
    let Outcome::Refused(refused) = waiter.acquire(Some(Duration::from_millis(30))).unwrap() else { panic!("had") };
    assert_eq!(refused.reason, Refusal::TimedOut);
    assert_eq!(refused.waiting, 0);
    assert_eq!(holder.statistics().unwrap().occupancy.queued(), 0);
    drop(done);
    other.join().unwrap();
    drop((holder, waiter));
    assert!(is_empty(&dir));
}

#[test]
fn after_fork_the_childs_copy_holds_and_releases_nothing() {
    let (_at, dir) = scene();
    let mut mine = Some(claim(&dir));
    assert!(is_had(&mine.as_mut().unwrap().acquire(None).unwrap()));
    assert!(in_child(|| {
        let handle = mine.as_mut().unwrap();
        let told = !handle.held() && handle.fence().is_none() && !handle.release().unwrap();
        let refused = !is_had(&handle.acquire(AT_ONCE).unwrap()) && !is_had(&claim(&dir).acquire(AT_ONCE).unwrap());
        drop(mine.take());
        told && refused
    }));
    assert!(mine.as_ref().unwrap().held());
    assert!(!is_had(&claim(&dir).acquire(AT_ONCE).unwrap()), "the child has released what is its parent's");
    assert!(mine.unwrap().release().unwrap());
}

#[test]
fn a_child_that_holds_keeps_its_own_and_its_end_frees_it() {
    let (_at, dir) = scene();
    let mut handle = claim(&dir);
    handle.acquire(None).unwrap();
    handle.release().unwrap();
    assert!(in_child(|| {
        let had = is_had(&handle.acquire(AT_ONCE).unwrap());
        // Dies as it is.
        had && handle.held()
    }));
    assert!(is_had(&handle.acquire(AT_ONCE).unwrap()), "what a dead child held is had at once");
}

#[test]
fn a_grandchild_is_told_the_truth_too() {
    let (_at, dir) = scene();
    let mut handle = claim(&dir);
    assert!(in_child(|| {
        assert!(is_had(&handle.acquire(AT_ONCE).unwrap()));
        let told = in_child(|| !handle.held() && !is_had(&handle.acquire(AT_ONCE).unwrap()));
        told && handle.held() && handle.release().unwrap()
    }));
}

#[test]
fn a_capacity_is_a_semaphore_and_part_of_the_identity() {
    let (_at, dir) = scene();
    let three = Capacity::new(3).unwrap();
    let mut handles: Vec<Claim> = (0..4).map(|_| claim(&dir).capacity(three)).collect();
    let had = handles.iter_mut().map(|h| is_had(&h.acquire(AT_ONCE).unwrap())).filter(|had| *had).count();
    assert_eq!(had, 3);
    let mut slots: Vec<u32> = handles.iter().filter_map(Claim::slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2]);
    assert!(is_had(&claim(&dir).acquire(AT_ONCE).unwrap()), "one is another claim than three");
    let mut spread = claim(&dir).capacity(Capacity::new(2).unwrap()).spread();
    assert!(is_had(&spread.acquire(AT_ONCE).unwrap()));
    let mut second = claim(&dir).capacity(Capacity::new(2).unwrap()).spread();
    assert!(!is_had(&second.acquire(AT_ONCE).unwrap()));
}

#[test]
fn a_rest_outlasts_the_release_and_the_handle_may_go_on_with_others() {
    let (_at, dir) = scene();
    let mut handle = claim(&dir).at_least(Duration::from_secs(3600));
    assert!(is_had(&handle.acquire(AT_ONCE).unwrap()));
    assert!(handle.release().unwrap());
    assert!(!handle.held());
    let Outcome::Refused(refused) = handle.acquire(AT_ONCE).unwrap() else { panic!("had within the hour") };
    assert!(refused.holder.unwrap().until.is_some());
}

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<Event>>>);

impl Observer for Notes {
    fn event(&mut self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

#[test]
fn an_observer_is_told_and_statistics_count() {
    let (_at, dir) = scene();
    let notes = Notes::default();
    let mut handle = claim(&dir).class(Class::Low).observer(notes.clone());
    handle.acquire(None).unwrap();
    let statistics = handle.statistics().unwrap();
    assert_eq!((statistics.occupancy.held, statistics.occupancy.queued(), statistics.capacity), (1, 0, Capacity::ONE));
    let mut busy = claim(&dir).observer(notes.clone());
    busy.acquire(AT_ONCE).unwrap();
    handle.release().unwrap();
    let notes = notes.0.lock().unwrap();
    assert!(matches!(notes[0].what, Happening::Acquired { .. }) && notes[0].occupancy.held == 1);
    assert!(matches!(notes[1].what, Happening::Rejected { retry_after: 2 }));
    assert!(matches!(notes[2].what, Happening::Released { .. }) && notes[2].occupancy.held == 0);
    assert!(notes[0].to_json().contains(r#""event":"acquired","name":"x","max":1,"class":"low""#));
}

#[test]
fn errors_carry_operation_and_path() {
    let at = tempfile::tempdir().unwrap();
    let file = at.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Directory::at(&file).unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::NoDirectory, file.as_path()));
    assert!(error.to_string().contains("open directory") && error.to_string().contains("file"));
    assert_eq!(Claim::new(&scene().1, "").unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn a_directory_that_was_removed_is_made_again_and_the_fence_goes_on() {
    let (_at, dir) = scene();
    let mut handle = claim(&dir);
    let Outcome::Acquired(before) = handle.acquire(None).unwrap() else { panic!("not had") };
    std::fs::remove_dir_all(dir.path()).unwrap();
    assert!(!handle.release().unwrap(), "it was gone");
    let Outcome::Acquired(after) = handle.acquire(None).unwrap() else { panic!("not had") };
    assert!(after > before);
    assert!(handle.release().unwrap());
}

#[test]
fn only_the_masters_own_process_removes_its_directory_and_the_next_sweeps_what_a_killed_one_left() {
    let at = tempfile::tempdir().unwrap();
    let mut master = Some(Master::under(at.path()).unwrap());
    let path = master.as_ref().unwrap().path().to_owned();
    assert!(in_child(|| {
        drop(master.take());
        path.exists()
    }));
    assert!(path.exists());
    // Another master is killed: its directory stays until the next one is made.
    assert!(in_child(|| {
        std::mem::forget(Master::under(at.path()).unwrap());
        true
    }));
    assert_eq!(std::fs::read_dir(at.path()).unwrap().count(), 2);
    let next = Master::under(at.path()).unwrap();
    assert_eq!(std::fs::read_dir(at.path()).unwrap().count(), 2, "{path:?} lives, the other was swept");
    assert!(path.exists());
    next.remove().unwrap();
    assert_eq!(std::fs::read_dir(at.path()).unwrap().count(), 1);
}

#[test]
fn workers_of_a_pool_run_a_job_once() {
    const WORKERS: usize = 12;
    let at = tempfile::tempdir().unwrap();
    let master = Master::under(at.path()).unwrap();
    let ran = at.path().join("ran");
    let mut children = Vec::new();
    for _ in 0..WORKERS {
        // SAFETY: as in `in_child`.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let mut once = claim(master.directory()).at_least(Duration::from_secs(3600));
                if is_had(&once.acquire(AT_ONCE).unwrap()) {
                    use std::io::Write;
                    let mut file = std::fs::File::options().append(true).create(true).open(&ran).unwrap();
                    file.write_all(b"x").unwrap();
                }
                drop(once);
                // SAFETY: as in `in_child`.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => children.push(child),
        }
    }
    for child in children {
        assert!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
    }
    assert_eq!(std::fs::read(&ran).unwrap(), b"x");
}
