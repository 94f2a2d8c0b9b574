//! At most N holders at any instant, whatever is killed: intervals recorded by the COMMANDs, read by a checker.

mod support;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use support::recorder::{self, Interval, append, check, now, record};
use support::{CLAIM, Place, Signal, shell_status, until};

#[test]
fn recorder_entry() {
    recorder::entry();
}

/// What the killer kills.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kill {
    Claim,
    Command,
    Both,
}

/// Kills one holder: a COMMAND whose record has no end yet, its `claim`, or both; whether there was one. The end of
/// COMMAND's custody is recorded as the moment before the signal: until then at least it was alive.
fn kill_a_holder(file: &Path, what: Kill) -> bool {
    let open = |pid| Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let Some(victim) = recorder::running(file) else { return false };
    let (command, claim) = (open(victim.pid), open(victim.parent));
    // Where `claim` was killed earlier, COMMAND's parent is somebody else.
    let is_claim = fs::read_link(format!("/proc/{}/exe", victim.parent))
        .is_ok_and(|exe| Ok(exe) == fs::canonicalize(CLAIM).map_err(drop));
    // Without an end still, so the pids were those of this run when they were opened.
    if recorder::running(file).is_none_or(|still| still.fence != victim.fence) {
        return false;
    }
    let moment = now();
    let hit = |pidfd: Option<OwnedFd>| pidfd.is_some_and(|pidfd| pidfd_send_signal(pidfd, Signal::KILL).is_ok());
    let mut done = false;
    if matches!(what, Kill::Claim | Kill::Both) && is_claim {
        done |= hit(claim);
    }
    if matches!(what, Kill::Command | Kill::Both) && hit(command) {
        append(file, &format!("killed {} {} {} {} {moment}\n", victim.fence, victim.slot, victim.pid, victim.parent));
        done = true;
    }
    done
}

/// `processes` loops of `rounds` runs with `max` slots each, a holder killed every 50 ms, and with `waiters_too` a
/// waiter as well; all intervals checked.
fn storm(processes: usize, rounds: usize, max: u32, waiters_too: bool) {
    let place = Place::new();
    let file = place.path("records");
    fs::write(&file, "").unwrap();
    let capacity = max.to_string();
    // Long enough, with several slots, for as many to be started meanwhile.
    let hold = if max == 1 { Duration::from_micros(1500) } else { Duration::from_millis(5) * max };
    let over = AtomicBool::new(false);
    let (kills, killed_waiters, unexpected) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    // The pids of all `claim`s that have not been waited for: they are ours to kill.
    let claims: Vec<Mutex<Option<i32>>> = (0..processes).map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        let loops: Vec<_> = claims
            .iter()
            .map(|mine| {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let mut command = place.claim(["-m", &capacity, "job"]);
                        record(&mut command, &file, hold);
                        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
                        *mine.lock().unwrap() = Some(i32::try_from(child.id()).unwrap());
                        while rustix::process::waitid(
                            rustix::process::WaitId::Pid(Pid::from_child(&child)),
                            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
                        )
                        .is_err()
                        {}
                        *mine.lock().unwrap() = None;
                        let status = shell_status(child.wait().unwrap());
                        if !matches!(status, 0 | 137) {
                            unexpected.lock().unwrap().push(status);
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            for what in [Kill::Claim, Kill::Command, Kill::Both].into_iter().cycle() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                while !kill_a_holder(&file, what) && !over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_micros(200));
                }
                kills.fetch_add(1, Ordering::Relaxed);
                if waiters_too {
                    let victim = claims[usize::try_from(now() / 1000).unwrap() % processes].lock().unwrap();
                    if let Some(pid) = *victim {
                        support::kill(pid, Signal::KILL);
                        killed_waiters.fetch_add(1, Ordering::Relaxed);
                    }
                }
                thread::sleep(Duration::from_millis(50));
            }
        });
        loops.into_iter().for_each(|one| one.join().unwrap());
        over.store(true, Ordering::Relaxed);
    });
    until("the COMMANDs of killed claims have ended", || place.processes().is_empty());
    assert_eq!(*unexpected.lock().unwrap(), Vec::<i32>::new(), "statuses other than 0 and 137");

    let intervals = recorder::read(&file);
    let overlap = check(&intervals, max);
    assert_eq!(overlap, max as usize, "the capacity was reached");
    let served = intervals.len();
    let not_served = killed_waiters.load(Ordering::Relaxed);
    assert!(served + not_served >= processes * rounds, "{served} served, {not_served} waiters killed");
    assert!(waiters_too || served == processes * rounds, "every run was served: {served}");
    let kills = kills.load(Ordering::Relaxed);
    println!(
        "{processes} x {rounds}, max {max}: {served} served, {kills} holders and {not_served} others killed, overlap {overlap}"
    );
    assert!(kills > 0, "no holder was killed");

    // The capacity is there again, all of it, at once; and then nothing is left.
    let holds: Vec<_> = (0..max).map(|_| place.hold(&["-n", "-m", &capacity, "job"])).collect();
    assert_eq!(place.try_once(&["-m", &capacity, "job"]), 75);
    holds.into_iter().for_each(|hold| drop(hold.finish().expect(0)));
    place.assert_clean();
}

#[test]
fn one_at_a_time_while_holders_are_killed() {
    storm(64, 50, 1, false);
}

#[test]
fn one_at_a_time_while_holders_and_waiters_are_killed() {
    storm(64, 10, 1, true);
}

#[test]
fn two_at_a_time_while_holders_and_waiters_are_killed() {
    storm(64, 10, 2, true);
}

#[test]
fn three_at_a_time_while_holders_and_waiters_are_killed() {
    storm(64, 10, 3, true);
}

#[test]
fn eight_at_a_time_while_holders_and_waiters_are_killed() {
    storm(64, 10, 8, true);
}

/// Sixteen that try once at a dead holder's claim: exactly one has it.
#[test]
fn exactly_one_reclaims_a_dead_holders_claim() {
    let place = Place::new();
    for round in 0..40 {
        place.crash(&["job"]);
        let script = r#"until [ -e go ]; do :; done; exec "$claim" --dir "$dir" -q -n job sh -c 'echo >> winners; until [ -e over ]; do sleep 0.01; done'"#;
        let mut runs: Vec<_> = (0..16).map(|_| place.start(place.sh(script))).collect();
        fs::write(place.path("go"), "").unwrap();
        until("all but one have ended, or two have won", || {
            let ended = runs.iter_mut().filter_map(support::Running::ended).count();
            ended >= 15 || support::lines(&place.path("winners")).len() > 1
        });
        fs::write(place.path("over"), "").unwrap();
        let mut statuses: Vec<i32> = runs.into_iter().map(|run| run.wait().code()).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [&[0][..], &[75; 15]].concat(), "round {round}");
        fs::remove_file(place.path("go")).unwrap();
        fs::remove_file(place.path("over")).unwrap();
        fs::remove_file(place.path("winners")).unwrap();
    }
    place.assert_clean();
}

#[test]
fn the_checker_sees_what_is_wrong() {
    let interval = |fence, slot, start, end| Interval { fence, slot, pid: 1, parent: 1, start, end: Some(end) };
    let fails = |intervals: Vec<Interval>, max| std::panic::catch_unwind(move || check(&intervals, max)).is_err();
    assert_eq!(check(&[interval(1, 0, 0, 10), interval(2, 0, 10, 20)], 1), 1, "touching is not overlapping");
    assert_eq!(check(&[interval(1, 0, 0, 10), interval(2, 1, 5, 20)], 2), 2);
    assert!(fails(vec![interval(1, 0, 0, 10), interval(2, 0, 9, 20)], 1));
    assert!(fails(vec![interval(1, 0, 0, 10), interval(2, 0, 9, 20)], 2), "in one slot");
    assert!(fails(vec![interval(2, 0, 0, 10), interval(1, 0, 10, 20)], 1), "a fence that falls");
    assert!(fails(vec![interval(1, 0, 0, 10), interval(1, 1, 5, 20)], 2), "a fence twice");
}

/// Custodies taken away by force in the middle of everything: whoever still had it when COMMAND ended had it alone, and a
/// force takes it from the holder that it met, never from the next one.
#[test]
fn force_takes_one_custody_and_never_the_next() {
    let place = Place::new();
    let file = place.path("records");
    let over = AtomicBool::new(false);
    let statuses = Mutex::new(Vec::new());
    let forced = thread::scope(|scope| {
        let run = || {
            for _ in 0..40 {
                let mut command = place.claim(["job"]);
                record(&mut command, &file, Duration::from_millis(1));
                command.env("RECORDER_CHECK", "1").stdout(Stdio::null()).stderr(Stdio::null());
                let status = command.status().unwrap();
                if !status.success() {
                    statuses.lock().unwrap().push(shell_status(status));
                }
            }
        };
        let runs: Vec<_> = (0..8).map(|_| scope.spawn(run)).collect();
        let force = scope.spawn(|| {
            let mut forced = 0;
            while !over.load(Ordering::Relaxed) {
                forced += usize::from(place.status(["--release", "job", "--force"]) == 0);
                thread::sleep(Duration::from_millis(10));
            }
            forced
        });
        runs.into_iter().for_each(|run| run.join().unwrap());
        over.store(true, Ordering::Relaxed);
        force.join().unwrap()
    });
    // Taken away before COMMAND could start: then it is not had.
    let statuses = statuses.into_inner().unwrap();
    assert!(statuses.iter().all(|status| *status == 75), "{statuses:?}");
    let lost = support::lines(&file).iter().filter(|line| line.starts_with("lost ")).count();
    let kept = recorder::read(&file);
    println!("{} kept, {lost} lost, {} not begun, {forced} forced", kept.len(), statuses.len());
    check(&kept, 1);
    assert_eq!(kept.len() + lost + statuses.len(), 8 * 40, "each was served");
    assert!(lost + statuses.len() <= forced && forced > 0, "{lost} lost, {forced} forced");
    assert_eq!(place.try_once(&["job"]), 0);
    place.assert_clean();
}
