//! One etcd that behaves: order, promotion, release, inspection.

use std::time::Duration;

use crate::support::etcd::Cluster;
use crate::support::*;
use hostclaim::etcd::{Bid, Event, Inspector, Lease, Loss, Outcome, Standing};

fn held(outcome: Outcome) -> Lease {
    match outcome {
        Outcome::Held(lease) => lease,
        Outcome::NotHad(others) => panic!("not had: {others:?}"),
    }
}

fn once(name: &str, max: u32) -> Bid {
    let mut bid = bid(name, max);
    bid.wait = Some(Duration::ZERO);
    bid
}

#[test]
fn acquire_release_and_acquire_again() {
    let cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    let first = held(Lease::acquire(&config, bid("a/b", 1), None).unwrap());
    assert!(first.is_trusted());
    assert!(first.remaining() > Duration::ZERO);
    assert_eq!((first.slot(), first.loss()), (0, None));
    let listed = Inspector::new(&config).unwrap().list(Some(b"a/b")).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].revision as u64, listed[0].lease.as_str()), (first.fence(), first.id()));
    assert_eq!(listed[0].record.as_ref().unwrap().pid, std::process::id());

    match Lease::acquire(&config, once("a/b", 1), None).unwrap() {
        Outcome::NotHad(others) => assert_eq!(others, listed),
        Outcome::Held(lease) => panic!("two hold: {lease:?}"),
    }
    // Another capacity is another claim, and `a` is not `a/b`.
    let other = held(Lease::acquire(&config, once("a/b", 2), None).unwrap());
    let short = held(Lease::acquire(&config, once("a", 1), None).unwrap());
    other.release().unwrap();
    short.release().unwrap();

    let fence = first.fence();
    first.release().unwrap();
    let again = held(Lease::acquire(&config, once("a/b", 1), None).unwrap());
    assert!(again.fence() > fence);
    drop(again);
    assert_eq!(counts(&config, "a/b"), (0, 0));
    assert_eq!(cluster.ctl_ok(&["lease", "list"]).trim(), "found 0 leases");
    assert_eq!(cluster.ctl_ok(&["get", "--prefix", ""]), "");
}

#[test]
fn waiters_are_served_in_order_and_a_waiter_that_gives_up_delays_nobody() {
    let cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    let mut line: Vec<_> = Vec::new();
    for place in 0..4 {
        let contender = start(&config, bid("job", 1));
        match place {
            0 => drop(expect_held(&contender)),
            _ => expect_waiting(&contender, place),
        }
        line.push(contender);
    }
    assert_eq!(counts(&config, "job"), (1, 3));
    // One in the middle leaves: nobody is served.
    line.remove(2).release().unwrap();
    expect_waiting(&line[2], 2);
    assert_not_held(&line[1]);
    line.remove(0).release().unwrap();
    let second = expect_held(&line[0]);
    expect_waiting(&line[1], 1);
    line.remove(0).release().unwrap();
    assert!(expect_held(&line[0]).fence > second.fence);
}

#[test]
fn with_two_slots_the_second_holder_may_leave_first() {
    let cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    let first = start(&config, bid("job", 2));
    let one = expect_held(&first);
    let mut second = start(&config, bid("job", 2));
    let two = expect_held(&second);
    let third = start(&config, bid("job", 2));
    expect_waiting(&third, 2);
    let fourth = start(&config, bid("job", 2));
    expect_waiting(&fourth, 3);
    second.release().unwrap();
    let three = expect_held(&third);
    assert_eq!([one.slot, two.slot, three.slot], [0, 1, 1]);
    expect_waiting(&fourth, 2);
    assert_not_held(&fourth);
    drop(first);
    assert_eq!(expect_held(&fourth).slot, 0);
}

#[test]
fn a_release_wakes_the_next_and_its_neighbour_and_nobody_else() {
    let cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    let begun = std::time::Instant::now();
    let mut line: Vec<_> = Vec::new();
    for place in 0..12 {
        let mut quiet = bid("job", 1);
        // No renewals meanwhile.
        quiet.ttl = Duration::from_secs(600);
        let contender = start(&config, quiet);
        match place {
            0 => drop(expect_held(&contender)),
            _ => expect_waiting(&contender, place),
        }
        line.push(contender);
    }
    // Grant, transaction, watch.
    until("all to watch", || line[1..].iter().all(|one| one.requests() >= 3));
    line[0].release().unwrap();
    expect_held(&line[1]);
    expect_waiting(&line[2], 1);
    // One in the middle goes: its successor looks, and that is all.
    line[5].release().unwrap();
    expect_waiting(&line[6], 4);
    // Each looks again by itself every ten seconds, and opens a watch.
    let looks = begun.elapsed().as_secs() / 10 * 2;
    for bystander in [3, 4, 7, 8, 9, 10, 11] {
        let requests = line[bystander].requests();
        assert!(requests <= 3 + looks, "{bystander}: {requests}");
    }
}

#[test]
fn slots_are_unique_when_many_come_at_once() {
    let cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    // More than are tried in one transaction.
    let all: Vec<_> = (0..36).map(|_| start(&config, bid("job", 36))).collect();
    let mut slots: Vec<_> = all.iter().map(|contender| expect_held(contender).slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, (0..36).collect::<Vec<_>>());
    let entries = Inspector::new(&config).unwrap().list(None).unwrap();
    let mut shown: Vec<_> = entries.iter().map(|entry| entry.slot().unwrap()).collect();
    shown.sort_unstable();
    assert_eq!(shown, slots);
}

#[test]
fn a_wait_that_is_over_leaves_nothing() {
    let cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    let holder = held(Lease::acquire(&config, bid("job", 1), None).unwrap());
    let mut brief = bid("job", 1);
    brief.wait = Some(Duration::from_millis(200));
    match Lease::acquire(&config, brief, None).unwrap() {
        Outcome::NotHad(others) => assert_eq!(others.len(), 1),
        Outcome::Held(lease) => panic!("two hold: {lease:?}"),
    }
    assert_eq!(counts(&config, "job"), (1, 0));
    drop(holder);
}

#[test]
fn what_an_operator_deletes_or_revokes_is_lost() {
    let cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    let first = start(&config, bid("job", 1));
    expect_held(&first);
    cluster.ctl_ok(&["del", "--prefix", "/claim/v1/"]);
    let loss = expect(&first, "Lost", |event| if let Event::Lost(loss) = event { Some(*loss) } else { None });
    assert_eq!((loss, first.loss(), first.is_trusted()), (Loss::Deleted, Some(Loss::Deleted), false));

    let second = start(&config, bid("job", 1));
    let lease = expect_held(&second).lease;
    cluster.ctl_ok(&["lease", "revoke", &lease]);
    expect(&second, "Lost", |event| matches!(event, Event::Lost(_)).then_some(()));
    assert!(!second.is_trusted());
}

#[test]
fn forcing_ends_the_holders_and_not_the_waiters() {
    let cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    let inspector = Inspector::new(&config).unwrap();
    assert!(inspector.available(b"job", 2, None).unwrap());
    let holders = [start(&config, bid("job", 2)), start(&config, bid("job", 2))];
    holders.iter().for_each(|holder| drop(expect_held(holder)));
    assert!(!inspector.available(b"job", 2, None).unwrap());
    let waiter = start(&config, bid("job", 2));
    expect_waiting(&waiter, 2);
    let mut follow = inspector.follow(Some(b"job"));
    let seen = follow.next(Some(HANG)).unwrap().unwrap();
    assert_eq!(seen.iter().filter(|entry| entry.standing == Standing::Held).count(), 2);
    assert_eq!(inspector.force_release(b"job", 2).unwrap(), 2);
    for holder in &holders {
        expect(holder, "Lost", |event| matches!(event, Event::Lost(Loss::Deleted)).then_some(()));
    }
    expect_held(&waiter);
    while follow.next(Some(HANG)).unwrap().unwrap().len() > 1 {}
    assert_eq!(inspector.force_release(b"job", 2).unwrap(), 1);
    assert_eq!(inspector.force_release(b"job", 2).unwrap(), 0);
}

#[test]
fn the_slot_of_a_holder_whose_key_was_deleted_is_taken_over() {
    let cluster = Cluster::one();
    // Names are resolved, too.
    let config = config(&cluster.endpoints().replace("127.0.0.1", "localhost"));
    let holders = [start(&config, bid("job", 2)), start(&config, bid("job", 2))];
    let slots: Vec<_> = holders.iter().map(|holder| expect_held(holder).slot).collect();
    let waiter = start(&config, bid("job", 2));
    expect_waiting(&waiter, 2);
    let entries = Inspector::new(&config).unwrap().list(None).unwrap();
    let first = entries[0].record.as_ref().unwrap().slot.unwrap();
    cluster.ctl_ok(&["del", &format!("/claim/v1/sema/job/2/{}", entries[0].lease)]);
    // The holder knows, and has not revoked its lease yet, so its slot's key is still there.
    assert_eq!(expect_held(&waiter).slot, first);
    assert_eq!(cluster.ctl_ok(&["lease", "list"]).lines().count(), 1 + 3);
    let index = slots.iter().position(|slot| *slot == first).unwrap();
    expect(&holders[index], "Lost", |event| matches!(event, Event::Lost(Loss::Deleted)).then_some(()));
    assert!(holders[1 - index].is_trusted());
}

#[test]
fn a_waiter_whose_lease_is_revoked_queues_again_at_the_back() {
    let cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    let mut holder = start(&config, bid("job", 1));
    expect_held(&holder);
    let first = start(&config, bid("job", 1));
    expect_waiting(&first, 1);
    let second = start(&config, bid("job", 1));
    expect_waiting(&second, 2);
    let entries = Inspector::new(&config).unwrap().list(None).unwrap();
    cluster.ctl_ok(&["lease", "revoke", &entries[1].lease]);
    expect(&first, "Requeued", |event| matches!(event, Event::Requeued(_)).then_some(()));
    expect_waiting(&first, 2);
    holder.release().unwrap();
    expect_held(&second);
    assert_not_held(&first);
}

#[test]
fn compaction_does_not_disturb_a_waiter() {
    let cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    let mut holder = start(&config, bid("job", 1));
    expect_held(&holder);
    let waiter = start(&config, bid("job", 1));
    expect_waiting(&waiter, 1);
    cluster.ctl_ok(&["put", "x", "1"]);
    cluster.ctl_ok(&["put", "x", "2"]);
    cluster.ctl_ok(&["compact", &cluster.revision().to_string()]);
    holder.release().unwrap();
    expect_held(&waiter);
}

#[test]
fn spread_gives_a_host_one_slot() {
    let cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    let on = |host: &str| {
        let mut bid = bid("job", 2);
        bid.spread = true;
        bid.host = host.to_owned();
        bid
    };
    let mut first = start(&config, on("a"));
    expect_held(&first);
    let mut again = on("a");
    again.wait = Some(Duration::ZERO);
    match Lease::acquire(&config, again, None).unwrap() {
        Outcome::NotHad(others) => assert_eq!(others.len(), 1),
        Outcome::Held(lease) => panic!("two on one host: {lease:?}"),
    }
    let same = start(&config, on("a"));
    expect_waiting(&same, 1);
    let other = start(&config, on("b"));
    let other_slot = expect_held(&other).slot;
    assert_not_held(&same);
    let inspector = Inspector::new(&config).unwrap();
    assert!(!inspector.available(b"job", 2, Some("a")).unwrap());
    first.release().unwrap();
    assert_ne!(expect_held(&same).slot, other_slot);
}

#[test]
fn at_least_outlives_its_holder_and_ends() {
    let cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    let mut stays = bid("job", 2);
    stays.at_least = Duration::from_secs(15);
    let holder = held(Lease::acquire(&config, stays, None).unwrap());
    let (fence, lease) = (holder.fence(), holder.id().to_owned());
    let before = Inspector::new(&config).unwrap().list(None).unwrap();
    assert_eq!(before[0].lease, lease);
    assert!(before[0].record.as_ref().unwrap().until_ms.is_some());
    holder.release().unwrap();
    let after = Inspector::new(&config).unwrap().list(None).unwrap();
    assert_eq!((after.len(), after[0].revision as u64, after[0].slot()), (1, fence, Some(0)));
    assert_ne!(after[0].lease, lease);
    // The slot is taken all the while, with its key on the lease that is left, and nothing else is.
    assert_eq!(cluster.ctl_ok(&["lease", "list"]).lines().count(), 2);
    let keys = cluster.ctl_ok(&["lease", "timetolive", "--keys", &after[0].lease]);
    assert!(keys.contains("/claim/v1/slot/job/2/0") && keys.contains("/claim/v1/sema/job/2/"), "{keys}");
    let next = start(&config, bid("job", 2));
    assert_eq!(expect_held(&next).slot, 1);
    let third = start(&config, bid("job", 2));
    expect_waiting(&third, 2);
    expect_held(&third);
}

#[test]
fn a_short_at_least_is_kept_too() {
    let cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    let mut stays = bid("job", 1);
    stays.at_least = Duration::from_secs(3);
    let begun = std::time::Instant::now();
    held(Lease::acquire(&config, stays, None).unwrap()).release().unwrap();
    let next = start(&config, bid("job", 1));
    expect_waiting(&next, 1);
    expect_held(&next);
    assert!(begun.elapsed() >= Duration::from_secs(3));
}

#[test]
fn the_deadline_is_shared_as_it_grows() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    let cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    let shared = Arc::new(AtomicU64::new(0));
    let also = shared.clone();
    let share = Box::new(move |moment: hostclaim::etcd::Moment| also.store(moment.nanos(), Ordering::SeqCst));
    let lease = held(Lease::acquire(&config, bid("job", 1), Some(share)).unwrap());
    let first = shared.load(Ordering::SeqCst);
    assert!(first > 0);
    until("a renewal", || shared.load(Ordering::SeqCst) > first && lease.held_until().nanos() > first);
    cluster.ctl_ok(&["del", "--prefix", "/claim/"]);
    until("the loss", || shared.load(Ordering::SeqCst) == 0);
    let mut poll = [rustix::event::PollFd::from_borrowed_fd(lease.lost(), rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut poll, None).unwrap(), 1);
}

#[test]
fn the_record_names_the_command_once_it_is_known() {
    let cluster = Cluster::one();
    let config = config(&cluster.endpoints());
    let lease = held(Lease::acquire(&config, bid("job", 1), None).unwrap());
    lease.set_command_pid(4242);
    let inspector = Inspector::new(&config).unwrap();
    until("the record", || inspector.list(None).unwrap()[0].record.as_ref().unwrap().command_pid == Some(4242));
    assert_eq!(inspector.list(None).unwrap()[0].revision as u64, lease.fence());
}
