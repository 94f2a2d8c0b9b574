//! One etcd behind a proxy that misbehaves.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::support::etcd::{Cluster, free_port};
use crate::support::proxy::{Mode, Proxy};
use crate::support::*;
use hostclaim::etcd::{Contender, ErrorKind, Event, Lease, Loss, Moment, Options, Outcome};

fn lost(contender: &Contender) -> Loss {
    expect(contender, "Lost", |event| if let Event::Lost(loss) = event { Some(*loss) } else { None })
}

/// A bid whose trust ends soon.
fn brisk(name: &str) -> hostclaim::etcd::Bid {
    let mut bid = bid(name, 1);
    bid.ttl = Duration::from_secs(3);
    bid.reserve = Duration::from_secs(1);
    bid
}

fn readable(fd: std::os::fd::BorrowedFd<'_>) -> bool {
    let mut poll = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut poll, Some(&now)).unwrap() == 1
}

#[test]
fn a_silent_partition_ends_trust_before_anybody_else_holds() {
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let behind = config(&proxy.endpoint());
    let direct = config(&cluster.endpoints());
    for mode in [Mode::Stall, Mode::Cut, Mode::Reset] {
        let holder = start(&behind, brisk("job"));
        let first = expect_held(&holder);
        let waiter = start(&direct, brisk("job"));
        expect_waiting(&waiter, 1);
        assert!(!readable(holder.lost_fd().as_fd()));
        proxy.set(mode);
        let second = expect_held(&waiter);
        let held_at = Moment::now();
        // The waiter was told after the lease had ended, and trust ended before that.
        assert!(!holder.is_trusted(), "{mode:?}");
        assert!(holder.deadline() < held_at, "{mode:?}");
        assert_eq!(lost(&holder), Loss::Expired, "{mode:?}");
        assert!(readable(holder.lost_fd().as_fd()));
        assert!(second.fence > first.fence);
        proxy.set(Mode::Pass);
    }
}

#[test]
fn a_cut_that_is_mended_in_time_costs_nothing() {
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let holder = start(&config(&proxy.endpoint()), bid("job", 1));
    expect_held(&holder);
    for mode in [Mode::Cut, Mode::Reset] {
        let connections = proxy.accepted();
        proxy.set(mode);
        until("a try to connect again", || proxy.accepted() > connections);
        let deadline = holder.deadline();
        proxy.set(Mode::Pass);
        until("a renewal", || holder.deadline() > deadline);
    }
    assert!(holder.is_trusted());
    // The watch is back too.
    cluster.ctl_ok(&["del", "--prefix", "/claim/"]);
    assert_eq!(lost(&holder), Loss::Deleted);
}

#[test]
fn a_stalled_connection_is_replaced_by_a_fresh_one() {
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let holder = start(&config(&proxy.endpoint()), bid("job", 1));
    expect_held(&holder);
    let connections = proxy.accepted();
    proxy.set(Mode::Stall);
    until("a fresh connection", || proxy.accepted() > connections);
    proxy.set(Mode::Pass);
    let deadline = holder.deadline();
    until("a renewal", || holder.deadline() > deadline);
    assert!(holder.is_trusted());
}

#[test]
fn a_waiter_that_was_cut_off_is_served_when_it_is_back() {
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let mut holder = start(&config(&cluster.endpoints()), bid("job", 1));
    expect_held(&holder);
    let waiter = start(&config(&proxy.endpoint()), bid("job", 1));
    expect_waiting(&waiter, 1);
    proxy.set(Mode::Cut);
    holder.release().unwrap();
    cluster.ctl_ok(&["put", "x", "1"]);
    cluster.ctl_ok(&["compact", &cluster.revision().to_string()]);
    proxy.set(Mode::Pass);
    expect_held(&waiter);
}

#[test]
fn a_waiter_that_lost_its_session_queues_again_at_the_back() {
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let direct = config(&cluster.endpoints());
    let mut holder = start(&direct, brisk("job"));
    expect_held(&holder);
    let cut_off = start(&config(&proxy.endpoint()), brisk("job"));
    expect_waiting(&cut_off, 1);
    let patient = start(&direct, brisk("job"));
    expect_waiting(&patient, 2);
    proxy.set(Mode::Stall);
    expect_waiting(&patient, 1);
    proxy.set(Mode::Pass);
    expect(&cut_off, "Requeued", |event| matches!(event, Event::Requeued(_)).then_some(()));
    expect_waiting(&cut_off, 2);
    holder.release().unwrap();
    expect_held(&patient);
    assert_not_held(&cut_off);
}

#[test]
fn a_waiter_without_session_is_told_no_in_its_time() {
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let _holder = held(&cluster);
    let mut limited = brisk("job");
    limited.wait = Some(Duration::from_secs(5));
    let waiter = start(&config(&proxy.endpoint()), limited);
    expect_waiting(&waiter, 1);
    proxy.set(Mode::Cut);
    expect(&waiter, "NotHad", |event| match event {
        Event::NotHad(_) => Some(()),
        Event::Failed(error) => panic!("{error}"),
        _ => None,
    });
}

fn held(cluster: &Cluster) -> Contender {
    let holder = start(&config(&cluster.endpoints()), bid("job", 1));
    expect_held(&holder);
    holder
}

#[test]
fn a_listing_that_is_compacted_before_the_watch_opens() {
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let direct = config(&cluster.endpoints());
    let mut holder = held(&cluster);
    // The answer takes its time, and so does the watch: compaction comes between them.
    proxy.set(Mode::Delay(Duration::from_millis(250)));
    let waiter = start(&config(&proxy.endpoint()), bid("job", 1));
    until("the waiter's key", || counts(&direct, "job") == (1, 1));
    holder.release().unwrap();
    cluster.ctl_ok(&["put", "x", "1"]);
    cluster.ctl_ok(&["compact", &cluster.revision().to_string()]);
    expect_held(&waiter);
}

#[test]
fn no_session_within_the_dial_timeout_is_an_error() {
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let refused = format!("127.0.0.1:{}", free_port());
    for (mode, endpoint) in [(Mode::Stall, proxy.endpoint()), (Mode::Cut, proxy.endpoint()), (Mode::Pass, refused)] {
        proxy.set(mode);
        let timeout = Duration::from_millis(700);
        let options = Options { endpoints: Some(endpoint.clone()), dial_timeout: Some(timeout), ..Options::default() };
        let begun = Instant::now();
        let error = Lease::acquire(&config_with(options), bid("job", 1), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert_eq!(error.place(), Some(&*format!("http://{endpoint}")), "{error}");
        // A tenth of a second less where the next pause would have led past the end.
        assert!(begun.elapsed() >= timeout - Duration::from_millis(200), "{:?}", begun.elapsed());
        assert!(begun.elapsed() < HANG / 2);
    }
}

#[test]
fn a_refused_connection_is_tried_again_until_etcd_is_there() {
    let mut cluster = Cluster::one();
    cluster.nodes[0].kill();
    let waiting = start(&config(&cluster.endpoints()), bid("job", 1));
    assert!(waiting.wait_event(Some(Duration::from_millis(300))).is_none());
    cluster.nodes[0].start();
    expect_held(&waiting);
}

#[test]
fn another_endpoint_is_taken_when_the_first_is_dead_or_silent() {
    let cluster = Cluster::one();
    let silent = Proxy::new(&cluster.endpoints());
    silent.set(Mode::Stall);
    let dead = format!("127.0.0.1:{}", free_port());
    for first in [silent.endpoint(), dead] {
        let options = Options {
            endpoints: Some(format!("{first},{}", cluster.endpoints())),
            dial_timeout: Some(Duration::from_secs(4)),
            ..Options::default()
        };
        match Lease::acquire(&config_with(options), bid("job", 1), None).unwrap() {
            Outcome::Held(lease) => lease.release().unwrap(),
            Outcome::NotHad(others) => panic!("{others:?}"),
        }
    }
}

#[test]
fn an_endpoint_that_falls_silent_is_left_for_another() {
    let cluster = Cluster::one();
    let (one, two) = (Proxy::new(&cluster.endpoints()), Proxy::new(&cluster.endpoints()));
    let holder = start(&config(&format!("{},{}", one.endpoint(), two.endpoint())), bid("job", 1));
    expect_held(&holder);
    let (mut used, mut spare) = (&one, &two);
    for _ in 0..3 {
        used.set(Mode::Stall);
        let deadline = holder.deadline();
        until("a renewal elsewhere", || holder.deadline() > deadline);
        assert!(holder.is_trusted());
        // Not only the renewals have moved.
        until("traffic elsewhere", || spare.bytes() > 0);
        used.set(Mode::Pass);
        std::mem::swap(&mut used, &mut spare);
    }
    used.set(Mode::Pass);
    cluster.ctl_ok(&["del", "--prefix", "/claim/"]);
    assert_eq!(lost(&holder), Loss::Deleted);
}

#[test]
fn a_release_that_cannot_be_told_is_given_up() {
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let mut holder = start(&config(&proxy.endpoint()), bid("job", 1));
    expect_held(&holder);
    proxy.set(Mode::Stall);
    let begun = Instant::now();
    let error = holder.release().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(begun.elapsed() >= Duration::from_millis(900));
    assert!(begun.elapsed() < HANG / 2);
    drop(holder);
}

#[test]
fn a_stopped_etcd_ends_trust_and_a_restart_lets_the_next_hold() {
    let mut cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    let holder = start(&config, brisk("job"));
    expect_held(&holder);
    cluster.nodes[0].pause();
    assert_eq!(lost(&holder), Loss::Expired);
    cluster.nodes[0].resume();
    let next = start(&config, brisk("job"));
    let fence = expect_held(&next).fence;
    // Killed and restarted within the time: the run goes on.
    let patient = start(&config, bid("other", 1));
    expect_held(&patient);
    cluster.nodes[0].kill();
    cluster.nodes[0].start();
    let deadline = patient.deadline();
    until("a renewal after the restart", || patient.deadline() > deadline || patient.loss().is_some());
    assert!(patient.is_trusted(), "{:?}", patient.loss());
    drop(next);
    let last = start(&config, brisk("job"));
    assert!(expect_held(&last).fence > fence);
}

#[test]
fn at_least_holds_across_a_crash() {
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let mut stays = brisk("job");
    stays.at_least = Duration::from_secs(9);
    let begun = Instant::now();
    let holder = start(&config(&proxy.endpoint()), stays);
    let fence = expect_held(&holder).fence;
    proxy.set(Mode::Cut);
    let waiter = start(&config(&cluster.endpoints()), brisk("job"));
    expect_waiting(&waiter, 1);
    // Trust does not last as long as the lease does.
    assert_eq!(lost(&holder), Loss::Expired);
    assert!(holder.deadline() < Moment::now());
    assert_not_held(&waiter);
    assert!(expect_held(&waiter).fence > fence);
    assert!(begun.elapsed() >= Duration::from_secs(9));
}

#[test]
fn a_waiter_with_at_least_that_dies_is_gone_after_its_ttl() {
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let direct = config(&cluster.endpoints());
    let mut holder = start(&direct, bid("job", 1));
    expect_held(&holder);
    let mut stays = brisk("job");
    stays.at_least = Duration::from_secs(3600);
    let middle = start(&config(&proxy.endpoint()), stays);
    expect_waiting(&middle, 1);
    let last = start(&direct, bid("job", 1));
    expect_waiting(&last, 2);
    proxy.set(Mode::Stall);
    // Its end serves nobody.
    expect_waiting(&last, 1);
    assert_not_held(&last);
    holder.release().unwrap();
    expect_held(&last);
    proxy.set(Mode::Pass);
}

#[test]
fn all_is_over_after_the_release() {
    let cluster = Cluster::one();
    let mut holder = held(&cluster);
    holder.release().unwrap();
    holder.release().unwrap();
    assert!(holder.wait_event(None).is_none());
    assert!(!holder.is_trusted());
}

#[test]
fn round_trips() {
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let trip = Duration::from_millis(400);
    // Once etcd is up.
    assert_eq!(counts(&config(&cluster.endpoints()), "job"), (0, 0));
    proxy.set(Mode::Delay(trip / 2));
    let config = config(&proxy.endpoint());
    let begun = Instant::now();
    let contender = start(&config, bid("job", 1));
    expect_held(&contender);
    let acquired = begun.elapsed();
    let requests = contender.requests();
    let mut contender = contender;
    let begun = Instant::now();
    contender.release().unwrap();
    let released = begun.elapsed();
    let trips = |time: Duration| time.as_secs_f64() / trip.as_secs_f64();
    println!("acquire {:.2} round trips ({requests} requests), release {:.2}", trips(acquired), trips(released));
    // On a busy machine it may take longer, so the bound is on what cannot be less, and on what was sent.
    assert!(trips(acquired) >= 2.0 && trips(released) >= 1.0);
    // Grant and transaction; the watch that follows, and a renewal if it took so long.
    let renewals = 2 * acquired.as_secs();
    assert!((2..=3 + renewals).contains(&requests), "{requests}");
}
