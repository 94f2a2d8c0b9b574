//! Hosts: a name of their own (a UTS namespace) and a claim directory of their own.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{HANG, until};

/// A host with a cluster to talk to.
pub(crate) struct Host {
    name: String,
    endpoints: String,
    pub dir: TempDir,
    /// Words before a command that have it run in this host's network.
    network: Vec<String>,
}

/// A `claim` that runs. Dropping it kills what is left.
pub(crate) struct Running {
    child: Option<Child>,
    pub pid: i32,
    mark: String,
}

impl Host {
    pub(crate) fn new(name: &str, endpoints: &str) -> Host {
        let dir = tempfile::Builder::new().prefix("claim-host-").tempdir_in("/dev/shm").unwrap();
        Host { name: name.to_owned(), endpoints: endpoints.to_owned(), dir, network: Vec::new() }
    }

    /// The same in a network namespace that a command enters by these words.
    pub(crate) fn in_network(self, network: Vec<String>) -> Host {
        Host { network, ..self }
    }

    /// A file beside the claim directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn claims(&self) -> PathBuf {
        self.file("claims")
    }

    /// `claim --etcd=… --dir … ARGUMENTS` on this host. The process started is `claim` itself in the end.
    pub(crate) fn claim(&self, arguments: &[&str]) -> Command {
        let etcd = format!("--etcd={}", self.endpoints);
        let dir = self.claims();
        let mut words = vec![etcd.as_str(), "--dir", dir.to_str().unwrap()];
        words.extend(arguments);
        self.bare(&words)
    }

    /// The same without options.
    pub(crate) fn bare(&self, arguments: &[&str]) -> Command {
        // An ordinary user may name a host that is in a user namespace of his own.
        let user = ["--user", "--map-root-user"].into_iter().filter(|_| !rustix::process::geteuid().is_root());
        let mut words = self.network.iter().map(String::as_str).chain(["unshare"]).chain(user);
        let mut command = Command::new(words.next().unwrap());
        command
            .args(words)
            .args(["--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\"", &self.name])
            .arg(env!("CARGO_BIN_EXE_claim"))
            .args(arguments)
            .stdin(Stdio::null())
            .process_group(0);
        let is_ours = |name: &str| ["CLAIM_", "ETCDCTL_"].iter().any(|prefix| name.starts_with(prefix));
        for (variable, _) in std::env::vars().filter(|(variable, _)| is_ours(variable)) {
            command.env_remove(variable);
        }
        command
    }

    /// Runs to the end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.start(arguments).end()
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        Running::of(self.claim(arguments))
    }
}

impl Running {
    pub(crate) fn of(mut command: Command) -> Running {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::printing(command)
    }

    /// The same, and what it prints goes where the command says.
    pub(crate) fn printing(mut command: Command) -> Running {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("CLAIM_TEST_MARK={}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (name, value) = mark.split_once('=').unwrap();
        let child = command.env(name, value).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        Running { child: Some(child), pid, mark }
    }

    /// Sends a signal to `claim`.
    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid, signal);
    }

    /// Waits for its end, and for that of everybody who has what it prints to. A hang fails.
    pub(crate) fn end(&mut self) -> Output {
        let child = self.child.take().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
        let ended = receiver.recv_timeout(2 * HANG);
        ended.unwrap_or_else(|_| panic!("not in {:?}: the end of {:?}", 2 * HANG, self.family()))
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// The keeper of its: the one child.
    pub(crate) fn keeper(&self) -> i32 {
        let children = children(self.pid);
        assert_eq!(children.len(), 1, "one keeper");
        children[0]
    }

    /// Every living process that was started by it, in whatever session, itself and its keeper included.
    pub(crate) fn family(&self) -> Vec<i32> {
        processes().into_iter().filter(|pid| self.is_of(*pid)).collect()
    }

    fn is_of(&self, pid: i32) -> bool {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|line| line == self.mark.as_bytes())
    }

    /// Waits until nobody is left but those. How long that took.
    pub(crate) fn until_alone(&self, but: &[i32]) -> Duration {
        let begun = Instant::now();
        until("everybody's end", || self.family().iter().all(|pid| but.contains(pid)));
        begun.elapsed()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for pid in self.family() {
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

pub(crate) fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

pub(crate) fn processes() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The living children of a process.
pub(crate) fn children(of: i32) -> Vec<i32> {
    let parent = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
        let state = fields.next()?;
        let parent: i32 = fields.next()?.parse().ok()?;
        (state != "Z").then_some(parent)
    };
    processes().into_iter().filter(|pid| parent(pid) == Some(of)).collect()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits for a file with something in it.
pub(crate) fn until_written(path: &Path) -> String {
    until(&format!("{}", path.display()), || std::fs::read(path).is_ok_and(|bytes| bytes.ends_with(b"\n")));
    std::fs::read_to_string(path).unwrap()
}

/// The status as a shell sees it.
pub(crate) fn status_of(output: &Output) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0))
}

/// So long a hang takes.
pub(crate) const LONG: Duration = HANG;
