//! `claim --etcd`: what is left running when something dies, stops or is cut off: nothing that has no lease.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::etcd::Cluster;
use crate::support::host::*;
use crate::support::proxy::{Mode, Proxy};
use crate::support::ticks::{ticks, ticks_with_daemon, times};
use crate::support::until;

/// A COMMAND with a daemon in a session of its own, which says when it is there; all ignore SIGTERM.
fn with_daemon(begun: &Path) -> String {
    format!("trap '' TERM; setsid sh -c 'sleep 600 & echo x >{}; sleep 600' & sleep 600; true", begun.display())
}

const BRISK: [&str; 4] = ["--ttl", "3s", "--kill-after", "0.5"];

fn brisk<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    let mut all = BRISK.to_vec();
    all.extend(arguments);
    all
}

#[test]
fn whichever_is_killed_nothing_is_left_a_second_later() {
    let cluster = Cluster::one();
    let host = Host::new("node1", &cluster.endpoints());
    for tree in [false, true] {
        for victim in ["session", "keeper", "command"] {
            let begun = host.file(&format!("begun-{victim}-{tree}"));
            let line = with_daemon(&begun);
            let mut arguments = vec!["--ttl", "3s", "job", "-c", &line];
            if tree {
                arguments.insert(0, "--tree");
            }
            let mut run = host.start(&arguments);
            until_written(&begun);
            // The two of ours, COMMAND and its daemon, and a process of each.
            until("all of them", || run.family().len() >= 6);
            let keeper = run.keeper();
            let command = children(keeper)[0];
            let pid = match victim {
                "session" => run.pid,
                "keeper" => keeper,
                _ => command,
            };
            send(pid, Signal::KILL);
            if tree && victim == "command" {
                // The daemon is what the claim is held for now.
                until("COMMAND's end", || !run.family().contains(&command));
                assert!(run.family().len() >= 4);
                run.signal(Signal::KILL);
            }
            let took = run.until_alone(&[]);
            assert!(took < Duration::from_secs(1), "{victim}: {took:?}");
            eprintln!("tree {tree}, {victim} killed: all gone after {took:?}");
            let status = status_of(&run.end());
            let expected = match victim {
                "keeper" => 70,
                _ => 137,
            };
            assert_eq!(status, expected, "{victim}, tree: {tree}");
        }
    }
    // The session's lease has ended, or soon will have: nobody cleans up by hand.
    assert_eq!(status_of(&host.run(&["--ttl", "3s", "job", "true"])), 0);
}

#[test]
fn a_daemon_does_not_outlive_its_claim() {
    let cluster = Cluster::one();
    let host = Host::new("node1", &cluster.endpoints());
    let mut run = host.start(&["job", "-c", "setsid sleep 600 >/dev/null 2>&1 & exit 3"]);
    assert_eq!(status_of(&run.end()), 3);
    assert!(run.family().is_empty());
    // With --tree it is waited for.
    let done = host.file("done");
    let line = format!("(sleep 0.3; echo x >{}) >/dev/null 2>&1 & exit 4", done.display());
    assert_eq!(status_of(&host.run(&["--tree", "job", "-c", &line])), 4);
    assert!(done.exists());
}

#[test]
fn a_stopped_session_does_not_carry_command_past_the_end_of_its_lease() {
    let cluster = Cluster::one();
    let (one, two) = (Host::new("node1", &cluster.endpoints()), Host::new("node2", &cluster.endpoints()));
    let (first, daemon, second) = (one.file("ticks"), one.file("daemon"), two.file("ticks"));
    for stop_keeper in [false, true] {
        for file in [&first, &daemon, &second] {
            let _ = std::fs::remove_file(file);
        }
        let line = ticks_with_daemon(&first, &daemon);
        let mut run = one.start(&brisk(&["job", "-c", &line]));
        until("ticks", || times(&first).len() > 3 && times(&daemon).len() > 3);
        let line = ticks(&second);
        let waiter = two.start(&brisk(&["job", "-c", &line]));
        until("a waiter", || cluster.contenders().len() == 2);
        if stop_keeper {
            // The session goes on renewing: that alone does no harm. Cut off as well, it does the keeper's work.
            send(run.keeper(), Signal::STOP);
            cluster.ctl_ok(&["del", "--prefix", "/claim/v1/sema/job/1/"]);
            run.until_alone(&[]);
        } else {
            run.signal(Signal::STOP);
        }
        until("the other host", || times(&second).len() > 3);
        if !stop_keeper {
            for file in [&first, &daemon] {
                let overlap = times(file).last().unwrap() - times(&second)[0];
                assert!(overlap < 0.0, "{overlap}, {}", file.display());
            }
            run.signal(Signal::CONT);
        }
        assert_eq!(status_of(&run.end()), 70);
        run.until_alone(&[]);
        drop(waiter);
        until("the end of it", || cluster.contenders().is_empty());
    }
}

#[test]
fn a_silent_partition_never_makes_two() {
    // Fifty rounds and more with CLAIM_TEST_ROUNDS.
    let rounds = std::env::var("CLAIM_TEST_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let (one, two) = (Host::new("node1", &proxy.endpoint()), Host::new("node2", &cluster.endpoints()));
    let mut gaps = Vec::new();
    for round in 0..rounds {
        let (first, second) = (one.file(&format!("ticks{round}")), two.file(&format!("ticks{round}")));
        let line = ticks(&first);
        let mut run = one.start(&brisk(&["job", "-c", &line]));
        until("ticks", || times(&first).len() > 3);
        let line = ticks(&second);
        let mut waiter = two.start(&brisk(&["job", "-c", &line]));
        until("a waiter", || cluster.contenders().len() == 2);
        proxy.set(Mode::Stall);
        let lost = run.end();
        assert_eq!(status_of(&lost), 70, "{lost:?}");
        assert_eq!(text(&lost.stderr).lines().count(), 1, "{lost:?}");
        run.until_alone(&[]);
        until("the other host", || times(&second).len() > 3);
        let gap = times(&second)[0] - times(&first).last().unwrap();
        assert!(gap > 0.0, "overlap of {gap} in round {round}");
        gaps.push(gap);
        waiter.signal(Signal::KILL);
        waiter.end();
        proxy.set(Mode::Pass);
    }
    gaps.sort_by(f64::total_cmp);
    eprintln!("from the last sign of life to the next holder, seconds: {gaps:.2?}");
}

#[test]
fn what_is_deleted_or_revoked_is_noticed_at_once() {
    let cluster = Cluster::one();
    let host = Host::new("node1", &cluster.endpoints());
    for by in ["key", "lease"] {
        let (begun, events) = (host.file(&format!("begun-{by}")), host.file(&format!("events-{by}")));
        let line = format!("echo $CLAIM_LEASE >{}; sleep 600", begun.display());
        let mut run = host.start(&["--ttl", "60s", "--events", events.to_str().unwrap(), "job", "-c", &line]);
        let lease = until_written(&begun);
        match by {
            "key" => cluster.ctl_ok(&["del", "--prefix", "/claim/v1/"]),
            _ => cluster.ctl_ok(&["lease", "revoke", lease.trim()]),
        };
        let begun = Instant::now();
        let lost = run.end();
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        assert_eq!(status_of(&lost), 70);
        assert!(text(&lost.stderr).starts_with("claim: job: the claim was lost ("), "{lost:?}");
        let events = std::fs::read_to_string(&events).unwrap();
        assert!(events.lines().last().unwrap().contains("\"event\":\"lost\""), "{events}");
    }
}

#[test]
fn a_waiter_without_a_session_is_not_had_within_its_wait() {
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let (one, two) = (Host::new("node1", &cluster.endpoints()), Host::new("node2", &proxy.endpoint()));
    let begun = one.file("begun");
    let line = format!("echo x >{}; exec sleep 600", begun.display());
    let _first = one.start(&["job", "-c", &line]);
    until_written(&begun);
    let mut waiter = two.start(&brisk(&["-w", "6", "job", "true"]));
    until("a waiter", || cluster.contenders().len() == 2);
    proxy.set(Mode::Cut);
    assert_eq!(status_of(&waiter.end()), 75);
}

#[test]
fn the_next_of_the_host_takes_the_place_of_one_that_was_killed() {
    let cluster = Cluster::one();
    let host = Host::new("node1", &cluster.endpoints());
    let begun = host.file("begun");
    let line = format!("echo x >{}; exec sleep 600", begun.display());
    let mut first = host.start(&brisk(&["job", "-c", &line]));
    until_written(&begun);
    let mut second = host.start(&brisk(&["job", "true"]));
    until("a waiter", || text(&host.run(&["--who", "job"]).stdout).contains(" WAIT "));
    first.signal(Signal::KILL);
    first.end();
    // Once the lease has ended, and no sooner.
    let begun = Instant::now();
    assert_eq!(status_of(&second.end()), 0);
    assert!(begun.elapsed() < Duration::from_secs(30));
}
