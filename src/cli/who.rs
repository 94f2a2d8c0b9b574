//! `--who`: who holds, who waits.

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use serde::Serialize;

use crate::class::Class;
use crate::cli::args::Args;
use crate::cli::output::Voice;
use crate::cli::run::take_over_signals;
use crate::cli::{existing_directory, exit};
use crate::clock::{self, Deadline};
use crate::error::{Error, Result};
use crate::events::json_name;
use crate::inspect::{Entry, Report, inspect};
use crate::local::wait::Reasons;
use crate::name::{Name, printable};
use crate::sys::signals::die_of;

pub(crate) fn who(args: &Args, name: Option<&Name>, voice: &Voice) -> Result<i32> {
    if args.watch {
        return watch(args, name);
    }
    let report = look(args, name)?;
    let lines = report.entries.iter().map(|entry| line(entry, args.json)).collect::<String>();
    print(&lines)?;
    if let Some(error) = report.unreadable {
        voice.error(&error);
        return Ok(exit::of(&error));
    }
    let held = report.entries.iter().any(|entry| entry.slot.is_some());
    Ok(if held { exit::OK } else { exit::NO })
}

fn look(args: &Args, name: Option<&Name>) -> Result<Report> {
    match existing_directory(args)? {
        Some(dir) => inspect(&dir, name),
        None => Ok(Report::default()),
    }
}

/// Looks again and again until a signal comes.
fn watch(args: &Args, name: Option<&Name>) -> Result<i32> {
    const EVERY: Duration = Duration::from_millis(250);
    let signals = take_over_signals()?;
    let terminal = std::io::stdout().is_terminal();
    let mut shown: Option<Vec<String>> = None;
    loop {
        let report = look(args, name)?;
        let mut lines: Vec<String> = report.entries.iter().map(|entry| line(entry, args.json)).collect();
        if let Some(error) = &report.unreadable {
            lines.push(format!("{error}\n"));
        }
        if args.json {
            // A line whenever something changes: those that were not there before.
            let before = shown.take().unwrap_or_default();
            print(&lines.iter().filter(|line| !before.contains(line)).cloned().collect::<String>())?;
        } else if terminal || shown.as_ref() != Some(&lines) {
            let clear = if terminal { "\x1b[H\x1b[2J" } else { "" };
            let nobody = if lines.is_empty() { "nobody holds or waits\n" } else { "" };
            print(&format!("{clear}{}{nobody}", lines.concat()))?;
        }
        shown = Some(lines);
        let mut reasons = Reasons::default();
        reasons.readable(signals.as_fd()).sleep(Deadline::after(EVERY))?;
        if let Some(signal) = signals.next_that_ends() {
            die_of(signal);
        }
    }
}

fn print(text: &str) -> Result<()> {
    std::io::stdout()
        .write_all(text.as_bytes())
        .and_then(|()| std::io::stdout().flush())
        .map_err(|error| Error::system("write to", "standard output", error))
}

fn line(entry: &Entry, json: bool) -> String {
    if json { json_line(entry) } else { text_line(entry) }
}

/// `video-encode[2/2] HELD  node2 pid=4242 since=2026-06-12T10:15:00Z rev=8812 cmd=./encode.sh`
fn text_line(entry: &Entry) -> String {
    let Entry { key, host, pid, since, rev, .. } = entry;
    let state = if entry.slot.is_some() { "HELD " } else { "WAIT " };
    let host = printable(host.as_bytes());
    let class = if entry.slot.is_none() { format!(" class={}", entry.class) } else { String::new() };
    let until = entry.until.map_or_else(String::new, |until| format!(" until={}", clock::utc(until)));
    let unknown = if entry.unknown { " liveness=unknown" } else { "" };
    format!(
        "{}[{}/{}] {state} {host} pid={pid} since={}{until} rev={rev}{class}{unknown} cmd={}\n",
        key.name,
        entry.held,
        key.max,
        clock::utc(*since),
        printable(&entry.label)
    )
}

fn json_line(entry: &Entry) -> String {
    #[derive(Serialize)]
    struct Line<'a> {
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        name_b64: Option<String>,
        max: u32,
        slot: Option<u32>,
        state: &'a str,
        host: &'a str,
        pid: i32,
        #[serde(skip_serializing_if = "Option::is_none")]
        command_pid: Option<i32>,
        started: String,
        rev: u64,
        class: Class,
        cmd: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        until: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        liveness: Option<&'a str>,
    }
    let (name, name_b64) = json_name(entry.key.name.as_bytes());
    let line = Line {
        name,
        name_b64,
        max: entry.key.max.get(),
        slot: entry.slot,
        state: if entry.slot.is_some() { "held" } else { "waiting" },
        host: &entry.host,
        pid: entry.pid,
        command_pid: entry.command_pid,
        started: clock::utc(entry.since),
        rev: entry.rev,
        class: entry.class,
        cmd: String::from_utf8_lossy(&entry.label).into_owned(),
        until: entry.until.map(clock::utc),
        liveness: entry.unknown.then_some("unknown"),
    };
    // Strings and numbers always serialise.
    serde_json::to_string(&line).unwrap_or_default() + "\n"
}
