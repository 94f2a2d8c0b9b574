//! SIGKILL, SIGSTOP, and a delay at every system call that `claim` makes: while it acquires, waits, reclaims and releases.
//!
//! For each call that a clean run makes, and each occurrence of it, one run is hit there (strace's `inject`). SIGKILL
//! and the delay come before the call is carried out, SIGSTOP after it. Then: nobody held it at the same time as another, whoever
//! waits is served, the name is to be had, and nothing of it is left in the directory.

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use support::strace::{self, Log};
use support::{Hold, Place, Running, Signal, kill, until, with};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scene {
    /// A directory that does not exist yet, then acquire and release.
    First,
    /// Acquire and release.
    Again,
    /// The holder is dead.
    Reclaim,
    /// The holder is alive, and releases; one more waits behind.
    Wait,
    /// The holder stays, the wait times out; one more waits behind.
    TimeOut,
    /// One waits while it releases.
    Release,
    /// The holder is dead, and so are two waiters in front.
    Crowd,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Hit {
    Kill,
    Stop,
    Delay,
}

/// COMMAND: exits with 99 if another one runs at the same time. The lock goes with the process.
const ALONE: [&str; 8] = ["--", "flock", "--no-fork", "-n", "-E", "99", "alone", "true"];

/// Calls by which a program makes itself ready, and nothing else.
const OF_NO_CONSEQUENCE: [&str; 9] = [
    "arch_prctl",
    "brk",
    "mprotect",
    "rseq",
    "rt_sigreturn",
    "set_robust_list",
    "set_tid_address",
    "sigaltstack",
    "getrandom",
];

struct Stage {
    place: Place,
    scene: Scene,
    gate: File,
    holder: Option<Hold>,
}

impl Stage {
    fn new(scene: Scene) -> Self {
        let place = Place::new();
        support::mkfifo(&place.path("gate"));
        let gate = File::options().read(true).write(true).open(place.path("gate")).unwrap();
        let holder = match scene {
            Scene::First => None,
            Scene::Again | Scene::Release => {
                assert_eq!(place.try_once(&["job"]), 0);
                None
            }
            Scene::Reclaim => {
                place.crash(&["job"]);
                None
            }
            Scene::Wait | Scene::TimeOut => Some(place.hold(&["job"])),
            Scene::Crowd => {
                let mut dying = place.hold(&["job"]);
                let mut waiters = [place.wait_in_line("job", &["job"]), place.wait_in_line("job", &["job"])];
                // The last one first, so that none of them is served.
                waiters.iter_mut().rev().for_each(Hold::kill_claim);
                dying.kill_claim();
                dying.kill_command();
                None
            }
        };
        Self { place, scene, gate, holder }
    }

    fn start_victim(&self, inject: &[String]) -> Running {
        let wait = if self.scene == Scene::TimeOut { "0.1" } else { "50" };
        let mut args = vec!["-w", wait, "job"];
        args.extend(&ALONE[..7]);
        args.extend(match self.scene {
            Scene::Release => &["sh", "-c", ": > up; read _ < gate"][..],
            _ => &["true"],
        });
        let mut command = strace::claim(&self.place, &self.log(), inject, &args);
        command.current_dir(self.place.root());
        self.place.start(command)
    }

    fn log(&self) -> std::path::PathBuf {
        self.place.path("log")
    }

    fn other(&self, wait: &str) -> Running {
        let mut command = self.place.claim(["-w", wait, "job"].iter().chain(&ALONE));
        command.current_dir(self.place.root());
        self.place.start(command)
    }

    /// One more that waits, or has been served already.
    fn behind(&self) -> Running {
        let mut run = self.other("50");
        let pid = run.pid();
        until("one more has come", || {
            run.ended().is_some() || self.place.who("job").iter().any(|entry| entry["pid"] == pid)
        });
        run
    }

    /// Waits until the victim has been hit, or has ended, or (where the scene needs an act of another to go on) waits
    /// for that act.
    fn until_settled(&self, victim: &mut Running) {
        let waiting = |place: &Place| match self.scene {
            Scene::Wait => !place.waiters("job").is_empty(),
            Scene::Release => place.path("up").exists(),
            _ => false,
        };
        until("the victim is hit, ends or waits", || {
            let log = Log::read(&self.log());
            log.let_commands_go_on();
            victim.ended().is_some() || log.killed() || !log.stopped().is_empty() || waiting(&self.place)
        });
    }

    fn act(&mut self) {
        if self.scene == Scene::Release {
            self.gate.write_all(b"\n").unwrap();
        } else if let Some(holder) = self.holder.take() {
            holder.finish().expect(0);
        }
    }

    fn afterwards(&self, what: &str) {
        assert!(!Log::read(&self.log()).contains("exited with 99"), "{what}: two at once");
        let outcome = self.other("0").wait();
        assert_eq!(outcome.code(), 0, "{what}: the name is to be had; {}", outcome.stderr);
        assert_eq!(self.place.leftovers(), Vec::<std::path::PathBuf>::new(), "{what}: left in the directory");
    }
}

/// One run that is killed; whether it was.
fn killed_at(scene: Scene, call: &str, occurrence: usize) -> bool {
    let what = format!("{scene:?}, SIGKILL at {call} number {occurrence}");
    let mut stage = Stage::new(scene);
    let mut victim = stage.start_victim(&[format!("{call}:signal=KILL:when={occurrence}")]);
    stage.until_settled(&mut victim);
    let behind = stage.behind();
    stage.act();
    victim.wait();
    let outcome = behind.wait();
    assert_eq!(outcome.code(), 0, "{what}: the one behind; {}", outcome.stderr);
    stage.afterwards(&what);
    Log::read(&stage.log()).killed()
}

/// One run that is stopped; whether it was. The others, those that try once too, are served meanwhile, unless it holds
/// (or, having begun to reclaim, keeps them from a dead holder's slot: they are told 75 when they should). And whoever is
/// served meanwhile loses nothing when the one that was stopped goes on with what it once saw.
fn stopped_at(scene: Scene, call: &str, occurrence: usize) -> bool {
    let what = format!("{scene:?}, SIGSTOP at {call} number {occurrence}");
    let mut stage = Stage::new(scene);
    let mut victim = stage.start_victim(&[format!("{call}:signal=STOP:when={occurrence}")]);
    stage.until_settled(&mut victim);
    let mut behind = matches!(scene, Scene::Wait | Scene::Release).then(|| stage.behind());
    stage.act();
    until("the victim is hit or ends", || {
        let log = Log::read(&stage.log());
        log.let_commands_go_on();
        victim.ended().is_some() || !log.stopped().is_empty()
    });
    let served = |run: Option<Running>| {
        let outcome = run.map(Running::wait);
        assert!(outcome.as_ref().is_none_or(|outcome| outcome.code() == 0), "{what}: the one behind: {outcome:?}");
    };
    let go_on = || Log::read(&stage.log()).all_stopped().into_iter().for_each(|pid| kill(pid, Signal::CONT));
    let stopped = !Log::read(&stage.log()).stopped().is_empty();
    if stopped {
        let behind_pid = behind.as_ref().map_or(0, Running::pid);
        let held = stage.place.holders("job").iter().any(|holder| holder["pid"] != behind_pid);
        let allowed: &[i32] = match scene {
            _ if held => &[75],
            Scene::Reclaim | Scene::Crowd => &[0, 75],
            _ => &[0],
        };
        if !held {
            served(behind.take());
        }
        let mut newcomer = stage.place.queue(&["-n", "job"]);
        until("the newcomer is served or not", || newcomer.run.ended().is_some() || newcomer.has_started().is_some());
        let code = newcomer.run.ended().map_or(0, support::shell_status);
        assert!(allowed.contains(&code), "{what}: {code} (held: {held}); {}", newcomer.run.stderr());
        if code == 0 {
            go_on();
            // Time for it to do something wrong.
            std::thread::sleep(Duration::from_millis(50));
            let holders = stage.place.holders("job");
            assert!(holders.len() == 1 && holders[0]["pid"] == newcomer.run.pid(), "{what}: robbed: {holders:?}");
            newcomer.finish().expect(0);
        }
    }
    until("it goes on and ends", || {
        go_on();
        victim.ended().is_some()
    });
    let outcome = victim.wait();
    let expected: &[i32] = if scene == Scene::TimeOut { &[0, 75] } else { &[0] };
    assert!(expected.contains(&outcome.code()), "{what}: then {}; {}", outcome.code(), outcome.stderr);
    served(behind);
    stage.afterwards(&what);
    stopped
}

/// One run that is held up while two others come; whether it was. All are served.
fn delayed_at(scene: Scene, call: &str, occurrence: usize) -> bool {
    let what = format!("{scene:?}, delayed at {call} number {occurrence}");
    let mut stage = Stage::new(scene);
    let mut victim = stage.start_victim(&[format!("{call}:delay_enter=40000:when={occurrence}")]);
    let others = [stage.other("50"), stage.other("50")];
    stage.until_settled(&mut victim);
    stage.act();
    for other in others {
        let outcome = other.wait();
        assert_eq!(outcome.code(), 0, "{what}: one that came meanwhile; {}", outcome.stderr);
    }
    let outcome = victim.wait();
    let expected: &[i32] = if scene == Scene::TimeOut { &[0, 75] } else { &[0] };
    assert!(expected.contains(&outcome.code()), "{what}: then {}; {}", outcome.code(), outcome.stderr);
    stage.afterwards(&what);
    Log::read(&stage.log()).delayed()
}

/// The calls of a clean run.
fn calls(scene: Scene) -> Vec<(String, usize)> {
    let mut stage = Stage::new(scene);
    let mut victim = stage.start_victim(&[]);
    stage.until_settled(&mut victim);
    stage.act();
    let status = victim.wait().code();
    assert_eq!(status, if scene == Scene::TimeOut { 75 } else { 0 });
    stage.afterwards("a clean run");
    let calls = Log::read(&stage.log()).calls();
    calls.into_iter().filter(|(call, _)| !OF_NO_CONSEQUENCE.contains(&call.as_str())).collect()
}

fn sweep(scene: Scene, hit: Hit) {
    with(&["strace", "flock"]);
    let (mut pairs, mut hits) = (0, 0);
    let calls = calls(scene);
    for (call, count) in &calls {
        // A few more than in the clean run: a wait may take a turn more. Nobody is hit: no more of this call.
        for occurrence in 1..=count + 3 {
            let was_hit = match hit {
                Hit::Kill => killed_at(scene, call, occurrence),
                Hit::Stop => stopped_at(scene, call, occurrence),
                Hit::Delay => delayed_at(scene, call, occurrence),
            };
            pairs += 1;
            hits += usize::from(was_hit);
            if !was_hit && occurrence >= *count {
                break;
            }
        }
    }
    println!("{scene:?}, {hit:?}: {} calls, {pairs} pairs of call and occurrence tried, {hits} hit", calls.len());
    assert!(hits > 20, "{hits} of {pairs} hit");
    report(scene, hit, pairs, hits);
}

/// The numbers, also where a test runner swallows what tests print: in the file that `CLAIM_SWEEP_REPORT` names.
fn report(scene: Scene, hit: Hit, pairs: usize, hits: usize) {
    if let Some(file) = std::env::var_os("CLAIM_SWEEP_REPORT") {
        support::recorder::append(Path::new(&file), &format!("{scene:?} {hit:?} {pairs} {hits}\n"));
    }
}

macro_rules! sweeps {
    ($($name:ident: $scene:ident $hit:ident,)*) => {
        $(#[test] fn $name() { sweep(Scene::$scene, Hit::$hit); })*
    };
}

sweeps! {
    killed_at_every_call_in_a_first_run: First Kill,
    killed_at_every_call_in_acquire_and_release: Again Kill,
    killed_at_every_call_in_reclaim: Reclaim Kill,
    killed_at_every_call_in_wait: Wait Kill,
    killed_at_every_call_in_a_wait_that_times_out: TimeOut Kill,
    killed_at_every_call_in_release_with_a_waiter: Release Kill,
    killed_at_every_call_among_dead_holders_and_waiters: Crowd Kill,
    stopped_at_every_call_in_a_first_run: First Stop,
    stopped_at_every_call_in_acquire_and_release: Again Stop,
    stopped_at_every_call_in_reclaim: Reclaim Stop,
    stopped_at_every_call_in_wait: Wait Stop,
    stopped_at_every_call_in_a_wait_that_times_out: TimeOut Stop,
    stopped_at_every_call_in_release_with_a_waiter: Release Stop,
    stopped_at_every_call_among_dead_holders_and_waiters: Crowd Stop,
    delayed_at_every_call_in_a_first_run: First Delay,
    delayed_at_every_call_in_acquire_and_release: Again Delay,
    delayed_at_every_call_in_reclaim: Reclaim Delay,
    delayed_at_every_call_in_wait: Wait Delay,
    delayed_at_every_call_in_release_with_a_waiter: Release Delay,
    delayed_at_every_call_among_dead_holders_and_waiters: Crowd Delay,
}

#[test]
fn the_check_for_two_at_once_sees_two_at_once() {
    with(&["flock"]);
    let place = Place::new();
    let mut script = place.sh("exec 9> alone; flock 9; exec flock --no-fork -n -E 99 alone true");
    script.current_dir(place.root());
    assert_eq!(place.run(script).code(), 99);
    assert!(fs::exists(place.path("alone")).unwrap());
}
