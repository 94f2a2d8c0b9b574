//! `--events FILE`, and the two ways of seeing a wait.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use crate::cli::output::{Voice, WaitingLine, holder};
use crate::error::{Error, Result};
use crate::events::{Event, Happening, Observer, Waiting};

/// Sees what happens to the handle of this run, and says and writes what is asked for.
pub(crate) struct Eyes {
    voice: Voice,
    file: Option<File>,
    failed: bool,
    line: WaitingLine,
    said_waiting: bool,
}

impl Eyes {
    pub(crate) fn new(voice: &Voice, file: Option<File>) -> Self {
        Self { voice: voice.clone(), file, failed: false, line: WaitingLine::new(voice), said_waiting: false }
    }

    /// The wait is over.
    pub(crate) fn erase_line(&mut self) {
        self.line.erase();
    }
}

/// Opens an events file for appending.
pub(crate) fn open(path: &Path) -> Result<File> {
    // O_NONBLOCK: a FIFO that nobody reads is an error now (ENXIO), not a wait.
    File::options()
        .append(true)
        .create(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| Error::system("open events file", path, error))
}

impl Observer for Eyes {
    fn event(&mut self, event: &Event) {
        if matches!(event.what, Happening::Acquired { .. }) {
            self.line.erase();
        }
        let Some(file) = &mut self.file else { return };
        // One write, whole: with O_APPEND lines of several processes do not mix.
        let mut line = event.to_json();
        line.push('\n');
        if let Err(error) = file.write_all(line.as_bytes())
            && !std::mem::replace(&mut self.failed, true)
        {
            self.voice.error(&format_args!("cannot write to the events file: {error}"));
        }
    }

    fn wants_events(&self) -> bool {
        self.file.is_some()
    }

    fn waiting(&mut self, waiting: &Waiting) -> Option<Duration> {
        if !std::mem::replace(&mut self.said_waiting, true) {
            let who = waiting.holder.as_ref().map_or_else(String::new, |who| format!(": {}", holder(who)));
            self.voice.detail(&format_args!("waiting, {} before us{who}", waiting.before));
        }
        self.line.update(waiting)
    }
}
