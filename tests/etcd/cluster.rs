//! Three members, of which some die.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::etcd::Cluster;
use crate::support::proxy::{Mode, Proxy};
use crate::support::*;
use hostclaim::etcd::{Bid, Contender, Event, Loss, Moment};

fn lost(contender: &Contender) -> Loss {
    expect(contender, "Lost", |event| if let Event::Lost(loss) = event { Some(*loss) } else { None })
}

/// A new leader takes its time on a busy machine; what is tested is not how long.
fn patient(name: &str, max: u32) -> Bid {
    let mut bid = bid(name, max);
    bid.ttl = Duration::from_secs(24);
    bid.reserve = Duration::from_secs(14);
    bid
}

/// Waits until a renewal has been answered, and fails if it is lost before.
fn renewed(contender: &Contender) {
    let deadline = contender.deadline();
    until("a renewal", || contender.deadline() > deadline || contender.loss().is_some());
    assert_eq!(contender.loss(), None);
}

#[test]
fn the_death_of_any_member_costs_no_run_its_claim() {
    let mut cluster = Cluster::three();
    let config = config(&cluster.endpoints());
    let mut holder = start(&config, patient("job", 1));
    expect_held(&holder);
    let waiter = start(&config, patient("job", 1));
    expect_waiting(&waiter, 1);
    for round in 0..3 {
        // The leader first, then whoever it is.
        let victim = if round == 0 { cluster.leader() } else { round - 1 };
        cluster.nodes[victim].kill();
        renewed(&holder);
        renewed(&waiter);
        cluster.nodes[victim].start();
        cluster.leader();
        renewed(&holder);
    }
    assert!(holder.is_trusted());
    let victim = cluster.leader();
    cluster.nodes[victim].kill();
    holder.release().ok();
    expect_held(&waiter);
}

#[test]
fn a_leader_that_is_stopped_costs_no_run_its_claim() {
    let cluster = Cluster::three();
    let config = config(&cluster.endpoints());
    let holder = start(&config, patient("job", 1));
    expect_held(&holder);
    let leader = cluster.leader();
    cluster.nodes[leader].pause();
    renewed(&holder);
    renewed(&holder);
    cluster.nodes[leader].resume();
    renewed(&holder);
    cluster.ctl_ok(&["del", "--prefix", "/claim/"]);
    assert_eq!(lost(&holder), Loss::Deleted);
}

#[test]
fn without_a_quorum_trust_ends_and_with_it_work_goes_on() {
    let mut cluster = Cluster::three();
    let config = config(&cluster.endpoints());
    let holder = start(&config, bid("job", 1));
    let fence = expect_held(&holder).fence;
    let waiter = start(&config, bid("job", 1));
    expect_waiting(&waiter, 1);
    let killed = [0, 1];
    killed.iter().for_each(|node| cluster.nodes[*node].kill());
    let deadline_before = holder.deadline();
    assert_eq!(lost(&holder), Loss::Expired);
    assert!(!holder.is_trusted());
    assert!(Moment::now() >= deadline_before);
    killed.iter().for_each(|node| cluster.nodes[*node].start());
    assert!(expect_held(&waiter).fence > fence);
}

#[test]
fn a_member_that_is_cut_off_from_its_clients_is_left() {
    let cluster = Cluster::three();
    let proxies: Vec<_> = cluster.nodes.iter().map(|node| Proxy::new(&node.endpoint())).collect();
    let all: Vec<_> = proxies.iter().map(Proxy::endpoint).collect();
    let config = config(&all.join(","));
    let mut holder = start(&config, patient("job", 2));
    expect_held(&holder);
    let other = start(&config, patient("job", 2));
    expect_held(&other);
    let waiter = start(&config, patient("job", 2));
    expect_waiting(&waiter, 2);
    for (index, mode) in [(0, Mode::Stall), (1, Mode::Reset), (2, Mode::Cut)] {
        proxies[index].set(mode);
        [&holder, &other, &waiter].into_iter().for_each(renewed);
        if index == 1 {
            proxies[0].set(Mode::Pass);
        }
    }
    // Only the first member is left to them.
    holder.release().unwrap();
    expect_held(&waiter);
    assert!(other.is_trusted());
}

/// One custody, on one clock.
#[derive(Debug)]
struct Interval {
    begin: Moment,
    end: Moment,
    fence: u64,
}

/// A small generator, so that a run can be repeated from its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

#[test]
fn at_most_n_are_trusted_at_once_whatever_happens() {
    const MAX: usize = 2;
    let seed = std::env::var("CLAIM_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_260_612);
    let seconds = std::env::var("CLAIM_TEST_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    println!("seed {seed}, {seconds} s");
    let mut cluster = Cluster::three();
    let stop = Arc::new(AtomicBool::new(false));
    let had = Arc::new(AtomicU64::new(0));
    let mut proxies = Vec::new();
    let mut hosts = Vec::new();
    for host in 0..4_u64 {
        let mine: Vec<_> = cluster.nodes.iter().map(|node| Proxy::new(&node.endpoint())).collect();
        let endpoints: Vec<_> = mine.iter().map(Proxy::endpoint).collect();
        proxies.push(mine);
        let config = config(&endpoints.join(","));
        let (stop, had) = (stop.clone(), had.clone());
        hosts.push(std::thread::spawn(move || {
            let mut dice = Dice(seed + host + 1);
            let mut intervals = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let mut bid = bid("job", MAX as u32);
                bid.ttl = Duration::from_secs(3);
                bid.reserve = Duration::from_secs(1);
                let mut contender = start(&config, bid);
                let fence = loop {
                    match contender.wait_event(Some(Duration::from_millis(100))) {
                        Some(Event::Held(held)) => break Some(held.fence),
                        Some(Event::Failed(_) | Event::NotHad(_)) => break None,
                        _ if stop.load(Ordering::Relaxed) => break None,
                        _ => {}
                    }
                };
                let Some(fence) = fence else { continue };
                let begin = Moment::now();
                let mut end = begin;
                let until = Instant::now() + Duration::from_millis(dice.roll(800));
                // What is recorded was true when it was recorded: work goes on as long as trust does.
                while Instant::now() < until && contender.is_trusted() {
                    let now = Moment::now();
                    if now < contender.deadline() && contender.is_trusted() {
                        end = now;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                had.fetch_add(1, Ordering::Relaxed);
                intervals.push(Interval { begin, end, fence });
                contender.release().ok();
            }
            intervals
        }));
    }
    let mut dice = Dice(seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(200 + dice.roll(800)));
        match dice.roll(8) {
            0 => {
                let victim = dice.roll(3) as usize;
                cluster.nodes[victim].kill();
                std::thread::sleep(Duration::from_millis(dice.roll(1500)));
                cluster.nodes[victim].start();
            }
            1 => {
                let victim = dice.roll(3) as usize;
                cluster.nodes[victim].pause();
                std::thread::sleep(Duration::from_millis(dice.roll(3000)));
                cluster.nodes[victim].resume();
            }
            kind => {
                let host = &proxies[dice.roll(4) as usize];
                let mode = match kind {
                    2 | 3 => Mode::Stall,
                    4 => Mode::Cut,
                    5 => Mode::Reset,
                    _ => Mode::Delay(Duration::from_millis(dice.roll(300))),
                };
                let all = dice.roll(2) == 0;
                let one = dice.roll(3) as usize;
                let hit = |index: usize| all || index == one;
                host.iter().enumerate().filter(|(index, _)| hit(*index)).for_each(|(_, proxy)| proxy.set(mode));
                std::thread::sleep(Duration::from_millis(dice.roll(4000)));
                host.iter().for_each(|proxy| proxy.set(Mode::Pass));
            }
        }
    }
    // Once it is quiet, work goes on.
    let before = had.load(Ordering::Relaxed);
    until("work after the storm", || had.load(Ordering::Relaxed) >= before + 4);
    stop.store(true, Ordering::Relaxed);
    let mut intervals: Vec<_> = hosts.into_iter().flat_map(|host| host.join().unwrap()).collect();
    println!("{} custodies", intervals.len());

    intervals.sort_by_key(|interval| interval.fence);
    assert!(intervals.windows(2).all(|pair| pair[0].fence < pair[1].fence), "a fence was had twice");
    let mut changes: Vec<_> = intervals.iter().flat_map(|one| [(one.begin, 1), (one.end, -1)]).collect();
    // At one moment, ends before beginnings.
    changes.sort_by_key(|(moment, change)| (*moment, *change));
    let mut holding = 0;
    for (moment, change) in changes {
        holding += change;
        assert!(holding <= MAX as i32, "{holding} at {moment:?}: {intervals:#?}");
    }
}
