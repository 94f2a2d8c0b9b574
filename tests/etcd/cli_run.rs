//! `claim --etcd`: what a run is like that nothing goes wrong with.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::etcd::{Cluster, free_port};
use crate::support::host::*;
use crate::support::until;

/// A COMMAND that says when it runs, and runs until it is told otherwise.
fn stays(file: &std::path::Path) -> String {
    format!("echo $CLAIM_FENCE $CLAIM_SLOT >{}; exec sleep 600", file.display())
}

fn leases(cluster: &Cluster) -> usize {
    cluster.ctl_ok(&["lease", "list"]).lines().count() - 1
}

fn keys(cluster: &Cluster) -> Vec<String> {
    let listed = cluster.ctl_ok(&["get", "--prefix", "/claim/v1/", "--keys-only"]);
    listed.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn the_status_is_commands_and_nothing_is_left() {
    let cluster = Cluster::one();
    let host = Host::new("node1", &cluster.endpoints());
    for (line, status) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)] {
        assert_eq!(status_of(&host.run(&["job", "-c", line])), status, "{line}");
    }
    assert_eq!(status_of(&host.run(&["job", "/no/such/program"])), 127);
    assert_eq!(status_of(&host.run(&["job", "/etc/passwd"])), 126);
    assert_eq!((keys(&cluster).len(), leases(&cluster)), (0, 0));
}

#[test]
fn command_is_told_what_it_holds() {
    let cluster = Cluster::one();
    let host = Host::new("node1", &cluster.endpoints());
    let output = host.run(&["-m", "2", "a job", "--", "env"]);
    let env = text(&output.stdout);
    let value = |name: &str| env.lines().find_map(|line| line.strip_prefix(&format!("{name}="))).map(str::to_owned);
    assert_eq!(value("CLAIM_NAME").as_deref(), Some("a job"));
    assert_eq!(value("CLAIM_MAX").as_deref(), Some("2"));
    assert_eq!(value("CLAIM_SLOT").as_deref(), Some("0"));
    assert_eq!(value("CLAIM_BACKEND").as_deref(), Some("etcd"));
    assert_eq!(value("CLAIM_DIR").as_deref(), host.claims().to_str());
    assert_eq!(value("CLAIM_LEASE").unwrap().len(), 16);
    let fence: u64 = value("CLAIM_FENCE").unwrap().parse().unwrap();
    let again = host.run(&["-m", "2", "a job", "-c", "echo $CLAIM_FENCE; readlink /proc/$$/fd/*"]);
    let again = text(&again.stdout);
    assert!(again.lines().next().unwrap().parse::<u64>().unwrap() > fence);
    for ours in ["anon_inode", "socket", "/claims"] {
        let inherited = again.lines().filter(|line| line.contains(ours)).count();
        // In a container, the record's descriptor is handed down.
        assert!(inherited <= usize::from(ours == "/claims"), "{again}");
    }
}

#[test]
fn what_makes_no_sense_is_64() {
    let host = Host::new("node1", "127.0.0.1:1");
    for arguments in [
        &["--exec", "job", "true"][..],
        &["--acquire", "job", "--pid", "1"],
        &["--release", "job", "--pid", "1"],
        &["--ttl", "500ms", "job", "true"],
        &["--ttl", "4s", "--kill-after", "2.1", "job", "true"],
        &["--user", "me", "job", "true"],
        &["--cert", "/dev/null", "job", "true"],
        &["--etcd-prefix", "", "job", "true"],
    ] {
        assert_eq!(status_of(&host.run(arguments)), 64, "{arguments:?}");
    }
    let bad = host.bare(&["--etcd=127.0.0.1:port", "job", "true"]).output().unwrap();
    assert_eq!(status_of(&bad), 64, "{bad:?}");
    let unreadable = host.run(&["--cacert", "/no/such/file", "job", "true"]);
    assert_eq!(status_of(&unreadable), 71, "{unreadable:?}");
}

#[test]
fn only_the_switch_switches() {
    let host = Host::new("node1", "");
    let dir = host.claims();
    let dir = dir.to_str().unwrap();
    let local =
        host.bare(&["--dir", dir, "--endpoints", "127.0.0.1:1", "job", "-c", "echo $CLAIM_BACKEND"]).output().unwrap();
    assert_eq!(text(&local.stdout), "local\n");
    assert!(text(&local.stderr).contains("--endpoints changes nothing"), "{local:?}");
    let cluster = Cluster::one();
    let mut by_env = host.bare(&["--dir", dir, "job", "-c", "echo $CLAIM_BACKEND"]);
    assert_eq!(text(&by_env.env("CLAIM_ETCD", cluster.endpoints()).output().unwrap().stdout), "etcd\n");
    let mut named = host.bare(&["--dir", dir, "--etcd", "job", "-c", "echo $CLAIM_BACKEND"]);
    assert_eq!(text(&named.env("ETCDCTL_ENDPOINTS", cluster.endpoints()).output().unwrap().stdout), "etcd\n");
}

#[test]
fn no_session_within_the_dial_timeout_is_69() {
    let host = Host::new("node1", &format!("127.0.0.1:{}", free_port()));
    let begun = Instant::now();
    let output = host.run(&["--dial-timeout", "1s", "-w", "600", "-E", "9", "job", "true"]);
    assert_eq!(status_of(&output), 69, "{output:?}");
    let took = begun.elapsed();
    assert!(took > Duration::from_millis(500) && took < LONG, "{took:?}");
    assert!(text(&output.stderr).starts_with("claim: job: "), "{output:?}");
    assert_eq!(status_of(&host.run(&["--dial-timeout", "200ms", "--available", "job"])), 69);
    assert_eq!(status_of(&host.run(&["--dial-timeout", "200ms", "--who"])), 69);
}

#[test]
fn another_host_is_told_who_has_it_and_waits_its_turn() {
    let cluster = Cluster::one();
    let (one, two) = (Host::new("node1", &cluster.endpoints()), Host::new("node2", &cluster.endpoints()));
    let begun = one.file("begun");
    let mut first = one.start(&["job", "-c", &stays(&begun)]);
    until_written(&begun);
    let refused = two.run(&["-n", "job", "true"]);
    assert_eq!(status_of(&refused), 75);
    let said = text(&refused.stderr);
    assert!(said.contains("node1") && said.contains(&format!("pid {}", first.pid)), "{said}");
    let timed_out = two.run(&["-w", "0.5", "-E", "3", "job", "true"]);
    assert_eq!(status_of(&timed_out), 3, "{timed_out:?}");
    assert!(text(&timed_out.stderr).contains("timed out"), "{timed_out:?}");
    assert_eq!(keys(&cluster).len(), 1);
    let mut waiter = two.start(&["job", "true"]);
    until("a waiter", || keys(&cluster).len() == 2);
    first.signal(Signal::TERM);
    assert_eq!(status_of(&first.end()), 143);
    assert_eq!(status_of(&waiter.end()), 0);
}

#[test]
fn a_hundred_waiters_on_a_host_cost_the_cluster_one_session() {
    let cluster = Cluster::one();
    let (one, two) = (Host::new("node1", &cluster.endpoints()), Host::new("node2", &cluster.endpoints()));
    let begun = one.file("begun");
    let mut first = one.start(&["job", "-c", &stays(&begun)]);
    until_written(&begun);
    // A hundred that start at once beside other tests take longer than usual to reach etcd.
    let order = two.file("order");
    let line = format!("echo x >>{}", order.display());
    let mut waiters: Vec<Running> =
        (0..100).map(|_| two.start(&["--dial-timeout", "60s", "job", "-c", &line])).collect();
    let shown = || text(&two.run(&["--who", "job"]).stdout).lines().filter(|line| line.contains(" WAIT ")).count();
    until("all of them waiting", || shown() == 100);
    assert_eq!((keys(&cluster).len(), leases(&cluster)), (2, 2));
    first.signal(Signal::TERM);
    first.end();
    for waiter in &mut waiters {
        assert_eq!(status_of(&waiter.end()), 0);
    }
    assert_eq!(std::fs::read_to_string(&order).unwrap().lines().count(), 100);
    assert_eq!((keys(&cluster).len(), leases(&cluster)), (0, 0));
}

#[test]
fn the_second_of_two_holders_leaves_first() {
    let cluster = Cluster::one();
    let host = Host::new("node1", &cluster.endpoints());
    let files: Vec<_> = (0..3).map(|n| host.file(&format!("begun{n}"))).collect();
    let mut runs = Vec::new();
    for file in &files[..2] {
        runs.push(host.start(&["-m", "2", "job", "-c", &stays(file)]));
        until_written(file);
    }
    let other = Host::new("node2", &cluster.endpoints());
    let mut third = other.start(&["-m", "2", "job", "-c", &stays(&files[2])]);
    until("a third", || keys(&cluster).iter().filter(|key| key.contains("/sema/")).count() == 3);
    runs[1].signal(Signal::TERM);
    runs[1].end();
    let (second, third_is) = (until_written(&files[1]), until_written(&files[2]));
    assert_eq!(second.split(' ').nth(1), third_is.split(' ').nth(1), "the slot that became free");
    third.signal(Signal::TERM);
    runs[0].signal(Signal::TERM);
    assert_eq!(status_of(&third.end()), 143);
}

#[test]
fn another_capacity_of_the_name_is_warned_of() {
    let cluster = Cluster::one();
    let (one, two) = (Host::new("node1", &cluster.endpoints()), Host::new("node2", &cluster.endpoints()));
    let begun = one.file("begun");
    let first = one.start(&["-m", "2", "job", "-c", &stays(&begun)]);
    until_written(&begun);
    let other = two.run(&["-m", "3", "job", "true"]);
    assert_eq!(status_of(&other), 0);
    assert!(text(&other.stderr).contains("capacity of 2"), "{other:?}");
    assert_eq!(text(&two.run(&["-m", "2", "job", "true"]).stderr), "");
    drop(first);
}

#[test]
fn a_host_has_one_slot_of_a_spread_claim() {
    let cluster = Cluster::one();
    let (one, two) = (Host::new("node1", &cluster.endpoints()), Host::new("node2", &cluster.endpoints()));
    let (here, there) = (one.file("begun"), two.file("begun"));
    let _first = one.start(&["--spread", "-m", "2", "job", "-c", &stays(&here)]);
    until_written(&here);
    assert_eq!(status_of(&one.run(&["--spread", "-m", "2", "-n", "job", "true"])), 75);
    assert_eq!(status_of(&one.run(&["--spread", "-m", "2", "--available", "job"])), 1);
    assert_eq!(status_of(&two.run(&["--spread", "-m", "2", "--available", "job"])), 0);
    let _second = two.start(&["--spread", "-m", "2", "job", "-c", &stays(&there)]);
    until_written(&there);
    assert!(keys(&cluster).contains(&"/claim/v1/sema/job/2/node2".to_owned()));

    // One without --spread is on this host just as well.
    let begun = one.file("plain");
    let _plain = one.start(&["-m", "3", "plain", "-c", &stays(&begun)]);
    until_written(&begun);
    for (host, status, available) in [(&one, 75, 1), (&two, 0, 0)] {
        assert_eq!(status_of(&host.run(&["--spread", "-m", "3", "-n", "plain", "true"])), status);
        assert_eq!(status_of(&host.run(&["--spread", "-m", "3", "--available", "plain"])), available);
    }
}

/// The two do not meet on their host, where a claim goes by how its cluster is named.
#[test]
fn a_claim_inside_itself_is_hopeless_however_its_cluster_is_named() {
    let cluster = Cluster::one();
    let host = Host::new("node1", &cluster.endpoints());
    let claim = env!("CARGO_BIN_EXE_claim");
    let other = cluster.endpoints().replace("127.0.0.1", "localhost");
    let inner = |options: &str, outer: &[&str]| {
        let line = format!("\"{claim}\" --etcd={other} {options} job true 2>&1; echo $?");
        let output = host.run(&[outer, &["job", "-c", &line]].concat());
        text(&output.stdout)
    };
    for options in ["", "-n", "-w 1000", "--queue-size 0"] {
        let said = inner(options, &[]);
        assert!(said.contains("could never be had: job is held by process ") && said.ends_with("\n78\n"), "{said}");
    }
    assert_eq!(inner("-n -m 2", &["-m", "2"]), "0\n", "one of two slots is free");
    let said = inner("-m 2 --spread", &["-m", "2", "--spread"]);
    assert!(said.ends_with("\n78\n"), "the only slot of this host: {said}");
    assert_eq!(leases(&cluster), 0);
}

#[test]
fn a_slot_stays_taken_for_at_least_so_long() {
    let cluster = Cluster::one();
    let (one, two) = (Host::new("node1", &cluster.endpoints()), Host::new("node2", &cluster.endpoints()));
    let begun = Instant::now();
    assert_eq!(status_of(&one.run(&["--at-least", "4s", "job", "true"])), 0);
    let refused = two.run(&["-n", "job", "true"]);
    assert_eq!(status_of(&refused), 75);
    // Nobody runs it any more: the message does not say so either.
    assert!(text(&refused.stderr).contains(": taken until "), "{}", text(&refused.stderr));
    assert_eq!(status_of(&one.run(&["-n", "job", "true"])), 75);
    let who = text(&two.run(&["--who", "job"]).stdout);
    assert!(who.contains(" HELD ") && who.contains(" until="), "{who}");
    assert_eq!(status_of(&two.run(&["job", "true"])), 0);
    assert!(begun.elapsed() >= Duration::from_secs(4));
}

#[test]
fn force_leaves_no_lease_of_a_slot_that_rests() {
    let cluster = Cluster::one();
    let host = Host::new("node1", &cluster.endpoints());
    for max in ["1", "2"] {
        assert_eq!(status_of(&host.run(&["--at-least", "1h", "-m", max, "job", "true"])), 0);
        assert_eq!(leases(&cluster), 1);
        assert_eq!(status_of(&host.run(&["--release", "--force", "-m", max, "job"])), 0);
        assert_eq!((leases(&cluster), keys(&cluster)), (0, vec![]));
    }
}

#[test]
fn a_command_that_has_not_run_keeps_nobody_from_running_it() {
    let cluster = Cluster::one();
    let (one, two) = (Host::new("node1", &cluster.endpoints()), Host::new("node2", &cluster.endpoints()));
    for command in ["/no/such/command", "/"] {
        let status = status_of(&one.run(&["--at-least", "1000", "job", command]));
        assert_eq!(status, if command == "/" { 126 } else { 127 });
        assert_eq!(leases(&cluster), 0);
        assert_eq!(status_of(&two.run(&["-n", "job", "true"])), 0);
    }
}

#[test]
fn signals_are_passed_on_once_and_end_a_waiter() {
    let cluster = Cluster::one();
    let host = Host::new("node1", &cluster.endpoints());
    let (begun, seen) = (host.file("begun"), host.file("seen"));
    let line = format!(
        "trap 'echo term >>{seen}' TERM; trap 'echo usr1 >>{seen}' USR1; trap 'exit 5' USR2; echo x >{begun}; \
         while :; do sleep 0.05; done",
        seen = seen.display(),
        begun = begun.display()
    );
    let mut run = host.start(&["job", "-c", &line]);
    until_written(&begun);
    run.signal(Signal::USR1);
    until("the first", || std::fs::read_to_string(&seen).unwrap_or_default() == "usr1\n");
    // What reaches the keeper alone, or everybody by another's hand, is not passed on a second time.
    send(run.keeper(), Signal::TERM);
    run.signal(Signal::TERM);
    until("the second", || std::fs::read_to_string(&seen).unwrap_or_default() == "usr1\nterm\n");
    let mut waiter = host.start(&["job", "true"]);
    let far = Host::new("node2", &cluster.endpoints());
    let mut far_waiter = far.start(&["job", "true"]);
    until("a waiter in etcd", || keys(&cluster).len() == 2);
    for waiter in [&mut waiter, &mut far_waiter] {
        waiter.signal(Signal::TERM);
        assert_eq!(status_of(&waiter.end()), 143);
        waiter.until_alone(&[]);
    }
    assert_eq!(keys(&cluster).len(), 1);
    run.signal(Signal::USR2);
    assert_eq!(status_of(&run.end()), 5);
    assert_eq!(std::fs::read_to_string(&seen).unwrap(), "usr1\nterm\n");
}
