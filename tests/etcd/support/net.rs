//! Hosts that are network namespaces, with cables to a switch: what is sent over a cable that is cut is dropped, and
//! nobody is told, which no proxy can do.
//!
//! All of it belongs to processes that die with the test, and has no name that another test could meet.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::until;

/// What is needed for it, as root.
pub(crate) const TOOLS: &[&str] = &["ip", "bridge", "nsenter", "unshare", "setpriv"];

/// A network namespace, which lasts as long as the process that has it.
struct Namespace(Child);

/// Hosts and what connects them.
pub(crate) struct Network {
    switch: Namespace,
    hosts: Vec<Namespace>,
}

/// How a host is cut off.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cut {
    /// The cable is pulled out of the switch: the host's side sees no carrier.
    Unplugged,
    /// The switch drops what comes and goes there: the host sees nothing.
    Dropped,
    /// The host's own interface is down: whatever it sends is refused on the spot.
    Down,
}

impl Namespace {
    fn new() -> Namespace {
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--net", "sleep", "3600"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let namespace = Namespace(child);
        let of = |path: String| std::fs::read_link(Path::new(&path)).ok();
        until("a network namespace", || {
            let its = of(format!("/proc/{}/ns/net", namespace.0.id()));
            its.is_some() && its != of("/proc/self/ns/net".to_owned())
        });
        namespace.ip(&["link", "set", "lo", "up"]);
        namespace
    }

    /// The words by which a command enters it.
    fn enter(&self) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--net=/proc/{}/ns/net", self.0.id())]
    }

    fn run(&self, words: &[&str]) {
        let enter = self.enter();
        let output = Command::new(&enter[0]).args(&enter[1..]).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
    }

    fn ip(&self, words: &[&str]) {
        self.run(&[&["ip"], words].concat());
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Network {
    pub(crate) fn new(hosts: usize) -> Network {
        let network = Network { switch: Namespace::new(), hosts: (0..hosts).map(|_| Namespace::new()).collect() };
        network.switch.ip(&["link", "add", "switch", "type", "bridge"]);
        network.switch.ip(&["link", "set", "switch", "up"]);
        for (index, host) in network.hosts.iter().enumerate() {
            let (port, pid) = (port(index), host.0.id().to_string());
            let peer = ["type", "veth", "peer", "name", "eth0", "netns", &pid];
            network.switch.ip(&[&["link", "add", &port], &peer[..]].concat());
            network.switch.ip(&["link", "set", &port, "master", "switch", "up"]);
            host.ip(&["address", "add", &format!("{}/24", network.address(index)), "dev", "eth0"]);
            host.ip(&["link", "set", "eth0", "up"]);
        }
        network
    }

    /// A network of its own: no other test's hosts are in it, nor the machine's.
    pub(crate) fn address(&self, host: usize) -> String {
        format!("10.77.0.{}", host + 1)
    }

    /// The words by which a command runs on that host.
    pub(crate) fn enter(&self, host: usize) -> Vec<String> {
        self.hosts[host].enter()
    }

    pub(crate) fn cut(&self, host: usize, how: Cut) {
        match how {
            Cut::Unplugged => self.switch.ip(&["link", "set", &port(host), "down"]),
            Cut::Dropped => self.switch.run(&["bridge", "link", "set", "dev", &port(host), "state", "0"]),
            Cut::Down => self.hosts[host].ip(&["link", "set", "eth0", "down"]),
        }
    }

    pub(crate) fn mend(&self, host: usize, how: Cut) {
        match how {
            Cut::Unplugged => self.switch.ip(&["link", "set", &port(host), "up"]),
            Cut::Dropped => self.switch.run(&["bridge", "link", "set", "dev", &port(host), "state", "3"]),
            Cut::Down => self.hosts[host].ip(&["link", "set", "eth0", "up"]),
        }
    }
}

fn port(host: usize) -> String {
    format!("port{host}")
}
