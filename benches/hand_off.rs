//! A closed loop: N processes that acquire, hold for 1 ms, and release, on one name.
//!
//! `cargo bench --bench hand_off [-- N...]` (default 2, 64 and 256): how long from a release to the next acquisition, CPU time
//! per acquisition, and whether everybody gets the same: Jain's index, and the longest wait over the mean wait.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use hostclaim::{Claim, Directory, Outcome};
use rustix::time::{ClockId, clock_gettime};

const RUN: Duration = Duration::from_secs(5);
const HOLD: Duration = Duration::from_millis(1);

fn main() {
    if let Some(scratch) = std::env::var_os("CLAIM_BENCH_WORKER") {
        return work(Path::new(&scratch));
    }
    let counts: Vec<usize> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    for count in if counts.is_empty() { vec![2, 64, 256] } else { counts } {
        measure(count);
    }
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// One of the processes: a line per turn, with the times at which it asked, had, and was about to give back.
fn work(scratch: &Path) {
    let dir = Directory::at(scratch.join("claims")).expect("a claim directory");
    let mut claim = Claim::new(&dir, "bench").expect("a handle");
    let mut lines = String::new();
    let end = Instant::now() + RUN;
    while Instant::now() < end {
        let asked = now();
        assert!(matches!(claim.acquire(None), Ok(Outcome::Acquired(_))));
        let had = now();
        while now() - had < HOLD.as_nanos() as u64 {
            let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 1_000_000 });
        }
        let back = now();
        claim.release().expect("a release");
        lines += &format!("{asked} {had} {back}\n");
    }
    let mut file = File::create(scratch.join(format!("worker-{}", std::process::id()))).expect("a file of times");
    file.write_all(lines.as_bytes()).expect("times written");
}

fn measure(count: usize) {
    let scratch = tempfile::tempdir_in("/dev/shm").expect("a directory on tmpfs");
    let before = cpu();
    let worker = || {
        let me = std::env::current_exe().expect("this program");
        Command::new(me).env("CLAIM_BENCH_WORKER", scratch.path()).spawn().expect("a worker")
    };
    let mut workers: Vec<Child> = (0..count).map(|_| worker()).collect();
    for worker in &mut workers {
        assert!(worker.wait().expect("a worker's end").success());
    }
    let cpu = cpu() - before;
    let mut turns = Vec::new();
    let mut shares = Vec::new();
    for entry in std::fs::read_dir(scratch.path()).expect("the scratch directory").flatten() {
        if entry.file_name().to_string_lossy().starts_with("worker-") {
            let text = std::fs::read_to_string(entry.path()).expect("a file of times");
            let mine: Vec<[u64; 3]> = text.lines().map(times).collect();
            shares.push(mine.len() as f64);
            turns.extend(mine);
        }
    }
    turns.sort_by_key(|turn| turn[1]);
    let mut gaps: Vec<u64> = turns
        .windows(2)
        .map(|pair| {
            assert!(pair[0][2] <= pair[1][1], "two at once");
            pair[1][1] - pair[0][2]
        })
        .collect();
    gaps.sort_unstable();
    // The first turns wait for the others to start, the last for nobody.
    let settled = &turns[turns.len() / 10..turns.len() * 9 / 10];
    let waits: Vec<u64> = settled.iter().map(|turn| turn[1] - turn[0]).collect();
    let mean = waits.iter().sum::<u64>() as f64 / waits.len() as f64;
    let longest = waits.iter().copied().max().unwrap_or(0) as f64;
    let jain = shares.iter().sum::<f64>().powi(2) / (shares.len() as f64 * shares.iter().map(|s| s * s).sum::<f64>());
    println!(
        "{count} processes: {} turns, release to next acquire p50 {} us, CPU {} us per turn, Jain {jain:.2}, longest/mean wait {:.2}",
        turns.len(),
        gaps[gaps.len() / 2] / 1000,
        cpu.as_micros() / turns.len() as u128,
        longest / mean
    );
}

fn times(line: &str) -> [u64; 3] {
    let mut numbers = line.split(' ').map(|word| word.parse().expect("a time"));
    std::array::from_fn(|_| numbers.next().expect("three times"))
}

/// CPU time of the children that have ended.
fn cpu() -> Duration {
    // Fields 16 and 17 of proc(5) stat, in clock ticks of 10 ms.
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc");
    let after = stat.rsplit_once(')').expect("a name").1;
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    let ticks: u64 = fields[13].parse::<u64>().unwrap_or(0) + fields[14].parse::<u64>().unwrap_or(0);
    Duration::from_millis(ticks * 10)
}
