//! Claims across hosts, against real etcd processes on this machine.
//!
//! `cargo bench --bench cluster [-- WHAT... ROUNDS]`, where WHAT is one or more of
//!
//! - `trips`: what a claim costs in round trips, and how long after a release the next holds;
//! - `process`: `claim --etcd NAME true` as a whole process beside `etcdctl lock NAME true`, in pairs (a ratio below 1 is
//!   in our favour);
//! - `leader`: how much of the time that a run has without a renewal is left when etcd's leader is killed;
//! - `partition`: how long after the last sign of life of a COMMAND that is cut off, and ignores SIGTERM, the next holds.
//!
//! Without any, all of them. ROUNDS stands for the usual number of each.

#[path = "../tests/etcd/support/mod.rs"]
mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hostclaim::etcd::Moment;
use rustix::process::Signal;
use support::etcd::Cluster;
use support::host::{Host, status_of};
use support::proxy::{Mode, Proxy};
use support::ticks::{ticks, times};
use support::{bid, config, counts, expect_held, expect_waiting, start, until};

/// Takes the number of rounds that was asked for.
type Measure = fn(Option<usize>);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let rounds = words.iter().find_map(|word| word.parse().ok());
    let named: Vec<&str> = words.iter().map(String::as_str).filter(|word| word.parse::<usize>().is_err()).collect();
    let all: [(&str, Measure); 4] =
        [("trips", trips), ("process", process), ("leader", leader), ("partition", partition)];
    for (name, measure) in all {
        if named.is_empty() || named.contains(&name) {
            measure(rounds);
        }
    }
}

/// The smallest, those at a tenth, the middle and nine tenths, and the largest.
fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let at = |tenths: usize| values[(values.len() - 1) * tenths / 10];
    format!(
        "least {:.3}, p10 {:.3}, median {:.3}, p90 {:.3}, most {:.3} (of {})",
        at(0),
        at(1),
        at(5),
        at(9),
        at(10),
        values.len()
    )
}

fn trips(rounds: Option<usize>) {
    const TRIP: Duration = Duration::from_millis(200);
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let (direct, behind) = (config(&cluster.endpoints()), config(&proxy.endpoint()));
    // Once etcd is up.
    assert_eq!(counts(&direct, "bench"), (0, 0));
    let trips = |since: Instant| since.elapsed().as_secs_f64() / TRIP.as_secs_f64();
    for max in [1, 2] {
        let (mut acquired, mut released, mut promoted) = (Vec::new(), Vec::new(), Vec::new());
        let mut requests = 0;
        for _ in 0..rounds.unwrap_or(10) {
            proxy.set(Mode::Delay(TRIP / 2));
            let begun = Instant::now();
            let mut contender = start(&behind, bid("bench", max));
            expect_held(&contender);
            acquired.push(trips(begun));
            requests = contender.requests();
            let begun = Instant::now();
            contender.release().expect("a release");
            released.push(trips(begun));

            let mut holders: Vec<_> = (0..max).map(|_| start(&direct, bid("bench", max))).collect();
            holders.iter().for_each(|holder| drop(expect_held(holder)));
            let next = start(&behind, bid("bench", max));
            expect_waiting(&next, max as usize);
            until("its watch", || next.requests() >= 3);
            // It has been sent; that it has been opened is not told.
            std::thread::sleep(2 * TRIP);
            holders.pop().expect("a holder").release().expect("a release");
            let begun = Instant::now();
            expect_held(&next);
            promoted.push(trips(begun));
            proxy.set(Mode::Pass);
        }
        println!("N = {max}, round trips to acquire: {}; {requests} requests", spread(acquired));
        println!("N = {max}, round trips to release: {}", spread(released));
        println!("N = {max}, round trips from another's release to holding: {}", spread(promoted));
    }
}

fn process(rounds: Option<usize>) {
    let cluster = Cluster::one();
    until("etcd", || cluster.ctl(&["endpoint", "health"]).status.success());
    let scratch = tempfile::tempdir_in("/dev/shm").expect("a directory on tmpfs");
    let endpoints = cluster.endpoints();
    let ours = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_claim"));
        command.arg(format!("--etcd={endpoints}")).arg("--dir").arg(scratch.path().join("claims"));
        command.args(["bench", "/bin/true"]);
        time(command)
    };
    let theirs = || {
        let mut command = Command::new("etcdctl");
        command.arg(format!("--endpoints={endpoints}")).args(["lock", "bench", "/bin/true"]).env("ETCDCTL_API", "3");
        time(command)
    };
    let (mut a, mut b, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..rounds.unwrap_or(200) {
        // In turn, so that neither profits from going second.
        let (x, y) = if pair % 2 == 0 {
            let x = ours();
            (x, theirs())
        } else {
            let y = theirs();
            (ours(), y)
        };
        ratios.push(x / y);
        a.push(x * 1e3);
        b.push(y * 1e3);
    }
    println!("claim --etcd NAME true, ms: {}", spread(a));
    println!("etcdctl lock NAME true, ms: {}", spread(b));
    println!("ratio of the pairs: {}", spread(ratios));
}

fn time(mut command: Command) -> f64 {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let begin = Instant::now();
    assert!(command.status().expect("a program to time").success());
    begin.elapsed().as_secs_f64()
}

fn leader(rounds: Option<usize>) {
    let mut cluster = Cluster::three();
    let config = config(&cluster.endpoints());
    let holder = start(&config, bid("bench", 1));
    expect_held(&holder);
    let (ttl, reserve) = (bid("bench", 1).ttl, bid("bench", 1).reserve);
    let mut left = Vec::new();
    for _ in 0..rounds.unwrap_or(8) {
        let leader = cluster.leader();
        let deadline = holder.deadline();
        until("a renewal", || holder.deadline() > deadline || holder.loss().is_some());
        cluster.nodes[leader].kill();
        let mut low = Duration::MAX;
        let mut deadline = holder.deadline();
        let mut renewals = 0;
        while renewals < 3 {
            low = low.min(holder.deadline().since(Moment::now()));
            if holder.deadline() > deadline {
                deadline = holder.deadline();
                renewals += 1;
            }
            assert_eq!(holder.loss(), None);
            std::thread::sleep(Duration::from_millis(2));
        }
        // What is kept in reserve does not count.
        left.push(low.saturating_sub(reserve).as_secs_f64());
        cluster.nodes[leader].start();
        cluster.leader();
    }
    println!("leader killed, seconds left of {:?} before the work would be stopped: {}", ttl - reserve, spread(left));
}

fn partition(rounds: Option<usize>) {
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let (one, two) = (Host::new("node1", &proxy.endpoint()), Host::new("node2", &cluster.endpoints()));
    let brisk = ["--ttl", "3s", "--kill-after", "0.5", "--dial-timeout", "30s", "bench", "-c"];
    let mut gaps = Vec::new();
    for round in 0..rounds.unwrap_or(50) {
        let (first, second) = (one.file(&format!("ticks{round}")), two.file(&format!("ticks{round}")));
        let line = ticks(&first);
        let mut run = one.start(&[&brisk[..], &[&line]].concat());
        until("ticks", || times(&first).len() > 3);
        let line = ticks(&second);
        let mut waiter = two.start(&[&brisk[..], &[&line]].concat());
        until("a waiter", || cluster.contenders().len() == 2);
        proxy.set(Mode::Stall);
        assert_eq!(status_of(&run.end()), 70);
        run.until_alone(&[]);
        until("the other host", || !times(&second).is_empty());
        gaps.push(times(&second)[0] - times(&first).last().expect("a sign of life"));
        // Nobody is at work after it, so the next round begins when its lease has ended.
        waiter.signal(Signal::KILL);
        waiter.end();
        waiter.until_alone(&[]);
        proxy.set(Mode::Pass);
    }
    let overlaps = gaps.iter().filter(|gap| **gap <= 0.0).count();
    println!("cut off, seconds from the last sign of life to the next holder: {}", spread(gaps));
    assert_eq!(overlaps, 0, "overlaps");
}
