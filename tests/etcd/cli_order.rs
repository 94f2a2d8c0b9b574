//! `claim --etcd`: classes, bounds and events among the contenders of one host, of which one waits in etcd.

use rustix::process::Signal;

use crate::support::etcd::Cluster;
use crate::support::host::*;
use crate::support::until;

/// A cluster in which another host holds the claim.
struct Held {
    cluster: Cluster,
    here: Host,
    holder: Running,
    _there: Host,
}

impl Held {
    fn new() -> Held {
        let cluster = Cluster::one();
        let there = Host::new("far", &cluster.endpoints());
        let begun = there.file("begun");
        let holder = there.start(&["job", "-c", &format!("echo x >{}; exec sleep 600", begun.display())]);
        until_written(&begun);
        Held { here: Host::new("here", &cluster.endpoints()), cluster, holder, _there: there }
    }

    fn in_etcd(&self) -> usize {
        let listed = self.cluster.ctl_ok(&["get", "--prefix", "/claim/v1/sema/", "--keys-only"]);
        listed.lines().filter(|line| !line.is_empty()).count()
    }

    /// What each waiter shown is called.
    fn waiting(&self) -> Vec<String> {
        let who = text(&self.here.run(&["--who", "job"]).stdout);
        let waiters = who.lines().filter(|line| line.contains(" WAIT "));
        waiters.filter_map(|line| line.rsplit_once("cmd=")).map(|(_, label)| label.to_owned()).collect()
    }

    /// A waiter that says so when it runs, once it is seen to wait.
    fn waiter(&self, label: &str, options: &[&str]) -> Running {
        let line = format!("echo {label} >>{}", self.here.file("order").display());
        let mut arguments = vec!["--label", label];
        arguments.extend(options);
        arguments.extend(["job", "-c", &line]);
        let waiter = self.here.start(&arguments);
        until(&format!("{label} waiting"), || self.waiting().iter().any(|it| it == label));
        waiter
    }

    fn order(&self) -> Vec<String> {
        let order = std::fs::read_to_string(self.here.file("order")).unwrap();
        order.lines().map(str::to_owned).collect()
    }

    fn let_go(&mut self) {
        self.holder.signal(Signal::TERM);
        self.holder.end();
    }
}

#[test]
fn a_higher_class_goes_first_also_before_the_one_that_waits_in_etcd() {
    let mut held = Held::new();
    let mut waiters = vec![
        held.waiter("low-1", &["--class", "low"]),
        held.waiter("low-2", &["--class", "low"]),
        held.waiter("high", &["--class", "high"]),
    ];
    // While one of them makes way for another, there may be none of this host's; there are never two.
    until("the high one in etcd", || {
        let in_etcd = held.in_etcd();
        assert!(in_etcd <= 2, "{in_etcd}");
        in_etcd == 2 && held.waiting() == ["high", "low-1", "low-2"]
    });
    held.let_go();
    for waiter in &mut waiters {
        assert_eq!(status_of(&waiter.end()), 0);
    }
    assert_eq!(held.order(), ["high", "low-1", "low-2"]);
}

#[test]
fn the_one_that_waits_in_etcd_counts_against_the_bound() {
    let mut held = Held::new();
    let mut first = held.waiter("first", &["--class", "low", "--queue-size", "1"]);
    let refused = held.here.run(&["--class", "low", "--queue-size", "1", "job", "true"]);
    assert_eq!(status_of(&refused), 75);
    assert!(text(&refused.stderr).contains("the queue is full"), "{refused:?}");
    assert!(text(&refused.stderr).contains("retry after"), "{refused:?}");
    assert!(text(&refused.stderr).contains(" on far ("), "the holder is named: {refused:?}");
    let mut second = held.waiter("second", &["--class", "high", "--queue-size", "1"]);
    let displaced = first.end();
    assert_eq!(status_of(&displaced), 75);
    assert!(text(&displaced.stderr).contains("displaced"), "{displaced:?}");
    until("the second in etcd", || held.in_etcd() == 2);
    let never = held.here.run(&["--queue-size", "0", "job", "true"]);
    assert_eq!(status_of(&never), 75);
    held.let_go();
    assert_eq!(status_of(&second.end()), 0);
}

#[test]
fn never_to_wait_is_never_to_wait_in_etcd() {
    let held = Held::new();
    let refused = held.here.run(&["--queue-size", "0", "job", "true"]);
    assert_eq!(status_of(&refused), 75);
    assert!(text(&refused.stderr).contains("the queue is full"), "{refused:?}");
    assert_eq!(held.in_etcd(), 1);
}

#[test]
fn events_tell_of_the_claim_and_not_of_the_slot_here() {
    let mut held = Held::new();
    let file = held.here.file("events");
    let events = file.to_str().unwrap();
    let refused = held.here.run(&["-n", "--events", events, "job", "true"]);
    assert_eq!(status_of(&refused), 75);
    let timed_out = held.here.run(&["-w", "0.3", "--events", events, "job", "true"]);
    assert_eq!(status_of(&timed_out), 75);
    let mut waiter = held.waiter("waiter", &["--events", events]);
    held.let_go();
    assert_eq!(status_of(&waiter.end()), 0);
    let lines = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<_> = lines
        .iter()
        .map(|line| (line["event"].as_str().unwrap(), line["held"].as_u64().unwrap(), line["queued"].as_u64().unwrap()))
        .collect();
    assert_eq!(
        told,
        [
            ("rejected", 0, 0),
            ("queued", 0, 1),
            ("abandoned", 0, 0),
            ("queued", 0, 1),
            ("acquired", 1, 0),
            ("released", 0, 0)
        ]
    );
    assert!(lines[0]["retry_after"].as_u64().unwrap() >= 1);
    assert_eq!(lines[4]["fence"], lines[5]["fence"]);
    assert!(lines[4]["fence"].as_u64().unwrap() < 1000, "etcd's fence: {}", lines[4]);
}
