//! `claim --etcd` with three members, of which some are killed.

use std::path::Path;

use crate::support::etcd::Cluster;
use crate::support::host::*;
use crate::support::ticks::{now, ticks_with_daemon, times};
use crate::support::until;

/// The create revision of the one key there is.
fn created(cluster: &Cluster) -> u64 {
    let text = cluster.ctl_ok(&["get", "--prefix", "/claim/v1/sema/", "-w", "fields"]);
    let mut found = text.lines().filter_map(|line| line.strip_prefix("\"CreateRevision\" : "));
    let (one, other) = (found.next().unwrap(), found.next());
    assert_eq!(other, None, "one key: {text}");
    one.parse().unwrap()
}

fn last(file: &Path) -> f64 {
    *times(file).last().unwrap()
}

#[test]
fn the_death_of_the_leader_is_nothing_to_command() {
    /// Far more than it takes to find another leader, however busy the machine: that is not what is tested.
    const TTL: f64 = 20.0;
    let mut cluster = Cluster::three();
    let leader = cluster.leader();
    // The one that is asked first, and stays in use.
    let mut endpoints: Vec<_> = cluster.nodes.iter().map(|node| node.endpoint()).collect();
    endpoints.swap(0, leader);
    let host = Host::new("node1", &endpoints.join(","));
    let (alive, fence, go) = (host.file("alive"), host.file("fence"), host.file("go"));
    let line = format!(
        "echo $CLAIM_FENCE >{}; until [ -e {} ]; do cat /proc/uptime >>{}; sleep 0.05; done; exit 7",
        fence.display(),
        go.display(),
        alive.display()
    );
    let ttl = format!("{TTL}s");
    let mut run = host.start(&["-v", "--ttl", &ttl, "--kill-after", "1s", "job", "-c", &line]);
    until("ticks", || !times(&alive).is_empty());
    let fence: u64 = until_written(&fence).trim().parse().unwrap();
    assert_eq!(created(&cluster), fence);
    cluster.nodes[leader].kill();
    let killed = now();
    until("more than a TTL without that leader", || {
        assert!(!run.has_ended(), "{:?}", run.end());
        last(&alive) > killed + TTL + 1.0
    });
    // A key that had gone and come back would have been created anew.
    assert_eq!(created(&cluster), fence);
    std::fs::write(&go, "").unwrap();
    let ended = run.end();
    assert_eq!(status_of(&ended), 7, "{ended:?}");
    assert!(text(&ended.stderr).contains("released") && !text(&ended.stderr).contains("lost"), "{ended:?}");
    assert_eq!(cluster.contenders(), [""; 0]);
}

#[test]
fn without_a_quorum_nothing_runs_past_the_lease_and_waiters_go_on_when_it_is_back() {
    const TTL: f64 = 6.0;
    let mut cluster = Cluster::three();
    cluster.leader();
    let [one, two, three] = ["node1", "node2", "node3"].map(|name| Host::new(name, &cluster.endpoints()));
    let (command, daemon, first, second) =
        (one.file("command"), one.file("daemon"), one.file("fence"), two.file("fence"));
    let line = format!("echo $CLAIM_FENCE >{}; {}", first.display(), ticks_with_daemon(&command, &daemon));
    let ttl = format!("{TTL}s");
    let mut run = one.start(&["--ttl", &ttl, "--kill-after", "1s", "job", "-c", &line]);
    until("ticks", || !times(&command).is_empty() && !times(&daemon).is_empty());
    let line = format!("echo $CLAIM_FENCE >{}; exit 9", second.display());
    let mut patient = two.start(&["-v", "--ttl", "3s", "--kill-after", "0.5", "job", "-c", &line]);
    until("a waiter", || cluster.contenders().len() == 2);
    let mut limited = three.start(&["-v", "--ttl", "3s", "--kill-after", "0.5", "-w", "20", "job", "true"]);
    until("another waiter", || cluster.contenders().len() == 3);
    cluster.nodes[0].kill();
    cluster.nodes[1].kill();
    // No renewal that was answered was sent later than this.
    let last_renewal = now();
    let lost = run.end();
    assert_eq!(status_of(&lost), 70, "{lost:?}");
    assert_eq!(text(&lost.stderr).lines().count(), 1, "{lost:?}");
    run.until_alone(&[]);
    for file in [&command, &daemon] {
        assert!(last(file) < last_renewal + TTL, "{}: alive {} s after it", file.display(), last(file) - last_renewal);
    }
    let limited = limited.end();
    assert_eq!(status_of(&limited), 75, "{limited:?}");
    assert!(text(&limited.stderr).contains("lost the place in the queue"), "{limited:?}");
    assert!(!patient.has_ended() && !second.exists());
    cluster.nodes[0].start();
    cluster.nodes[1].start();
    let patient = patient.end();
    assert_eq!(status_of(&patient), 9, "{patient:?}");
    assert!(text(&patient.stderr).contains("lost the place in the queue"), "{patient:?}");
    let third = one.run(&["job", "-c", "echo $CLAIM_FENCE"]);
    assert_eq!(status_of(&third), 0, "{third:?}");
    let fences = [until_written(&first), until_written(&second), text(&third.stdout)];
    let fences = fences.map(|fence| fence.trim().parse::<u64>().unwrap());
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
}
