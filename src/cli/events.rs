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
    stage: Stage,
}

/// How far a run has come. Across hosts, to have a slot of this host's is only the first step, and what befalls that slot
/// is told as what it means for the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The claim is one on this host: what happens is what is told.
    Host,
    /// Across hosts: to have this host's slot is nothing to tell. `queued`: that it waits has been told.
    #[cfg(feature = "etcd")]
    Beyond { queued: bool },
    /// Across hosts: held, since that running time, in nanoseconds.
    #[cfg(feature = "etcd")]
    Held { fence: crate::Fence, since: u64 },
    /// Across hosts: it was held, and lost.
    #[cfg(feature = "etcd")]
    Lost,
}

impl Stage {
    /// What is to be told of an event.
    fn told(&mut self, what: Happening) -> Option<Happening> {
        #[cfg(not(feature = "etcd"))]
        return Some(what);
        #[cfg(feature = "etcd")]
        match (&mut *self, what) {
            (Self::Beyond { .. }, Happening::Acquired { .. } | Happening::Released { .. } | Happening::Lost) => None,
            (Self::Beyond { queued }, Happening::Queued) => (!std::mem::replace(queued, true)).then_some(what),
            (Self::Held { fence, since }, Happening::Released { .. }) => {
                let held = crate::clock::monotonic_ns().saturating_sub(*since);
                Some(Happening::Released { duration: Duration::from_nanos(held), fence: *fence })
            }
            (Self::Lost, Happening::Released { .. }) => Some(Happening::Lost),
            _ => Some(what),
        }
    }
}

impl Eyes {
    pub(crate) fn new(voice: &Voice, file: Option<File>) -> Self {
        Self {
            voice: voice.clone(),
            file,
            failed: false,
            line: WaitingLine::new(voice),
            said_waiting: false,
            stage: Stage::Host,
        }
    }

    #[cfg(feature = "etcd")]
    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    #[cfg(feature = "etcd")]
    pub(crate) fn set_stage(&mut self, stage: Stage) {
        self.stage = stage;
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
        let Some(what) = self.stage.told(event.what) else { return };
        let event = &Event { what, ..event.clone() };
        if matches!(what, Happening::Acquired { .. }) {
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

    fn wants_waits(&self) -> bool {
        self.line.is_enabled() || self.voice.is_verbose()
    }

    fn trouble(&mut self, error: &Error) {
        self.voice.error(error);
    }

    fn waiting(&mut self, waiting: &Waiting) -> Option<Duration> {
        if !std::mem::replace(&mut self.said_waiting, true) {
            let who = waiting.holder.as_ref().map_or_else(String::new, |who| format!(": {}", holder(who)));
            self.voice.detail(&format_args!("waiting, {} before us{who}", waiting.before));
        }
        self.line.update(waiting)
    }
}
