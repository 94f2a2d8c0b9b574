//! What the suites share: a place of its own for each test, a way to start `claim` and wait for it, a COMMAND that
//! holds until it is let go, and waiting for conditions. Nothing here knows how `claim` works inside.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod pty;
pub mod recorder;
pub mod strace;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, kill_process};
use serde_json::Value;
use tempfile::TempDir;

pub use rustix::process::Signal;

/// The program under test.
pub const CLAIM: &str = env!("CARGO_BIN_EXE_claim");

/// How long anything may take before a test gives up: far beyond what a busy machine with two cores needs.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Every process of a place has this in its environment, so that it can be found and ended by pid.
const MARK: &str = "CLAIM_TEST_PLACE";

/// A directory of its own (on tmpfs where there is one) with the claim directory `dir` in it. Dropping it ends every
/// process that was started from it.
pub struct Place {
    tmp: TempDir,
    counter: AtomicUsize,
}

impl Place {
    pub fn new() -> Self {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
        Self::under(&base)
    }

    pub fn under(base: &Path) -> Self {
        let tmp = tempfile::Builder::new().prefix("claim-test.").tempdir_in(base).expect("a temporary directory");
        Self { tmp, counter: AtomicUsize::new(0) }
    }

    /// One that other users can enter, with a copy of the program that they can run in it (`bin/claim`).
    pub fn public() -> Self {
        let place = Self::new();
        chmod(place.root(), 0o755);
        fs::create_dir(place.path("bin")).unwrap();
        // By a process of its own: a descriptor that this one has open for writing would be inherited by what other tests
        // start this moment, and a program that somebody has open for writing cannot be executed (ETXTBSY).
        let copied = Command::new("cp").arg(CLAIM).arg(place.path("bin/claim")).status().unwrap();
        assert!(copied.success());
        place
    }

    pub fn root(&self) -> &Path {
        self.tmp.path()
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root().join(name)
    }

    pub fn dir(&self) -> PathBuf {
        self.path("dir")
    }

    fn fresh(&self, what: &str) -> PathBuf {
        self.path(format!("{what}.{}", self.counter.fetch_add(1, Ordering::Relaxed)))
    }

    /// A program in an environment without anything of `claim`'s, with stdin from /dev/null.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (key, _) in std::env::vars_os().filter(|(key, _)| key.as_bytes().starts_with(b"CLAIM_")) {
            command.env_remove(key);
        }
        command.env(MARK, self.root()).env("LC_ALL", "C").env_remove("ETCDCTL_ENDPOINTS").stdin(Stdio::null());
        command
    }

    /// `claim --dir DIR ARGS...`
    pub fn claim<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.command(CLAIM);
        command.arg("--dir").arg(self.dir()).args(args);
        command
    }

    /// A shell script; `$claim` is the program, `$dir` the claim directory, `$root` the place.
    pub fn sh(&self, script: &str) -> Command {
        let mut command = self.command("/bin/sh");
        command.args(["-c", script]).current_dir(self.root());
        command.env("claim", CLAIM).env("dir", self.dir()).env("root", self.root());
        command
    }

    pub fn start(&self, mut command: Command) -> Running {
        let (stdout, stderr) = (self.fresh("stdout"), self.fresh("stderr"));
        command.stdout(File::create(&stdout).unwrap()).stderr(File::create(&stderr).unwrap());
        let line = format!("{command:?}");
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {line}: {error}"));
        Running { child, stdout, stderr, line }
    }

    pub fn run(&self, command: Command) -> Outcome {
        self.start(command).wait()
    }

    /// The exit status of `claim --dir DIR ARGS...`, as a shell sees it.
    pub fn status<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> i32 {
        self.run(self.claim(args)).code()
    }

    /// `claim -n ARGS... true`: 0 if it was had.
    pub fn try_once(&self, args: &[&str]) -> i32 {
        self.status(["-n"].iter().chain(args).chain(&["--", "true"]))
    }

    /// Runs `claim ARGS... -- COMMAND` where COMMAND ends when it is let go; returns at once.
    pub fn queue(&self, args: &[&str]) -> Hold {
        let ready = self.fresh("ready");
        let gate = ready.with_extension(format!("{}.gate", ready.extension().unwrap().to_str().unwrap()));
        mkfifo(&gate);
        let mut command = self.claim(args);
        command.args(["--", "sh", "-c", r#"echo $$ $CLAIM_FENCE $CLAIM_SLOT > "$0"; read _ < "$0.gate""#]).arg(&ready);
        let run = self.start(command);
        let gate = File::options().read(true).write(true).open(gate).unwrap();
        Hold { run, ready, gate }
    }

    /// The same, and waits until COMMAND runs.
    pub fn hold(&self, args: &[&str]) -> Hold {
        let hold = self.queue(args);
        hold.started();
        hold
    }

    /// The same, and waits until it is one more waiter of `name`.
    pub fn wait_in_line(&self, name: &str, args: &[&str]) -> Hold {
        let before = self.waiters(name).len();
        let hold = self.queue(args);
        until("one more waiter", || self.waiters(name).len() > before);
        hold
    }

    /// A claim whose holder and COMMAND have been killed: what is left behind by a crash.
    pub fn crash(&self, args: &[&str]) {
        let mut hold = self.hold(args);
        hold.kill_claim();
        hold.kill_command();
    }

    /// `--who NAME --json`, parsed.
    pub fn who(&self, name: &str) -> Vec<Value> {
        let outcome = self.run(self.claim(["--who", name, "--json"]));
        assert!(matches!(outcome.code(), 0 | 1), "--who: {outcome:?}");
        outcome.stdout.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
    }

    pub fn holders(&self, name: &str) -> Vec<Value> {
        self.who(name).into_iter().filter(|entry| entry["state"] == "held").collect()
    }

    pub fn waiters(&self, name: &str) -> Vec<Value> {
        self.who(name).into_iter().filter(|entry| entry["state"] == "waiting").collect()
    }

    /// What is in the claim directory beyond what any use of it leaves there.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        let other = self.fresh("other");
        let mut command = self.command(CLAIM);
        command.arg("--dir").arg(&other).args(["baseline", "true"]);
        self.run(command).expect(0);
        let usual = listing(&other);
        assert!(!usual.iter().any(|path| path.to_string_lossy().contains("baseline")), "left by one run: {usual:?}");
        listing(&self.dir()).into_iter().filter(|path| !usual.contains(path)).collect()
    }

    #[track_caller]
    pub fn assert_clean(&self) {
        assert_eq!(self.leftovers(), Vec::<PathBuf>::new(), "left in the claim directory");
    }

    /// All living processes that were started from here.
    pub fn processes(&self) -> Vec<i32> {
        let mark = [MARK.as_bytes(), b"=", self.root().as_os_str().as_bytes(), b"\0"].concat();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.windows(mark.len()).any(|window| window == mark)
        })
        .collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Twice: a process may have been forking while the first list was read.
        for _ in 0..2 {
            for pid in self.processes() {
                kill(pid, Signal::KILL);
            }
        }
    }
}

/// A process that was started, its output going to files so that whoever outlives it cannot keep us waiting.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    line: String,
}

impl Running {
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    pub fn stdout(&self) -> String {
        text(&self.stdout)
    }

    pub fn stderr(&self) -> String {
        text(&self.stderr)
    }

    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    #[track_caller]
    pub fn wait(mut self) -> Outcome {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return Outcome { status, stdout: self.stdout(), stderr: self.stderr() };
            }
            assert!(start.elapsed() < DEADLINE, "did not end: {}\nstderr: {}", self.line, self.stderr());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// The status as a shell sees it: a signal n is 128+n.
    pub fn code(&self) -> i32 {
        shell_status(self.status)
    }

    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "exit status; stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }
}

pub fn shell_status(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}

/// A `claim` whose COMMAND, once started, ends when it is let go.
#[derive(Debug)]
pub struct Hold {
    pub run: Running,
    ready: PathBuf,
    gate: File,
}

/// What COMMAND told when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    pub pid: i32,
    pub fence: u64,
    pub slot: u32,
}

impl Hold {
    pub fn has_started(&self) -> Option<Started> {
        let text = text(&self.ready);
        let mut words = text.strip_suffix('\n')?.split(' ');
        let mut word = || words.next().expect("pid, fence and slot");
        Some(Started { pid: word().parse().ok()?, fence: word().parse().ok()?, slot: word().parse().ok()? })
    }

    #[track_caller]
    pub fn started(&self) -> Started {
        let start = Instant::now();
        loop {
            if let Some(started) = self.has_started() {
                return started;
            }
            assert!(start.elapsed() < DEADLINE, "COMMAND did not start: {}\n{}", self.run.line, self.run.stderr());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn let_go(&mut self) {
        self.gate.write_all(b"\n").unwrap();
    }

    #[track_caller]
    pub fn finish(mut self) -> Outcome {
        self.let_go();
        self.run.wait()
    }

    /// SIGKILL to `claim`, and reaps it.
    pub fn kill_claim(&mut self) {
        self.run.child.kill().unwrap();
        self.run.child.wait().unwrap();
    }

    /// SIGKILL to COMMAND, and waits until it is dead.
    pub fn kill_command(&self) {
        let pid = self.started().pid;
        kill(pid, Signal::KILL);
        until("COMMAND is dead", || !alive(pid));
    }
}

/// Waits for a condition.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

pub fn lines(path: &Path) -> Vec<String> {
    text(path).lines().map(str::to_owned).collect()
}

pub fn mkfifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
}

pub fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

pub fn kill(pid: i32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid).expect("a pid"), signal);
}

/// The state letter of a process; none if there is no such process.
pub fn state(pid: i32) -> Option<char> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    String::from_utf8_lossy(&stat).rsplit_once(") ")?.1.chars().next()
}

pub fn alive(pid: i32) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

pub fn stop(pid: i32) {
    kill(pid, Signal::STOP);
    until("the process is stopped", || state(pid) == Some('T'));
}

/// SIGKILL to all processes of a list that may still grow, and waits until they have ended: the exit of a process gives
/// up its descriptors and locks before it shows as ended here.
pub fn end_all(list: impl Fn() -> Vec<i32>) {
    // Stopped, none of them starts another one.
    let mut pids = Vec::new();
    until("all are stopped", || {
        let before = std::mem::replace(&mut pids, list());
        pids.iter().for_each(|pid| kill(*pid, Signal::STOP));
        // D: a shell that has vforked sleeps until its child, which is stopped, executes.
        before == pids && pids.iter().all(|pid| matches!(state(*pid), None | Some('T' | 'Z' | 'X' | 'D')))
    });
    pids.iter().for_each(|pid| kill(*pid, Signal::KILL));
    until("all have ended", || !pids.iter().any(|pid| alive(*pid)));
}

/// The processes below `root`, and itself.
pub fn descendants(root: i32) -> Vec<i32> {
    let parent = |pid: i32| -> Option<i32> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        String::from_utf8_lossy(&stat).rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| std::iter::successors(Some(*pid), |pid| parent(*pid)).any(|pid| pid == root)).collect()
}

/// All files and directories under `dir`, relative to it.
pub fn listing(dir: &Path) -> Vec<PathBuf> {
    fn walk(top: &Path, dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            found.push(entry.path().strip_prefix(top).unwrap().to_path_buf());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                walk(top, &entry.path(), found);
            }
        }
    }
    let mut found = Vec::new();
    walk(dir, dir, &mut found);
    found.sort();
    found
}

/// Whether this test can run: as root, with the tools it names; as root a missing tool is a failure.
pub fn root_with(tools: &[&str]) -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("needs root: not run");
        return false;
    }
    with(tools);
    true
}

/// Fails unless the tools are there.
pub fn with(tools: &[&str]) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for tool in tools {
        let found = std::env::split_paths(&path).any(|dir| dir.join(tool).is_file());
        assert!(found, "this test needs `{tool}`, which is not installed");
    }
}
