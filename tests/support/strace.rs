//! Signals and errors injected at system calls with strace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use super::{CLAIM, Place};

/// `claim --dir DIR ARGS...` under strace; `inject` is a list of strace's `-e inject=` expressions.
pub fn claim(place: &Place, log: &Path, inject: &[String], args: &[&str]) -> Command {
    super::with(&["strace"]);
    let mut command = place.command("strace");
    command.args(["-f", "-q", "-a1", "-s0", "-o"]).arg(log);
    for expression in inject {
        let call = expression.split(':').next().unwrap();
        command.args(["-e", &format!("trace=execve,{call}"), "-e", &format!("inject={expression}")]);
    }
    // Few directories to look for COMMAND in: fewer calls.
    command.env("PATH", "/usr/bin:/bin").arg("--").arg(CLAIM).arg("--dir").arg(place.dir()).args(args);
    command
}

/// The log of a run.
pub struct Log {
    lines: Vec<String>,
}

impl Log {
    pub fn read(path: &Path) -> Self {
        Self { lines: super::lines(path) }
    }

    /// What the lines say of one process each: `PID REST`.
    fn entries(&self) -> impl Iterator<Item = (i32, &str)> {
        self.lines.iter().filter_map(|line| {
            let (pid, rest) = line.split_once(' ')?;
            Some((pid.parse().ok()?, rest.trim_start()))
        })
    }

    /// The processes that went on to be COMMAND; the first line is the `execve` of `claim` itself.
    fn commands(&self) -> BTreeSet<i32> {
        let succeeded = |rest: &str| {
            rest.starts_with("execve(") && rest.ends_with("= 0") || rest.starts_with("<... execve resumed")
        };
        self.entries().skip(1).filter(|(_, rest)| succeeded(rest)).map(|(pid, _)| pid).collect()
    }

    /// The system calls of `claim` and of its child until that is COMMAND, and how often one of them made each at most.
    pub fn calls(&self) -> BTreeMap<String, usize> {
        let mut counts: BTreeMap<(i32, &str), usize> = BTreeMap::new();
        let mut commands = BTreeSet::new();
        for (index, (pid, rest)) in self.entries().enumerate() {
            let Some((name, _)) = rest.split_once('(') else { continue };
            if commands.contains(&pid) || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                continue;
            }
            *counts.entry((pid, name)).or_default() += 1;
            if index > 0 && name == "execve" && self.commands().contains(&pid) {
                commands.insert(pid);
            }
        }
        let mut calls: BTreeMap<String, usize> = BTreeMap::new();
        for ((_, name), count) in counts {
            let most = calls.entry(name.to_owned()).or_default();
            *most = count.max(*most);
        }
        calls
    }

    fn those(&self, what: &str) -> Vec<i32> {
        let commands = self.commands();
        let hit = self.entries().filter(|(pid, rest)| rest.starts_with(what) && !commands.contains(pid));
        hit.map(|(pid, _)| pid).collect()
    }

    /// Whether `claim`, or its child before that was COMMAND, was killed.
    pub fn killed(&self) -> bool {
        !self.those("+++ killed by SIGKILL").is_empty()
    }

    /// The processes of `claim` that the injected SIGSTOP stopped.
    pub fn stopped(&self) -> Vec<i32> {
        self.those("--- stopped by SIGSTOP")
    }

    /// COMMAND is hit at its own calls too, but they are not what is looked at: SIGCONT to those.
    pub fn let_commands_go_on(&self) {
        let stopped = self.stopped();
        for pid in self.all_stopped().into_iter().filter(|pid| !stopped.contains(pid)) {
            super::kill(pid, super::Signal::CONT);
        }
    }

    /// All that were stopped, COMMAND too.
    pub fn all_stopped(&self) -> Vec<i32> {
        self.entries().filter(|(_, rest)| rest.starts_with("--- stopped by SIGSTOP")).map(|(pid, _)| pid).collect()
    }

    /// Whether `claim`, or its child before that was COMMAND, was held up.
    pub fn delayed(&self) -> bool {
        let commands = self.commands();
        self.entries().any(|(pid, rest)| rest.contains("(DELAYED)") && !commands.contains(&pid))
    }

    pub fn contains(&self, what: &str) -> bool {
        self.lines.iter().any(|line| line.contains(what))
    }
}
