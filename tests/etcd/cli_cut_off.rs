//! `claim --etcd` on hosts that are network namespaces, of which one is cut off without anybody being told.

use crate::suite::root_with;
use crate::support::etcd::Cluster;
use crate::support::host::*;
use crate::support::net::{Cut, Network, TOOLS};
use crate::support::ticks::{ticks_with_daemon, times};
use crate::support::until;

#[test]
fn a_host_that_is_cut_off_never_overlaps_with_the_next() {
    if !root_with(TOOLS) {
        return;
    }
    let network = Network::new(3);
    let cluster = Cluster::in_network(&network.address(0), &network.enter(0));
    until("etcd", || cluster.ctl(&["endpoint", "health"]).status.success());
    let host = |name, at| Host::new(name, &cluster.endpoints()).in_network(network.enter(at));
    let (cut_off, other) = (host("node1", 1), host("node2", 2));
    let brisk = ["--ttl", "4s", "--kill-after", "0.5", "job", "-c"];
    for how in [Cut::Unplugged, Cut::Dropped, Cut::Down] {
        let file = |host: &Host, name: &str| host.file(&format!("{name}-{how:?}"));
        let (command, daemon) = (file(&cut_off, "command"), file(&cut_off, "daemon"));
        let line = ticks_with_daemon(&command, &daemon);
        let mut run = cut_off.start(&[&brisk[..], &[&line]].concat());
        until("ticks", || !times(&command).is_empty() && !times(&daemon).is_empty());
        let next = file(&other, "next");
        let line = format!("cat /proc/uptime >{}; exit 3", next.display());
        let mut waiter = other.start(&[&brisk[..], &[&line]].concat());
        until("a waiter", || cluster.contenders().len() == 2);
        network.cut(1, how);
        let served = waiter.end();
        assert_eq!(status_of(&served), 3, "{how:?}: {served:?}");
        let lost = run.end();
        assert_eq!(status_of(&lost), 70, "{how:?}: {lost:?}");
        run.until_alone(&[]);
        let begun = times(&next)[0];
        for file in [&command, &daemon] {
            let gap = begun - times(file).last().unwrap();
            assert!(gap > 0.0, "{how:?}: an overlap of {} s, {}", -gap, file.display());
            println!("{how:?}: {gap:.2} s from the last sign of life to the next holder, {}", file.display());
        }
        // Not for want of a network: it has what it had, once the cable is back.
        network.mend(1, how);
        let again = cut_off.run(&["--dial-timeout", "30s", "job", "true"]);
        assert_eq!(status_of(&again), 0, "{how:?}: {again:?}");
    }
}
