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
use crate::supervise::signals::Signals;
use crate::sys::signals::die_of;

/// Between two looks of --watch.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(crate) fn who(args: &Args, name: Option<&Name>, voice: &Voice) -> Result<i32> {
    if !args.watch {
        return show(args, look(args, name)?, voice);
    }
    let mut again = false;
    watch(args, &mut |signals| {
        if std::mem::replace(&mut again, true) {
            Reasons::default().readable(signals.as_fd()).sleep(Deadline::after(LOOK_EVERY))?;
        }
        look(args, name).map(Some)
    })
}

/// Prints a report, once.
pub(crate) fn show(args: &Args, report: Report, voice: &Voice) -> Result<i32> {
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

/// Shows what `next` finds, again and again until a signal comes. `next` takes its time, and not for ever; `None`: as before.
pub(crate) fn watch(args: &Args, next: &mut dyn FnMut(&Signals) -> Result<Option<Report>>) -> Result<i32> {
    let signals = take_over_signals()?;
    let mut screen = Screen { terminal: std::io::stdout().is_terminal(), shown: None };
    let mut known: Vec<Entry> = Vec::new();
    loop {
        match next(&signals)? {
            Some(report) if args.json => {
                print(&changes(&known, &report.entries))?;
                known = report.entries;
            }
            Some(report) => screen.show(&report)?,
            None => {}
        }
        if let Some(signal) = signals.next_that_ends() {
            die_of(signal);
        }
    }
}

/// A line for whoever has gone, has come, or stands otherwise than before.
fn changes(before: &[Entry], now: &[Entry]) -> String {
    let is_same = |a: &Entry, b: &Entry| (&a.key, a.pid, a.slot, a.rev) == (&b.key, b.pid, b.slot, b.rev);
    let gone = before.iter().filter(|old| !now.iter().any(|new| is_same(old, new)));
    let changed = now.iter().filter(|new| {
        let old = before.iter().find(|old| is_same(old, new));
        old.is_none_or(|old| json_line(old, state(old)) != json_line(new, state(new)))
    });
    gone.map(|entry| json_line(entry, "gone")).chain(changed.map(|entry| json_line(entry, state(entry)))).collect()
}

/// What is on the terminal, or was printed last.
struct Screen {
    terminal: bool,
    shown: Option<String>,
}

impl Screen {
    fn show(&mut self, report: &Report) -> Result<()> {
        let mut text: String = report.entries.iter().map(text_line).collect();
        if text.is_empty() {
            text.push_str("nobody holds or waits\n");
        }
        if let Some(error) = &report.unreadable {
            text.push_str(&format!("{error}\n"));
        }
        if self.shown.as_ref() == Some(&text) {
            return Ok(());
        }
        let clear = if self.terminal { "\x1b[H\x1b[2J" } else { "" };
        print(&format!("{clear}{text}"))?;
        self.shown = Some(text);
        Ok(())
    }
}

fn print(text: &str) -> Result<()> {
    std::io::stdout()
        .write_all(text.as_bytes())
        .and_then(|()| std::io::stdout().flush())
        .map_err(|error| Error::system("write to", "standard output", error))
}

fn line(entry: &Entry, json: bool) -> String {
    if json { json_line(entry, state(entry)) } else { text_line(entry) }
}

fn state(entry: &Entry) -> &'static str {
    if entry.slot.is_some() { "held" } else { "waiting" }
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

fn json_line(entry: &Entry, state: &str) -> String {
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
        state,
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
