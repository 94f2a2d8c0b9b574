//! Intervals in which COMMANDs ran, recorded by themselves on one monotonic clock, and a checker that reads them.
//!
//! COMMAND is the test executable again: a suite that records has `#[test] fn recorder_entry()`, which calls
//! [`entry`] and does nothing in an ordinary run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

/// Appends a record to `file`; one write, so records of several processes do not mix.
pub fn append(file: &Path, record: &str) {
    File::options().append(true).create(true).open(file).unwrap().write_all(record.as_bytes()).unwrap();
}

/// COMMAND: a start record, a pause, an end record.
pub fn entry() {
    let Some(file) = std::env::var_os("RECORDER_FILE") else { return };
    let variable = |name| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let (fence, slot) = (variable("CLAIM_FENCE"), variable("CLAIM_SLOT"));
    let (pid, parent) = (std::process::id(), std::os::unix::process::parent_id());
    append(file.as_ref(), &format!("start {fence} {slot} {pid} {parent} {}\n", now()));
    std::thread::sleep(Duration::from_micros(variable("RECORDER_HOLD_US").parse().unwrap()));
    let end = now();
    // Asked after the end was noted: a custody that was there still was there until then.
    let lost = std::env::var_os("RECORDER_CHECK").is_some()
        && !Command::new(super::CLAIM).arg("--check").status().is_ok_and(|status| status.success());
    let what = if lost { "lost" } else { "end" };
    append(file.as_ref(), &format!("{what} {fence} {slot} {pid} {parent} {end}\n"));
}

/// Makes the recorder the COMMAND of a `claim` command line.
pub fn record(claim: &mut Command, file: &Path, hold: Duration) {
    claim.arg("--").arg(std::env::current_exe().unwrap());
    claim.args(["recorder_entry", "--exact", "--nocapture", "--test-threads=1"]);
    claim.env("RECORDER_FILE", file).env("RECORDER_HOLD_US", hold.as_micros().to_string());
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    pub fence: u64,
    pub slot: u32,
    pub pid: i32,
    /// The `claim` that started it.
    pub parent: i32,
    pub start: u64,
    /// None: still running, or killed by somebody who did not say so with a `killed` record.
    pub end: Option<u64>,
}

/// The intervals of a file. The end of a process that was killed is the moment just before its killer killed it, in a
/// record `killed FENCE SLOT PID PARENT TIME`.
pub fn read(file: &Path) -> Vec<Interval> {
    let mut intervals = BTreeMap::new();
    for line in super::lines(file) {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, fence, slot, pid, parent, time] = words[..] else { panic!("no record: {line}") };
        let key = (fence.parse().unwrap(), slot.parse().unwrap(), pid.parse().unwrap());
        let time = time.parse().unwrap();
        let (fence, slot, pid) = key;
        let parent = parent.parse().unwrap();
        match what {
            "start" => {
                let interval = Interval { fence, slot, pid, parent, start: time, end: None };
                assert_eq!(intervals.insert(key, interval), None, "one custody, started twice: {line}");
            }
            "end" => intervals.get_mut(&key).expect("a start before the end").end = Some(time),
            // Taken away by force at some time: nobody can say when it ended.
            "lost" => drop(intervals.remove(&key)),
            "killed" => {
                intervals.get_mut(&key).expect("a start before the kill").end.get_or_insert(time);
            }
            _ => panic!("no record: {line}"),
        }
    }
    let mut intervals: Vec<Interval> = intervals.into_values().collect();
    intervals.sort_by_key(|interval| interval.start);
    intervals
}

/// How many ran at once at most.
pub fn max_overlap<'a>(intervals: impl IntoIterator<Item = &'a Interval>) -> usize {
    // At one instant the end comes first: intervals that touch do not overlap.
    let mut edges: Vec<(u64, i32)> =
        intervals.into_iter().flat_map(|i| [(i.start, 1), (i.end.unwrap_or(u64::MAX), -1)]).collect();
    edges.sort_unstable();
    let (mut running, mut most) = (0, 0);
    for (_, step) in edges {
        running += step;
        most = most.max(running);
    }
    usize::try_from(most).unwrap()
}

/// At most `max` at once, at most one per slot, and fences that grow: no two alike, and in each slot (with one slot:
/// altogether) every one larger than the one before. Returns the overlap that was reached.
#[track_caller]
pub fn check(intervals: &[Interval], max: u32) -> usize {
    let overlap = max_overlap(intervals);
    assert!(overlap <= max as usize, "{overlap} holders at once, {max} allowed");
    for slot in 0..max {
        let in_slot: Vec<Interval> = intervals.iter().filter(|i| i.slot == slot).copied().collect();
        assert!(max_overlap(&in_slot) <= 1, "two holders of slot {slot} at once");
        for pair in in_slot.windows(2) {
            assert!(pair[0].fence < pair[1].fence, "the fence of slot {slot} did not grow: {pair:?}");
        }
    }
    assert!(intervals.iter().all(|i| i.slot < max), "a slot beyond the capacity");
    let mut fences: Vec<u64> = intervals.iter().map(|i| i.fence).collect();
    fences.sort_unstable();
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "one fence given twice");
    overlap
}

/// The latest that has no end yet, by the last few records of a file.
pub fn running(file: &Path) -> Option<Interval> {
    let mut handle = File::open(file).ok()?;
    let length = handle.metadata().ok()?.len();
    handle.seek(SeekFrom::Start(length.saturating_sub(2000))).ok()?;
    let mut tail = String::new();
    handle.read_to_string(&mut tail).ok()?;
    let mut ended = Vec::new();
    for line in tail.lines().skip(1).collect::<Vec<_>>().into_iter().rev() {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, fence, slot, pid, parent, time] = words[..] else { return None };
        let fence: u64 = fence.parse().ok()?;
        if what != "start" {
            ended.push(fence);
        } else if !ended.contains(&fence) {
            let (slot, pid, parent, start) =
                (slot.parse().ok()?, pid.parse().ok()?, parent.parse().ok()?, time.parse().ok()?);
            return Some(Interval { fence, slot, pid, parent, start, end: None });
        }
    }
    None
}
