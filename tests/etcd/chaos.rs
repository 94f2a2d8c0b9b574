//! Three hosts, two slots, three members; whatever can be killed, stopped or cut is, at random from a seed. Whoever held
//! has written down when it was alive; never more than two were at a time.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::etcd::Cluster;
use crate::support::host::*;
use crate::support::proxy::{Mode, Proxy};
use crate::support::until;

/// xorshift64*: enough to choose by, and the same for a seed everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }
}

/// When a custody was seen alive, on the clock since boot.
struct Interval {
    fence: u64,
    first: f64,
    last: f64,
}

fn intervals(folder: &Path) -> Vec<Interval> {
    let files = std::fs::read_dir(folder).unwrap().flatten();
    let read = files.filter_map(|file| {
        let text = std::fs::read_to_string(file.path()).ok()?;
        let whole = text.rsplit_once('\n')?.0;
        let mut times = whole.lines().filter_map(|line| line.split(' ').next()?.parse::<f64>().ok());
        let first = times.next()?;
        let fence = file.file_name().to_str()?.split('-').next()?.parse().ok()?;
        Some(Interval { fence, first, last: times.next_back().unwrap_or(first) })
    });
    read.collect()
}

/// The most that were alive at one time.
fn most_at_once(intervals: &[Interval]) -> usize {
    let most = intervals
        .iter()
        .map(|one| intervals.iter().filter(|other| other.first <= one.first && one.first <= other.last).count());
    most.max().unwrap_or(0)
}

/// Something to be undone, later.
enum Undo {
    Pass(usize),
    Continue(i32),
    Restart(usize),
}

fn environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn never_more_than_n_whatever_dies() {
    // Five minutes: CLAIM_TEST_SECONDS=300.
    let seconds = environment("CLAIM_TEST_SECONDS").unwrap_or(15);
    let seed = environment("CLAIM_TEST_SEED").unwrap_or(0x00C1_A1F0);
    let mut random = Random(seed);
    let mut cluster = Cluster::three();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let proxies: Vec<Vec<Proxy>> =
        (0..3).map(|_| cluster.nodes.iter().map(|node| Proxy::new(&node.endpoint())).collect()).collect();
    let hosts: Vec<Host> = proxies
        .iter()
        .enumerate()
        .map(|(n, proxies)| {
            let endpoints: Vec<_> = proxies.iter().map(Proxy::endpoint).collect();
            Host::new(&format!("node{n}"), &endpoints.join(","))
        })
        .collect();
    let line = format!(
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; exec sleep 600' & \
         while :; do cat /proc/uptime >>{}/$CLAIM_FENCE-$$; sleep 0.01; done",
        folder.path().display()
    );
    let arguments = ["-m", "2", "--ttl", "3s", "--kill-after", "0.5", "job", "-c", &line];
    let mut running: Vec<Running> = Vec::new();
    let mut undo: Vec<(Instant, Undo)> = Vec::new();
    let (mut done, mut statuses) = ([0_usize; 6], std::collections::BTreeMap::<i32, usize>::new());
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(seconds) {
        let (now, mut later) = (Instant::now(), Vec::new());
        for (at, what) in undo.drain(..) {
            match what {
                _ if at > now => later.push((at, what)),
                Undo::Pass(host) => proxies[host].iter().for_each(|proxy| proxy.set(Mode::Pass)),
                Undo::Continue(pid) => send_if_there(pid, Signal::CONT),
                Undo::Restart(node) => cluster.nodes[node].start(),
            }
        }
        undo = later;
        running = running
            .into_iter()
            .filter_map(|mut run| match run.has_ended() {
                true => {
                    *statuses.entry(status_of(&run.end())).or_default() += 1;
                    None
                }
                false => Some(run),
            })
            .collect();
        while running.len() < 6 {
            running.push(hosts[random.below(3)].start(&arguments));
        }
        let after = now + Duration::from_millis(500 + random.below(4000) as u64);
        let (host, run) = (random.below(3), &running[random.below(6)]);
        let what = random.below(12);
        match what {
            0..4 => {
                let keeper = children(run.pid).first().copied();
                let command = keeper.and_then(|keeper| children(keeper).first().copied());
                let victims = [Some(run.pid), keeper, command];
                if let Some(pid) = victims[random.below(3)] {
                    send_if_there(pid, Signal::KILL);
                }
            }
            4 | 5 => {
                proxies[host].iter().for_each(|proxy| proxy.set(Mode::Stall));
                undo.push((after, Undo::Pass(host)));
            }
            6 => {
                proxies[host].iter().for_each(|proxy| proxy.set(Mode::Cut));
                undo.push((after, Undo::Pass(host)));
            }
            7 => {
                send_if_there(run.pid, Signal::STOP);
                undo.push((after, Undo::Continue(run.pid)));
            }
            8 if !undo.iter().any(|(_, what)| matches!(what, Undo::Restart(_))) => {
                let node = random.below(3);
                cluster.nodes[node].kill();
                undo.push((after, Undo::Restart(node)));
            }
            9 => send_if_there(run.pid, Signal::TERM),
            _ => {}
        }
        done[what / 2] += 1;
        std::thread::sleep(Duration::from_millis(200 + random.below(1200) as u64));
    }
    for (_, what) in undo {
        match what {
            Undo::Pass(_) => {}
            Undo::Continue(pid) => send_if_there(pid, Signal::CONT),
            Undo::Restart(node) => cluster.nodes[node].start(),
        }
    }
    proxies.iter().flatten().for_each(|proxy| proxy.set(Mode::Pass));
    running.push(hosts[0].start(&arguments));
    running.push(hosts[1].start(&arguments));
    let alive = || {
        let now: f64 = std::fs::read_to_string("/proc/uptime").unwrap().split(' ').next().unwrap().parse().unwrap();
        intervals(folder.path()).iter().filter(|it| now - it.last < 1.0).count()
    };
    until("two holders again", || alive() == 2);
    for run in &mut running {
        send_if_there(run.pid, Signal::KILL);
        run.end();
        run.until_alone(&[]);
    }
    let seen = intervals(folder.path());
    let mut fences: Vec<u64> = seen.iter().map(|it| it.fence).collect();
    fences.sort_unstable();
    fences.dedup();
    eprintln!("seed {seed}: {} custodies, steps {done:?}, statuses {statuses:?}", seen.len());
    assert_eq!(fences.len(), seen.len(), "no two custodies share a fence");
    assert!(most_at_once(&seen) <= 2, "{} at once", most_at_once(&seen));
}

/// It may have ended, and be waited for, in the meantime.
fn send_if_there(pid: i32, signal: Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}
