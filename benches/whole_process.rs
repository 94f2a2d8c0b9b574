//! `claim NAME true` as a whole process beside `flock FILE true`, in pairs, in both locales that matter to flock.
//!
//! `cargo bench --bench whole_process [-- PAIRS]`. A ratio below 1 is in our favour.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn main() {
    let pairs = std::env::args().skip(1).find_map(|word| word.parse::<usize>().ok()).unwrap_or(1000);
    let scratch = tempfile::tempdir_in("/dev/shm").expect("a directory on tmpfs");
    let lock = scratch.path().join("lock");
    for locale in ["C", "C.UTF-8"] {
        let ours = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_claim"));
            command.arg("--dir").arg(scratch.path().join("claims")).args(["bench", "/bin/true"]);
            command
        };
        let theirs = || {
            let mut command = Command::new("flock");
            command.arg(&lock).arg("/bin/true");
            command
        };
        let (mut a, mut b, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for pair in 0..pairs {
            // In turn, so that neither profits from going second.
            let (x, y) = if pair % 2 == 0 {
                let x = time(ours(), locale);
                (x, time(theirs(), locale))
            } else {
                let y = time(theirs(), locale);
                (time(ours(), locale), y)
            };
            ratios.push(x.as_secs_f64() / y.as_secs_f64());
            a.push(x);
            b.push(y);
        }
        a.sort_unstable();
        b.sort_unstable();
        ratios.sort_by(f64::total_cmp);
        println!(
            "LC_ALL={locale}: claim {:?}, flock {:?}, median of the paired ratios {:.3}",
            a[pairs / 2],
            b[pairs / 2],
            ratios[pairs / 2]
        );
    }
}

fn time(mut command: Command, locale: &str) -> Duration {
    command.env("LC_ALL", locale).stdin(Stdio::null());
    let begin = Instant::now();
    assert!(command.status().expect("a program to time").success());
    begin.elapsed()
}
