//! What `claim` says on standard error: whole lines, each beginning `claim: NAME: `.

use std::cell::OnceCell;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use crate::cli::duration::short;
use crate::clock;
use crate::events::{Waiting, Who};
use crate::name::printable;
use crate::supervise::is_in_foreground;

/// How much is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Volume {
    Quiet,
    Normal,
    Verbose,
}

/// Says things about one name.
#[derive(Debug, Clone)]
pub(crate) struct Voice {
    prefix: String,
    volume: Volume,
}

impl Voice {
    pub(crate) fn new(name: &dyn Display, volume: Volume) -> Self {
        Self { prefix: format!("claim: {name}: "), volume }
    }

    /// Before a name is known.
    pub(crate) fn nameless(volume: Volume) -> Self {
        Self { prefix: "claim: ".into(), volume }
    }

    /// An error: said in any case.
    pub(crate) fn error(&self, what: &dyn Display) {
        self.line(what);
    }

    /// What people want to know.
    pub(crate) fn say(&self, what: &dyn Display) {
        if self.volume >= Volume::Normal {
            self.line(what);
        }
    }

    /// What they want to know who ask for more.
    pub(crate) fn detail(&self, what: &dyn Display) {
        if self.volume >= Volume::Verbose {
            self.line(what);
        }
    }

    pub(crate) fn is_verbose(&self) -> bool {
        self.volume >= Volume::Verbose
    }

    /// One write, so that lines of several processes do not mix. If nobody can read it, nothing can be done about that.
    fn line(&self, what: &dyn Display) {
        let _ = std::io::stderr().write_all(format!("{}{what}\n", self.prefix).as_bytes());
    }
}

/// The holder, as a message names it.
pub(crate) fn holder(who: &Who) -> String {
    let age = Duration::from_micros(clock::unix_us().saturating_sub(who.since));
    let label = printable(&who.label);
    match who.until {
        Some(until) => format!(
            "taken until {} (by pid {} on {}, {label})",
            clock::utc(until),
            who.pid,
            printable(who.host.as_bytes())
        ),
        None => format!("held by pid {} on {} ({label}) for {}", who.pid, printable(who.host.as_bytes()), short(age)),
    }
}

/// A line on the terminal that is kept up to date while we wait, from one second on.
#[derive(Debug)]
pub(crate) struct WaitingLine {
    voice: Voice,
    /// Asked for when somebody waits.
    enabled: OnceCell<bool>,
    shown: bool,
}

impl WaitingLine {
    pub(crate) fn new(voice: &Voice) -> Self {
        Self { voice: voice.clone(), enabled: OnceCell::new(), shown: false }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        *self.enabled.get_or_init(|| self.voice.volume >= Volume::Normal && std::io::stderr().is_terminal())
    }

    /// Shows how the wait stands; says when to be called again.
    pub(crate) fn update(&mut self, waiting: &Waiting) -> Option<Duration> {
        const FROM: Duration = Duration::from_secs(1);
        if !self.is_enabled() {
            return None;
        }
        if let Some(early) = FROM.checked_sub(waiting.elapsed).filter(|early| !early.is_zero()) {
            return Some(early);
        }
        // In the background the line would run into what others write; and with `tostop` it would stop us.
        if is_in_foreground() {
            let who = waiting.holder.as_ref().map_or_else(String::new, |who| format!(", {}", holder(who)));
            let text =
                format!("{}waiting {}{who}, {} before us", self.voice.prefix, short(waiting.elapsed), waiting.before);
            self.draw(&text);
        }
        Some(FROM)
    }

    /// `\r` and "erase to the end of the line" keep it one line; so does cutting it to the terminal's width.
    fn draw(&mut self, text: &str) {
        let width = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
        let width = if width == 0 { 80 } else { width };
        let text: String = text.chars().take(width.saturating_sub(1)).collect();
        let _ = std::io::stderr().write_all(format!("\r{text}\x1b[K").as_bytes());
        self.shown = true;
    }

    pub(crate) fn erase(&mut self) {
        if self.shown {
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
            self.shown = false;
        }
    }
}
