//! Odd settings that a run may find itself in: limits, ignored signals, other file systems, a hidden /proc, a reboot.

mod support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use support::{CLAIM, Place, Signal, lines, root_with, until, with};

#[test]
fn a_sigterm_at_any_moment_is_not_lost() {
    let place = Place::new();
    for round in 0..150_u64 {
        let run = place.start(place.claim(["job", "sleep", "1000"]));
        // Not a wait for anything: each round the signal comes a little later, so that some round hits each step.
        std::thread::sleep(Duration::from_micros(round * 40));
        run.signal(Signal::TERM);
        run.wait().expect(143);
        assert_eq!(place.try_once(&["job"]), 0, "round {round}");
    }
    place.assert_clean();
}

#[test]
fn a_sigterm_in_the_moment_of_service_is_not_lost_and_keeps_nothing() {
    let place = Place::new();
    for round in 0..40_u64 {
        let holder = place.hold(&["job"]);
        let waiter = place.start(place.claim(["job", "sleep", "1000"]));
        until("it waits", || place.waiters("job").len() == 1);
        let behind = place.start(place.claim(["job", "true"]));
        holder.finish().expect(0);
        // As above.
        std::thread::sleep(Duration::from_micros(round * 50));
        waiter.signal(Signal::TERM);
        waiter.wait().expect(143);
        behind.wait().expect(0);
    }
    place.assert_clean();
}

#[test]
fn a_signal_that_was_ignored_does_not_end_a_wait() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let script = r#"exec env --ignore-signal=HUP,INT,QUIT,TERM "$claim" --dir "$dir" job true"#;
    let waiter = place.start(place.sh(script));
    until("it waits", || place.waiters("job").len() == 1);
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::WINCH, Signal::CONT] {
        waiter.signal(signal);
    }
    // It goes on waiting, and is served.
    assert_eq!(place.waiters("job").len(), 1);
    holder.finish().expect(0);
    waiter.wait().expect(0);
}

#[test]
fn with_sigchld_ignored_the_status_is_commands_all_the_same() {
    let place = Place::new();
    for options in ["", "--tree", "--exec"] {
        let script = format!(r#"exec env --ignore-signal=CHLD "$claim" --dir "$dir" {options} job sh -c 'exit 4'"#);
        place.run(place.sh(&script)).expect(4);
        assert_eq!(place.try_once(&["job"]), 0);
    }
}

#[test]
fn a_limit_of_the_file_size_is_no_signal() {
    let place = Place::new();
    for limit in ["0", "1"] {
        let script = format!(r#"ulimit -f {limit}; exec "$claim" --dir "$dir" -n job sh -c 'exit 7'"#);
        let outcome = place.run(place.sh(&script));
        assert!(matches!(outcome.code(), 7 | 71), "{}: {}", outcome.code(), outcome.stderr);
        assert_eq!(place.try_once(&["job"]), 0);
    }
    place.assert_clean();
}

#[test]
fn stderr_that_nobody_reads_or_that_is_full_changes_nothing() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let script = r#"{ sleep 0.1; "$claim" --dir "$dir" -v job sh -c 'exit 3'; echo $? > status; } 2>&1 | true
        until [ -s status ]; do sleep 0.01; done; "$claim" --dir "$dir" -v job sh -c 'exit 3' 2> /dev/full; echo $? >> status"#;
    let run = place.start(place.sh(script));
    until("it waits", || place.waiters("job").len() == 1);
    holder.finish().expect(0);
    run.wait().expect(0);
    assert_eq!(lines(&place.path("status")), ["3", "3"]);
}

#[test]
fn output_that_cannot_be_written_is_no_success_and_no_panic() {
    let place = Place::new();
    let _holder = place.hold(&["job"]);
    for command in ["--who", "--who --json", "--help", "--version"] {
        let outcome = place.run(place.sh(&format!(r#""$claim" --dir "$dir" {command} > /dev/full"#)));
        assert_ne!(outcome.code(), 0, "{command}");
        assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
        let outcome = place.run(place.sh(&format!(r#""$claim" --dir "$dir" {command} | true"#))).expect(0);
        assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
    }
}

#[test]
fn help_and_version_go_to_stdout() {
    let place = Place::new();
    for option in ["--help", "-h", "--version", "-V"] {
        let outcome = place.run(place.claim([option])).expect(0);
        assert!(outcome.stdout.contains("claim") && outcome.stderr.is_empty(), "{option}: {outcome:?}");
    }
}

#[test]
fn a_very_long_command_line_and_one_that_is_not_utf_8_are_no_obstacle() {
    let place = Place::new();
    let outcome = place.run(place.sh(r#""$claim" --dir "$dir" job sh -c 'echo $#' $(seq 1 50000)"#)).expect(0);
    assert_eq!(outcome.stdout, "49999\n");
    let script =
        r#"odd=$(printf 'a\377b'); "$claim" --dir "$dir" --label "$odd" job "$claim" --dir "$dir" --who job --json"#;
    let outcome = place.run(place.sh(script)).expect(0);
    assert!(serde_json::from_str::<serde_json::Value>(&outcome.stdout).is_ok(), "{}", outcome.stdout);
    let mut long = place.hold(&["--label", &"x".repeat(100_000), "job"]);
    let who = place.run(place.claim(["--who", "job"])).expect(0).stdout;
    assert!(who.starts_with("job[1/1] HELD ") && who.lines().count() == 1);
    long.let_go();
    long.run.wait().expect(0);
    place.assert_clean();
}

#[test]
fn a_large_capacity_costs_nothing_while_it_is_not_used() {
    let place = Place::new();
    for max in ["1000", "100000", "4294967295"] {
        let outcome = place.run(place.claim(["-n", "-m", max, "job", "true"]));
        assert!(matches!(outcome.code(), 0 | 64), "{max}: {}", outcome.stderr);
        assert_eq!(place.run(place.claim(["--available", "-m", max, "job"])).code(), outcome.code());
    }
    place.assert_clean();
}

#[test]
fn a_directory_on_a_disk_works_as_one_in_memory() {
    let place = Place::under(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let holder = place.hold(&["job"]);
    let waiter = place.wait_in_line("job", &["job"]);
    let mut dead = place.wait_in_line("job", &["job"]);
    assert_eq!(place.try_once(&["job"]), 75);
    dead.kill_claim();
    holder.finish().expect(0);
    waiter.finish().expect(0);
    place.crash(&["job"]);
    assert_eq!(place.try_once(&["job"]), 0);
    place.assert_clean();
}

#[test]
fn many_at_once_make_a_fresh_directory_and_each_gets_its_turn() {
    for _ in 0..10 {
        let place = Place::new();
        let script =
            r#"until [ -e go ]; do :; done; exec "$claim" --dir "$dir" job sh -c 'echo $CLAIM_FENCE >> fences'"#;
        let runs: Vec<_> = (0..16).map(|_| place.start(place.sh(script))).collect();
        fs::write(place.path("go"), "").unwrap();
        for run in runs {
            run.wait().expect(0);
        }
        let fences: Vec<u64> = lines(&place.path("fences")).iter().map(|line| line.parse().unwrap()).collect();
        assert_eq!(fences.len(), 16);
        assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
        place.assert_clean();
    }
}

/// With `hidepid=2` a user sees nothing of another's processes in /proc: that proves nothing about them.
#[test]
fn processes_that_proc_hides_are_not_dead() {
    if !root_with(&["unshare", "mount", "setpriv"]) {
        return;
    }
    let place = Place::public();
    fs::create_dir(place.dir()).unwrap();
    std::os::unix::fs::chown(place.dir(), Some(1001), Some(3000)).unwrap();
    support::chmod(&place.dir(), 0o2770);
    let script = r#"mount --make-rprivate / && mount -t proc -o hidepid=2 none /proc || exit 99
        as() { uid=$1; shift; setpriv --reuid $uid --regid $uid --groups 3000 bin/claim --dir dir "$@"; }
        as 1001 job sh -c 'while :; do sleep 0.01; done' & as 1001 -F exec sleep 1000 &
        until as 1001 --who job > /dev/null && as 1001 --who exec > /dev/null; do :; done
        for name in job exec; do
            as 1002 -n $name true; echo $?; as 1002 -w 0.1 $name true; echo $?; as 1002 --who $name > /dev/null; echo $?
        done"#;
    let mut command = place.command("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]).current_dir(place.root());
    let outcome = place.run(command);
    assert_eq!(outcome.stdout, "75\n75\n0\n75\n75\n0\n", "{}", outcome.stderr);
}

/// A reboot is another boot id. Nobody of an earlier boot is alive, nothing rests any longer, and the fence grows.
#[test]
fn a_reboot_frees_all_and_the_fence_grows() {
    if !root_with(&["unshare", "mount"]) {
        return;
    }
    let place = Place::new();
    let script = r#"mount --make-rprivate / && echo 11111111-2222-3333-4444-555555555555 > boot_id &&
        mount --bind boot_id /proc/sys/kernel/random/boot_id || exit 99
        "$claim" --dir "$dir" job sh -c 'echo $CLAIM_FENCE > fence; while :; do sleep 0.01; done' &
        "$claim" --dir "$dir" --at-least 1000 rest true || exit 98
        "$claim" --dir "$dir" -n job true; echo $? > status; "$claim" --dir "$dir" -n rest true; echo $? >> status
        : > done; sleep 1000"#;
    let mut command = place.command("unshare");
    command.args(["--mount", "sh", "-c", script]).env("claim", CLAIM).env("dir", place.dir()).current_dir(place.root());
    let _run = place.start(command);
    until("they are held", || place.path("done").exists() && !lines(&place.path("fence")).is_empty());
    assert_eq!(lines(&place.path("status")), ["75", "75"]);
    let before: u64 = lines(&place.path("fence"))[0].parse().unwrap();
    let hold = place.hold(&["-n", "job"]);
    assert!(hold.started().fence > before, "{} after {before}", hold.started().fence);
    assert_eq!(place.try_once(&["rest"]), 0);
    hold.finish().expect(0);
    place.assert_clean();
}

/// An unprivileged user is nobody special.
#[test]
fn an_unprivileged_user_does_it_all_in_a_directory_of_its_own() {
    if !root_with(&["setpriv"]) {
        return;
    }
    let place = Place::public();
    fs::create_dir(place.path("mine")).unwrap();
    std::os::unix::fs::chown(place.path("mine"), Some(65534), Some(65534)).unwrap();
    let script = r#"cd mine; c="../bin/claim --dir dir"
        $c job sh -c 'echo $CLAIM_SLOT; echo > up; until [ -e go ]; do sleep 0.01; done' & first=$!
        until [ -e up ]; do sleep 0.01; done
        $c -n job true; echo $?; $c job echo served & second=$!
        until [ "$($c --who job | wc -l)" = 2 ]; do :; done; echo > go; wait $first; wait $second; echo $?
        $c -F job sleep 1000 & until $c --who job > other; do :; done; kill -KILL $!; wait $!; $c -n job echo reclaimed"#;
    let mut command = place.command("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", script])
        .current_dir(place.root());
    let outcome = place.run(command);
    assert_eq!(outcome.stdout, "0\n75\nserved\n0\nreclaimed\n", "{}", outcome.stderr);
}

#[test]
fn the_claims_of_one_directory_are_not_those_of_another() {
    with(&["sh"]);
    let (one, two) = (Place::new(), Place::new());
    let _hold = one.hold(&["job"]);
    assert_eq!((one.try_once(&["job"]), two.try_once(&["job"])), (75, 0));
    // The same directory by another path is the same.
    let mut command = one.command(CLAIM);
    command.current_dir(one.dir()).args(["--dir", "../dir/.", "-n", "job", "true"]);
    assert_eq!(one.run(command).code(), 75);
}

/// More holders than a process may have files open: a look at them keeps none open, and the search for rings (all holders are
/// a process above) neither.
#[test]
fn any_number_of_holders_can_be_looked_at_with_few_descriptors() {
    const HOLDERS: u32 = 200;
    let place = Place::new();
    let dir = hostclaim::Directory::at(place.dir()).unwrap();
    let capacity = hostclaim::Capacity::new(HOLDERS).unwrap();
    let mut holders: Vec<_> =
        (0..HOLDERS).map(|_| hostclaim::Claim::new(&dir, "job").unwrap().capacity(capacity)).collect();
    for holder in &mut holders {
        assert!(matches!(holder.acquire(None), Ok(hostclaim::Outcome::Acquired(_))));
    }
    for wait in ["0", "0.1"] {
        let mut command = place.command("prlimit");
        command.args(["--nofile=100", CLAIM, "--dir"]).arg(place.dir()).args(["-w", wait, "-m", "200", "job", "true"]);
        place.run(command).expect(78);
    }
    // Seen from beside.
    let who = place.who("job");
    assert_eq!(who.len(), HOLDERS as usize);
    let script = r#"prlimit --nofile=100 "$claim" --dir "$dir" -w "$0" -m 200 job true; echo $? >> out"#;
    for wait in ["0", "0.1"] {
        let mut command = place.sh(&format!("setsid sh -c '{script}' {wait} < /dev/null > /dev/null 2>&1 &"));
        command.current_dir(place.root());
        place.run(command).expect(0);
    }
    until("both", || lines(&place.path("out")).len() == 2);
    assert_eq!(lines(&place.path("out")), ["75", "75"]);
}
