//! Real etcd processes.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// One member of a cluster.
pub(crate) struct Node {
    name: String,
    address: String,
    pub client: u16,
    peer: u16,
    dir: TempDir,
    arguments: Vec<String>,
    /// Words before a command that have it run in the network of this member.
    network: Vec<String>,
    child: Option<Child>,
}

/// One or more members.
pub(crate) struct Cluster {
    pub nodes: Vec<Node>,
    scheme: &'static str,
}

/// A port that was free a moment ago, and that this process gives to nobody else.
///
/// Not one that the kernel would choose: those are given to any connection that goes out (ip(7), `ip_local_port_range`),
/// so one could be taken before etcd listens there, or while a member that is to come back is down.
pub(crate) fn free_port() -> u16 {
    use std::sync::atomic::{AtomicU32, Ordering};
    const PORTS: std::ops::Range<u32> = 10_000..32_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Other test programs begin elsewhere.
        let step = std::process::id().wrapping_mul(7919).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(PORTS.start + step % (PORTS.end - PORTS.start)).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Cluster {
    pub(crate) fn one() -> Cluster {
        Cluster::start(1, "http", &[])
    }

    pub(crate) fn three() -> Cluster {
        Cluster::start(3, "http", &[])
    }

    pub(crate) fn start(count: usize, scheme: &'static str, extra: &[String]) -> Cluster {
        Cluster::start_at("127.0.0.1", &[], count, scheme, extra)
    }

    /// One member at that address, which a command can reach that begins with the words of `network`.
    pub(crate) fn in_network(address: &str, network: &[String]) -> Cluster {
        Cluster::start_at(address, network, 1, "http", &[])
    }

    fn start_at(address: &str, network: &[String], count: usize, scheme: &'static str, extra: &[String]) -> Cluster {
        let mut nodes: Vec<Node> = (0..count)
            .map(|index| Node {
                name: format!("n{index}"),
                address: address.to_owned(),
                client: free_port(),
                peer: free_port(),
                dir: tempfile::Builder::new().prefix("claim-etcd-").tempdir_in("/dev/shm").unwrap(),
                arguments: extra.to_vec(),
                network: network.to_vec(),
                child: None,
            })
            .collect();
        let members: Vec<_> =
            nodes.iter().map(|node| format!("{}=http://127.0.0.1:{}", node.name, node.peer)).collect();
        for node in &mut nodes {
            node.arguments.push(format!("--initial-cluster={}", members.join(",")));
            node.arguments.push(format!("--listen-client-urls={scheme}://{}", node.endpoint()));
            node.arguments.push(format!("--advertise-client-urls={scheme}://{}", node.endpoint()));
            node.start();
        }
        let cluster = Cluster { nodes, scheme };
        // One that does not start is named here, and not by whoever finds nobody there. Into a network of its own nobody
        // sees from here.
        if network.is_empty() {
            let listens = |node: &Node| TcpStream::connect(node.endpoint()).is_ok();
            super::until("etcd", || cluster.nodes.iter().all(listens));
        }
        cluster
    }

    pub(crate) fn endpoints(&self) -> String {
        let all: Vec<_> = self.nodes.iter().map(Node::endpoint).collect();
        all.join(",")
    }

    /// Runs etcdctl against all members.
    pub(crate) fn ctl(&self, arguments: &[&str]) -> Output {
        let endpoints: Vec<_> =
            self.nodes.iter().map(|node| format!("{}://{}", self.scheme, node.endpoint())).collect();
        let mut words = self.nodes[0].network.iter().map(String::as_str).chain(["etcdctl"]);
        Command::new(words.next().unwrap())
            .args(words)
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", endpoints.join(",")))
            .args(arguments)
            .output()
            .unwrap()
    }

    /// Runs etcdctl, which has to succeed.
    pub(crate) fn ctl_ok(&self, arguments: &[&str]) -> String {
        let output = self.ctl(arguments);
        assert!(output.status.success(), "etcdctl {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The index of the leader, once there is one that all living members agree on.
    pub(crate) fn leader(&self) -> usize {
        let mut found = None;
        super::until("a leader", || {
            let status = self.ctl(&["endpoint", "status", "-w", "fields"]);
            let text = String::from_utf8_lossy(&status.stdout).into_owned();
            let field = |block: &str, name: &str| {
                block.lines().find_map(|line| line.strip_prefix(&format!("\"{name}\" : "))).map(str::to_owned)
            };
            found = text.split("\n\n").find_map(|block| {
                let (member, leader) = (field(block, "MemberID")?, field(block, "Leader")?);
                if member != leader {
                    return None;
                }
                let endpoint = field(block, "Endpoint")?;
                self.nodes.iter().position(|node| endpoint.contains(&format!(":{}", node.client)))
            });
            found.is_some()
        });
        found.unwrap()
    }

    /// The keys under which contenders for anything stand.
    pub(crate) fn contenders(&self) -> Vec<String> {
        let listed = self.ctl_ok(&["get", "--prefix", "/claim/v1/sema/", "--keys-only"]);
        listed.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// The current revision of the store.
    pub(crate) fn revision(&self) -> u64 {
        let text = self.ctl_ok(&["get", "nothing", "-w", "fields"]);
        let line = text.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap();
        line.parse().unwrap()
    }
}

impl Node {
    pub(crate) fn start(&mut self) {
        let log = File::options().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        // With the death of the test goes its etcd.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .args(&self.network)
            .arg("etcd")
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .arg(format!("--name={}", self.name))
            .arg(format!("--data-dir={}", self.dir.path().join("data").display()))
            .arg(format!("--listen-peer-urls=http://127.0.0.1:{}", self.peer))
            .arg(format!("--initial-advertise-peer-urls=http://127.0.0.1:{}", self.peer))
            .args(["--logger=zap", "--log-level=warn"])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("{}:{}", self.address, self.client)
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().unwrap();
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            let last: Vec<_> = log.lines().rev().take(10).collect();
            eprintln!("{} said last:\n{}", self.name, last.join("\n"));
        }
    }
}
