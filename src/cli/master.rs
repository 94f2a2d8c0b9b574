//! `--master`: a private claim directory around a COMMAND.

use crate::cli::args::Args;
use crate::cli::output::Voice;
use crate::cli::run::{argv, status, take_over_signals, with_variables};
use crate::error::{Error, Result};
use crate::local::master::Master;
use crate::supervise::{self, Attendant, Orders};

pub(crate) fn master(args: &Args, voice: &Voice) -> Result<i32> {
    let signals = take_over_signals()?;
    let master = Master::new()?;
    voice.detail(&format_args!("made {}", master.path().display()));
    let dir = master.path().as_os_str().as_encoded_bytes().to_vec();
    let program = signals.program(argv(args), with_variables(&[("CLAIM_DIR", dir)]));
    let orders = Orders { tree: args.tree, kill_after: args.kill_after };
    let ended = supervise::run(&program, orders, &signals, &mut Mastered { master: &master, voice });
    if let Err(error) = master.remove() {
        voice.error(&error);
    }
    status(ended?, args, voice)
}

struct Mastered<'a> {
    master: &'a Master,
    voice: &'a Voice,
}

impl Attendant for Mastered<'_> {
    fn register(&mut self) -> bool {
        self.master.register()
    }

    fn complain(&mut self, error: &Error) {
        self.voice.error(error);
    }
}
