//! Many waiters: the order of service, and how many processes are woken for it.

mod support;

use std::fs;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hostclaim::{Capacity, Claim, Directory, Outcome};
use support::{Place, lines, recorder, until};

fn hold(claim: &mut Claim) {
    assert!(matches!(claim.acquire(None), Ok(Outcome::Acquired(_))));
}

/// Twenty waiters that have come one after another are served in that order, a hundred times out of a hundred.
#[test]
fn the_order_of_service_is_the_order_of_arrival() {
    let place = Place::new();
    let dir = Directory::at(place.dir()).unwrap();
    for _ in 0..100 {
        let served = Mutex::new(Vec::new());
        let mut first = Claim::new(&dir, "job").unwrap();
        hold(&mut first);
        std::thread::scope(|scope| {
            for waiter in 0..20 {
                let (dir, served) = (&dir, &served);
                scope.spawn(move || {
                    let mut claim = Claim::new(dir, "job").unwrap();
                    hold(&mut claim);
                    served.lock().unwrap().push(waiter);
                });
                until("it waits", || first.statistics().unwrap().occupancy.queued() == waiter + 1);
            }
            first.release().unwrap();
        });
        assert_eq!(served.into_inner().unwrap(), (0..20).collect::<Vec<u32>>());
    }
    place.assert_clean();
}

/// One of many: says when it was served, and how often it had to be woken for it.
#[test]
fn waiter_entry() {
    let Some(file) = std::env::var_os("WAITER_FILE") else { return };
    let dir = Directory::at(std::env::var_os("WAITER_DIR").unwrap()).unwrap();
    let max = std::env::var("WAITER_MAX").unwrap().parse().unwrap();
    let mut claim = Claim::new(&dir, "job").unwrap().capacity(Capacity::new(max).unwrap());
    let before = switches();
    hold(&mut claim);
    let woken = switches() - before;
    recorder::append(file.as_ref(), &format!("{} {woken}\n", std::process::id()));
    claim.release().unwrap();
}

/// How often the kernel has put this process to sleep and woken it.
fn switches() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

/// Starts waiters behind a holder; gives the order in which they were served, the order in which they stood, how often
/// they were woken together, and for how long the last has waited.
fn serve(count: usize, max: u32) -> (Vec<String>, Vec<String>, u64, Duration) {
    let place = Place::new();
    // Not by this process: what a process above them holds, the waiters would not wait for.
    let holders: Vec<_> = (0..max).map(|_| place.hold(&["-m", &max.to_string(), "job"])).collect();
    let file = place.path("served");
    let begin = Instant::now();
    let waiter = |_| {
        let mut waiter = Command::new(std::env::current_exe().unwrap());
        waiter.args(["waiter_entry", "--exact", "--test-threads=1"]).stdin(Stdio::null()).stdout(Stdio::null());
        waiter.env("WAITER_FILE", &file).env("WAITER_DIR", place.dir()).env("WAITER_MAX", max.to_string());
        waiter.spawn().unwrap()
    };
    let mut waiters: Vec<_> = (0..count).map(waiter).collect();
    let queue = place.dir().join(format!("queues/job@{max}"));
    // The tickets in the order of their names; "stats" stands there too, and tickets that are not in the queue yet.
    let tickets = || {
        let names = fs::read_dir(&queue).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
        names.retain(|name| name.starts_with('0'));
        names.sort();
        names
    };
    until("all wait", || tickets().len() == count);
    let stood: Vec<String> = tickets().iter().map(|name| name.split('-').nth(1).unwrap().to_owned()).collect();
    for holder in holders {
        holder.finish().expect(0);
    }
    for waiter in &mut waiters {
        assert!(waiter.wait().unwrap().success());
    }
    let elapsed = begin.elapsed();
    let records: Vec<(String, u64)> = lines(&file)
        .iter()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(pid, woken)| (pid.to_owned(), woken.parse().unwrap()))
        .collect();
    let woken = records.iter().map(|(_, woken)| woken).sum();
    place.assert_clean();
    (records.into_iter().map(|(pid, _)| pid).collect(), stood, woken, elapsed)
}

/// All are served, once each, in order; and a release wakes a few, not all. What a waiter far back does by itself is to look
/// once in so many seconds.
#[track_caller]
fn check(count: usize, max: u32) {
    let (served, stood, woken, elapsed) = serve(count, max);
    println!("{count} waiters, {max} at a time: {woken} woken, in {elapsed:?}");
    assert_eq!(served.len(), count);
    if max == 1 {
        assert_eq!(served, stood);
    } else {
        let (mut a, mut b) = (served, stood);
        a.sort();
        b.sort();
        assert_eq!(a, b);
    }
    let looks_by_itself = (count as u64 / 10 + 10) * (elapsed.as_secs() + 1);
    // The first in the queue looks 50 times a second.
    let looks_of_the_first = 50 * (elapsed.as_secs() + 1);
    assert!(woken < 10 * count as u64 + looks_by_itself + looks_of_the_first, "{woken} woken for {count}");
}

#[test]
fn a_thousand_waiters_are_served_in_order_and_few_are_woken_for_each() {
    check(1000, 1);
}

#[test]
fn a_hundred_waiters_for_three_slots_are_all_served() {
    check(100, 3);
}

/// Workers that fire the same job within its time run it once; a waiter has it when that is over.
#[test]
fn a_pool_fires_a_job_and_it_runs_once() {
    let place = Place::new();
    let fire = || {
        let mut command = place.claim(["--at-least", "5s", "-n", "job", "--", "sh", "-c", "echo ran >> ran"]);
        command.current_dir(place.root());
        place.start(command)
    };
    let begin = Instant::now();
    let runs: Vec<_> = (0..16).map(|_| fire()).collect();
    let codes: Vec<i32> = runs.into_iter().map(|run| run.wait().code()).collect();
    // On a machine so busy that this took longer than the rest, nothing can be said.
    if begin.elapsed() < Duration::from_secs(5) {
        assert_eq!(codes.iter().filter(|code| **code == 0).count(), 1, "{codes:?}");
        assert!(codes.iter().all(|code| matches!(code, 0 | 75)), "{codes:?}");
        assert_eq!(lines(&place.path("ran")).len(), 1);
    }
    place.run(place.claim(["job", "--", "true"])).expect(0);
    assert!(begin.elapsed() >= Duration::from_secs(5), "had before its time was over");
    place.assert_clean();
}
