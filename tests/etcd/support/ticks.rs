//! COMMANDs that write down when they were alive, on the clock since boot; whoever reads it knows when they were not yet,
//! and when not any more.

use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

/// A COMMAND that ignores SIGTERM and writes down when it was last alive.
pub(crate) fn ticks(file: &Path) -> String {
    format!("trap '' TERM; while :; do cat /proc/uptime >>{}; sleep 0.01; done", file.display())
}

/// The same, with a daemon in a session of its own that does so too.
pub(crate) fn ticks_with_daemon(file: &Path, daemon: &Path) -> String {
    format!("trap '' TERM; setsid sh -c '{}' & {}", ticks(daemon).replace('\'', "\""), ticks(file))
}

/// When it was alive, in seconds. What its killer interrupted is left out.
pub(crate) fn times(file: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).collect()
}

/// The time on the same clock.
pub(crate) fn now() -> f64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
