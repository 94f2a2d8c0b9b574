//! Pid namespaces that share a claim directory: the living are never taken for dead, nor the dead for living.

mod support;

use std::fs;
use std::process::Command;

use serde_json::Value;
use support::{CLAIM, Place, Running, Signal, descendants, end_all, kill, lines, root_with, until};

const TOOLS: &[&str] = &["unshare", "mount"];

/// A shell script as the first process of a pid namespace; SIGKILL to what `start` returns ends all in it.
fn container(place: &Place, script: &str) -> Command {
    let mut command = place.command("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script]).current_dir(place.root());
    command.env("claim", CLAIM).env("dir", place.dir());
    command
}

/// A container in which `claim` holds `job` until the container is killed.
fn holding(place: &Place) -> Running {
    let run =
        place.start(container(place, r#""$claim" --dir "$dir" job sh -c 'while :; do sleep 0.01; done'; exit 1"#));
    until("it is held in the container", || place.holders("job").len() == 1);
    run
}

/// SIGKILL to a container, and waits until all that was in it has ended.
fn destroy(container: Running) {
    let root = container.pid();
    end_all(|| descendants(root));
    container.wait();
}

/// The status of one try in a container of its own.
fn try_in_container(place: &Place) -> i32 {
    place.run(container(place, r#""$claim" --dir "$dir" -n job true; exit $?"#)).code()
}

#[test]
fn a_holder_in_another_container_is_never_taken_while_it_lives_and_had_at_once_when_it_is_dead() {
    if !root_with(TOOLS) {
        return;
    }
    let place = Place::new();
    for _ in 0..3 {
        for from_host in [true, false] {
            let first = holding(&place);
            for _ in 0..3 {
                assert_eq!(place.try_once(&["job"]), 75, "from the host");
                assert_eq!(try_in_container(&place), 75, "from another container");
            }
            destroy(first);
            assert_eq!(if from_host { place.try_once(&["job"]) } else { try_in_container(&place) }, 0);
            place.assert_clean();
        }
    }
}

#[test]
fn a_holder_on_the_host_is_never_taken_from_a_container_while_it_lives() {
    if !root_with(TOOLS) {
        return;
    }
    let place = Place::new();
    for option in [&[][..], &["--exec"], &["--tree"]] {
        let mut hold = place.hold(&[option, &["job"]].concat());
        assert_eq!(try_in_container(&place), 75, "{option:?}");
        hold.kill_claim();
        if option != ["--exec"] {
            assert_eq!(try_in_container(&place), 75, "{option:?}: claim is killed, COMMAND lives");
            hold.kill_command();
        }
        // Here the pids can be asked for; a container would have to go by the lock, which says nothing about a COMMAND
        // that inherited no descriptor.
        assert_eq!(place.try_once(&["job"]), 0, "{option:?}");
        assert_eq!(try_in_container(&place), 0, "{option:?}");
        let hold = place.hold(&["job"]);
        hold.finish().expect(0);
        assert_eq!(try_in_container(&place), 0);
        place.assert_clean();
    }
}

#[test]
fn who_says_that_a_holder_in_another_container_cannot_be_seen() {
    if !root_with(TOOLS) {
        return;
    }
    let place = Place::new();
    // `claim` is killed: its lock is gone, and only who can ask for pids knows that COMMAND lives.
    let mut hold = place.hold(&["job"]);
    hold.kill_claim();
    let outcome = place.run(container(&place, r#""$claim" --dir "$dir" --who job --json; exit $?"#)).expect(0);
    let entry: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&entry["state"], &entry["liveness"]), (&Value::from("held"), &Value::from("unknown")));
}

#[test]
fn the_same_pid_in_two_containers_is_no_confusion() {
    if !root_with(TOOLS) {
        return;
    }
    let place = Place::new();
    // In both, `claim` or its equal is process 2, and COMMAND or its equal 3 or more.
    let first = place.start(container(&place, r#""$claim" --dir "$dir" job sh -c 'while :; do sleep 1; done' & wait"#));
    until("held", || place.holders("job").len() == 1);
    let script = r#"sleep 1000 & sleep 1000 & sleep 1000 & sleep 1000 &
        "$claim" --dir "$dir" -n job true; echo $? > alive
        until [ -e dead ]; do sleep 0.01; done
        "$claim" --dir "$dir" -n job true; echo $? > result"#;
    let second = place.start(container(&place, script));
    until("it has tried", || !lines(&place.path("alive")).is_empty());
    destroy(first);
    fs::write(place.path("dead"), "").unwrap();
    until("it has tried again", || !lines(&place.path("result")).is_empty());
    assert_eq!((lines(&place.path("alive")), lines(&place.path("result"))), (vec!["75".into()], vec!["0".into()]));
    second.signal(Signal::KILL);
    second.wait();
}

#[test]
fn a_restarted_container_meets_no_ghost_of_itself() {
    if !root_with(TOOLS) {
        return;
    }
    let place = Place::new();
    let mut fences = Vec::new();
    for _ in 0..6 {
        // The same pids every time: claim is the first process, COMMAND the second.
        let mut command = place.command("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child", CLAIM, "-n", "--dir"]).arg(place.dir());
        command
            .args(["job", "sh", "-c", "echo $$ $CLAIM_FENCE > up; while :; do sleep 0.01; done"])
            .current_dir(place.root());
        let mut run = place.start(command);
        until("it holds", || run.ended().is_some() || lines(&place.path("up")).len() == 1);
        assert!(run.ended().is_none(), "{}", run.stderr());
        let words: Vec<u64> = lines(&place.path("up"))[0].split(' ').map(|word| word.parse().unwrap()).collect();
        assert_eq!(words[0], 2);
        fences.push(words[1]);
        fs::remove_file(place.path("up")).unwrap();
        destroy(run);
    }
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
}

#[test]
fn a_claim_killed_in_a_container_holds_as_long_as_command_lives() {
    if !root_with(TOOLS) {
        return;
    }
    let place = Place::new();
    let script = r#""$claim" --dir "$dir" job sh -c ': > up; until [ -e over ]; do sleep 0.01; done; : > ended' & pid=$!
        until [ -e up ]; do sleep 0.01; done; kill -KILL $pid; wait $pid; echo $? > killed
        "$claim" --dir "$dir" -n job true; echo $? > inside
        while :; do sleep 0.01; done"#;
    let run = place.start(container(&place, script));
    until("claim is killed", || !lines(&place.path("inside")).is_empty());
    assert_eq!((lines(&place.path("killed")), lines(&place.path("inside"))), (vec!["137".into()], vec!["75".into()]));
    assert_eq!((place.try_once(&["job"]), try_in_container(&place)), (75, 75));
    assert_eq!(place.holders("job").len(), 1);
    fs::write(place.path("over"), "").unwrap();
    until("COMMAND has come to its end", || place.path("ended").exists());
    until("it is had, from outside", || place.try_once(&["job"]) == 0);
    assert_eq!(try_in_container(&place), 0);
    destroy(run);
    place.assert_clean();
}

#[test]
fn waiters_are_served_across_containers_in_order() {
    if !root_with(TOOLS) {
        return;
    }
    let place = Place::new();
    let first = holding(&place);
    let record = r#"sh -c 'echo $0 >> order'"#;
    let mut waiters = Vec::new();
    for index in 0..6 {
        let command = if index % 2 == 0 {
            container(&place, &format!(r#""$claim" --dir "$dir" job {record} {index}; exit $?"#))
        } else {
            place.sh(&format!(r#"exec "$claim" --dir "$dir" job {record} {index}"#))
        };
        waiters.push(place.start(command));
        until("it waits", || place.waiters("job").len() == waiters.len());
    }
    // One in a container and one on the host are killed: they leave nothing and delay nobody.
    for index in [3, 2] {
        waiters.remove(index).signal(Signal::KILL);
        until("it is gone", || place.waiters("job").len() == waiters.len());
    }
    destroy(first);
    for waiter in waiters {
        waiter.wait().expect(0);
    }
    assert_eq!(lines(&place.path("order")), ["0", "1", "4", "5"]);
    assert_eq!(place.try_once(&["job"]), 0);
    place.assert_clean();
}

#[test]
fn a_foreign_proc_misleads_nobody() {
    if !root_with(TOOLS) {
        return;
    }
    // A pid namespace of its own, but the host's /proc: the pids there are other processes.
    let place = Place::new();
    let script = r#""$claim" --dir "$dir" job sh -c 'echo > up; while :; do sleep 0.01; done' & pid=$!
        until [ -e up ]; do sleep 0.01; done
        "$claim" --dir "$dir" -n job true; echo $?
        kill -KILL $pid; wait $pid; "$claim" --dir "$dir" -n job true; echo $?"#;
    let mut command = place.command("unshare");
    command.args(["--pid", "--fork", "--kill-child", "sh", "-c", script]).current_dir(place.root());
    command.env("claim", CLAIM).env("dir", place.dir());
    assert_eq!(place.run(command).stdout, "75\n75\n");
    until("all have ended", || place.processes().is_empty());
    assert_eq!((place.try_once(&["job"]), try_in_container(&place)), (0, 0));
}

#[test]
fn claim_as_the_first_process_of_a_container_passes_signals_on() {
    if !root_with(TOOLS) {
        return;
    }
    let place = Place::new();
    let mut command = place.command("unshare");
    command.args(["--pid", "--fork", "--mount-proc", CLAIM, "--dir"]).arg(place.dir());
    command.args(["job", "sh", "-c", "echo > up; exec sleep 1000"]).current_dir(place.root());
    let run = place.start(command);
    until("it runs", || place.path("up").exists());
    let claim = place
        .processes()
        .into_iter()
        .find(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "claim"));
    kill(claim.expect("claim runs"), Signal::TERM);
    run.wait().expect(143);
    assert_eq!(place.try_once(&["job"]), 0);
}
