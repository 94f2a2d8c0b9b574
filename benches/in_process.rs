//! An uncontended acquire and release in one process, beside flock(2) on an open descriptor: nanoseconds per pair, in
//! alternating batches, medians.
//!
//! `cargo bench --bench in_process [-- DIR]`; DIR (default /dev/shm) names the file system. System calls per pair:
//! `strace -c` on the program this builds, with `--pairs N` for N pairs of ours alone.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hostclaim::{Claim, Directory, Outcome};
use rustix::fs::{FlockOperation, flock};

fn main() {
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let mut at = PathBuf::from("/dev/shm");
    let mut pairs = None;
    while let Some(word) = words.next() {
        match word.as_str() {
            "--pairs" => pairs = words.next().and_then(|count| count.parse::<u32>().ok()),
            dir => at = dir.into(),
        }
    }
    let scratch = tempfile::tempdir_in(at).expect("a directory to measure in");
    let dir = Directory::at(scratch.path().join("claims")).expect("a claim directory");
    let mut claim = Claim::new(&dir, "bench").expect("a handle");
    let mut ours = |count: u32| {
        for _ in 0..count {
            assert!(matches!(claim.acquire(Some(Duration::ZERO)), Ok(Outcome::Acquired(_))));
            claim.release().expect("a release");
        }
    };
    if let Some(pairs) = pairs {
        return ours(pairs);
    }
    let file = File::create(scratch.path().join("lock")).expect("a file to lock");
    let theirs = |count: u32| {
        for _ in 0..count {
            flock(&file, FlockOperation::LockExclusive).expect("flock");
            flock(&file, FlockOperation::Unlock).expect("unlock");
        }
    };
    const BATCH: u32 = 2000;
    const BATCHES: usize = 50;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..BATCHES {
        times[0].push(time(&mut ours, BATCH));
        times[1].push(time(&mut |count| theirs(count), BATCH));
    }
    for (name, times) in ["claim", "flock on an open descriptor"].into_iter().zip(&mut times) {
        times.sort_unstable();
        println!("{name}: {} ns (from {} to {})", times[BATCHES / 2], times[0], times[BATCHES - 1]);
    }
}

fn time(work: &mut dyn FnMut(u32), count: u32) -> u128 {
    let begin = Instant::now();
    work(count);
    begin.elapsed().as_nanos() / u128::from(count)
}
