//! A terminal to run programs in.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Command;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::{DEADLINE, Place};

pub struct Pty {
    master: File,
    slave: File,
    /// All that was written to the terminal so far.
    pub seen: Vec<u8>,
}

impl Pty {
    pub fn new() -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        Self { master: master.into(), slave: slave.into(), seen: Vec::new() }
    }

    /// A command in a session of its own whose terminal this is.
    pub fn command(&self, place: &Place, program: &str) -> Command {
        super::with(&["setsid"]);
        let mut command = place.command("setsid");
        command.arg("--ctty").arg(program);
        command.stdin(self.slave.try_clone().unwrap());
        command.stdout(self.slave.try_clone().unwrap());
        command.stderr(self.slave.try_clone().unwrap());
        command
    }

    pub fn send(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Takes in what is there within `millis`.
    pub fn take(&mut self, millis: i64) {
        let timeout = Timespec { tv_sec: millis / 1000, tv_nsec: millis % 1000 * 1_000_000 };
        let mut fds = [PollFd::new(&self.master, PollFlags::IN)];
        if poll(&mut fds, Some(&timeout)).unwrap_or(0) > 0 {
            let mut buffer = [0; 4096];
            let count = self.master.read(&mut buffer).unwrap_or(0);
            self.seen.extend(&buffer[..count]);
        }
    }

    /// Reads until the text written so far satisfies the condition.
    #[track_caller]
    pub fn until(&mut self, what: &str, condition: impl Fn(&str) -> bool) {
        let start = Instant::now();
        while !condition(&self.text()) {
            assert!(start.elapsed() < DEADLINE, "waited in vain for: {what}; seen: {:?}", self.text());
            self.take(20);
        }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    /// The last line as a reader sees it now: carriage returns and erasures carried out.
    pub fn last_line(&self) -> String {
        let text = self.text();
        let (mut line, mut column): (Vec<char>, usize) = (Vec::new(), 0);
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            match char {
                '\r' => column = 0,
                '\n' => (line, column) = (Vec::new(), 0),
                '\x1b' => {
                    let mut sequence = String::new();
                    while !sequence.ends_with(|c: char| c.is_ascii_alphabetic()) {
                        sequence.push(chars.next().unwrap_or('m'));
                    }
                    match sequence.as_str() {
                        "[K" | "[0K" | "[J" => line.truncate(column),
                        "[2K" => line.clear(),
                        _ => {}
                    }
                }
                char => {
                    while line.len() <= column {
                        line.push(' ');
                    }
                    line[column] = char;
                    column += 1;
                }
            }
        }
        line.into_iter().collect::<String>().trim_end().to_owned()
    }
}
