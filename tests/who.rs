//! Asking and telling: --who, --available, --check, --acquire and --release, --label.

mod support;

use std::fs;

use serde_json::Value;
use support::{Place, Running, Signal, alive, lines, stop, until};

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// `2026-06-12T10:15:00Z`
fn is_time(text: &str) -> bool {
    text.len() == 20
        && text
            .bytes()
            .zip(b"0000-00-00T00:00:00Z")
            .all(|(is, &like)| if like == b'0' { is.is_ascii_digit() } else { is == like })
}

#[test]
fn who_prints_a_line_for_each_holder_and_then_for_each_waiter_in_order() {
    let place = Place::new();
    let first = place.hold(&["-m", "2", "--label", "./encode.sh", "video-encode"]);
    let second = place.hold(&["-m", "2", "video-encode"]);
    let low = place.wait_in_line("video-encode", &["-m", "2", "--class", "low", "video-encode"]);
    let high = place.wait_in_line("video-encode", &["-m", "2", "--class", "high", "--label", "a b", "video-encode"]);
    let who = place.run(place.claim(["--who", "video-encode"])).expect(0).stdout;
    let lines: Vec<Vec<&str>> = who.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 4, "{who}");
    let expected = [
        ("HELD", &first, "cmd=./encode.sh", None),
        ("HELD", &second, "cmd=sh", None),
        ("WAIT", &high, "cmd=a", Some("class=high")),
        ("WAIT", &low, "cmd=sh", Some("class=low")),
    ];
    for (words, (state, hold, cmd, class)) in lines.iter().zip(expected) {
        assert_eq!(words[0], "video-encode[2/2]", "{who}");
        assert_eq!(words[1], state, "{who}");
        assert_eq!(words[2], host(), "{who}");
        assert_eq!(words[3], format!("pid={}", hold.run.pid()), "{who}");
        assert!(is_time(words[4].strip_prefix("since=").expect("since=")), "{who}");
        let rev: u64 = words[5].strip_prefix("rev=").expect("rev=").parse().unwrap();
        if state == "HELD" {
            assert_eq!(rev, hold.started().fence);
        }
        if let Some(class) = class {
            assert_eq!(words[6], class, "{who}");
        }
        assert!(words.contains(&cmd), "{who}");
    }
    assert!(who.lines().nth(1).unwrap().starts_with("video-encode[2/2] HELD  "), "two spaces, as on the page: {who}");
}

#[test]
fn who_json_has_its_keys() {
    let place = Place::new();
    let holder = place.hold(&["--label", "l", "job"]);
    let waiter = place.wait_in_line("job", &["--class", "normal", "job"]);
    let who = place.who("job");
    assert_eq!(who.len(), 2);
    for (entry, hold, state) in [(&who[0], &holder, "held"), (&who[1], &waiter, "waiting")] {
        assert_eq!(entry["name"], "job");
        assert_eq!(entry["max"], 1);
        assert_eq!(entry["state"], state);
        assert_eq!(entry["host"], host());
        assert_eq!(entry["pid"], hold.run.pid());
        assert!(is_time(entry["started"].as_str().unwrap()), "{entry}");
        assert!(entry["rev"].is_u64(), "{entry}");
        assert!(entry.get("name_b64").is_none() && entry.get("liveness").is_none(), "{entry}");
    }
    assert_eq!((&who[0]["slot"], &who[1]["slot"]), (&Value::from(0), &Value::Null));
    assert_eq!((&who[0]["class"], &who[1]["class"]), (&Value::from("interactive"), &Value::from("normal")));
    assert_eq!(who[0]["cmd"], "l");
    assert!(who[1]["cmd"].as_str().unwrap().starts_with("sh -c"), "{}", who[1]);
    assert_eq!(who[0]["command_pid"], holder.started().pid);
    assert_eq!(who[0]["rev"], holder.started().fence);
    assert!(who[1].as_object().unwrap().contains_key("slot"), "null, not left out");
}

#[test]
fn who_without_a_name_shows_all_and_says_1_where_nobody_holds() {
    let place = Place::new();
    for args in [&["--who"][..], &["--who", "--json"], &["--who", "job"], &["--who", "job", "--json"]] {
        let outcome = place.run(place.claim(args)).expect(1);
        assert_eq!(outcome.stdout, "", "{args:?}");
    }
    let holds = [place.hold(&["a"]), place.hold(&["b"]), place.hold(&["-m", "2", "a"]), place.hold(&["-m", "2", "a"])];
    let count = |args: &[&str]| place.run(place.claim(args)).expect(0).stdout.lines().count();
    assert_eq!((count(&["--who"]), count(&["--who", "a"]), count(&["--who", "b", "--json"])), (4, 3, 1));
    let who = place.run(place.claim(["--who", "a"])).stdout;
    assert_eq!((who.matches("a[1/1] ").count(), who.matches("a[2/2] ").count()), (1, 2), "{who}");
    assert_eq!(place.status(["--who", "c"]), 1);
    holds.into_iter().for_each(|hold| drop(hold.finish().expect(0)));
    assert_eq!(place.status(["--who"]), 1);
}

#[test]
fn the_dead_are_never_shown() {
    let place = Place::new();
    place.crash(&["job"]);
    assert_eq!(place.who("job"), Vec::<Value>::new());
    assert_eq!(place.run(place.claim(["--who"])).expect(1).stdout, "");
    let holder = place.hold(&["job"]);
    let mut dead = place.wait_in_line("job", &["job"]);
    let alive = place.wait_in_line("job", &["job"]);
    dead.kill_claim();
    let waiters = place.waiters("job");
    assert_eq!(waiters.len(), 1);
    assert_eq!(waiters[0]["pid"], alive.run.pid());
    let line = place.run(place.claim(["-n", "job", "true"])).expect(75).stderr;
    assert!(!line.contains(&dead.run.pid().to_string()), "{line}");
    drop((holder, alive));
}

#[test]
fn a_stopped_waiter_is_shown_and_keeps_its_place() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let first = place.wait_in_line("job", &["job"]);
    stop(first.run.pid());
    let second = place.wait_in_line("job", &["job"]);
    assert_eq!(place.waiters("job").len(), 2);
    first.run.signal(Signal::CONT);
    let pids: Vec<Value> = place.waiters("job").iter().map(|entry| entry["pid"].clone()).collect();
    assert_eq!(pids, [first.run.pid(), second.run.pid()]);
    drop(holder);
}

#[test]
fn available_is_0_where_it_could_be_had_now_and_1_where_not() {
    let place = Place::new();
    assert_eq!(place.status(["--available", "job"]), 0);
    let holder = place.hold(&["job"]);
    assert_eq!(place.status(["--available", "job"]), 1);
    assert_eq!(place.status(["--available", "-m", "2", "job"]), 0, "another capacity is another claim");
    holder.finish().expect(0);
    assert_eq!(place.status(["--available", "job"]), 0);
    place.crash(&["job"]);
    assert_eq!(place.status(["--available", "job"]), 0, "a dead holder is none");
    let _holds = [place.hold(&["-m", "2", "job"]), place.hold(&["-m", "2", "job"])];
    assert_eq!(place.status(["--available", "-m", "2", "job"]), 1);
}

#[test]
fn check_is_0_inside_1_when_it_was_taken_away_and_64_outside() {
    let place = Place::new();
    assert_eq!(place.run(place.sh("$claim --check")).code(), 64);
    let script = r#""$claim" --check && "$claim" --check job && : > inside; until [ -e go ]; do sleep 0.01; done; "$claim" --check"#;
    let mut command = place.sh(r#"exec "$claim" --dir "$dir" job sh -c "$0""#);
    command.arg(script);
    let run = place.start(command);
    until("checked inside", || place.path("inside").exists());
    assert_eq!(place.status(["--release", "job", "--force"]), 0);
    let next = place.hold(&["job"]);
    fs::write(place.path("go"), "").unwrap();
    run.wait().expect(1);
    assert_eq!(place.try_once(&["job"]), 75, "the end of the one that lost it frees nothing");
    next.finish().expect(0);
}

#[test]
fn check_with_a_name_asks_for_an_outer_claim_too() {
    let place = Place::new();
    let script = r#"exec "$claim" --dir "$dir" outer "$claim" inner sh -c '"$claim" --check; echo $?; "$claim" --check inner; echo $?; "$claim" --check outer; echo $?'"#;
    assert_eq!(place.run(place.sh(script)).stdout, "0\n0\n0\n");
}

#[test]
fn check_says_no_for_an_outer_claim_that_was_taken_away() {
    let place = Place::new();
    let inner = r#""$claim" --release --force outer; "$claim" --check outer; echo $?; "$claim" --check; echo $?; "$claim" --check other; echo $?"#;
    // Where COMMAND's environment was cleared, those of the processes above it may still tell.
    for middle in ["", r#"sh -c 'env -i "$0" "$@"; exit'"#] {
        let mut command = place.sh(&format!(
            r#"exec "$claim" --dir "$dir" outer {middle} "$claim" --dir "$dir" inner env claim="$claim" sh -c "$0""#
        ));
        command.arg(inner);
        assert_eq!(place.run(command).stdout, "1\n0\n64\n", "{middle}");
    }
}

#[test]
fn check_sees_a_killed_claim_whose_command_lives_as_holding() {
    let place = Place::new();
    let script = r#": > up; until [ -e go ]; do sleep 0.01; done; "$claim" --check; echo $? > status"#;
    let mut command = place.sh(r#"exec "$claim" --dir "$dir" job sh -c "$0""#);
    command.arg(script);
    let run = place.start(command);
    until("it runs", || place.path("up").exists());
    run.signal(Signal::KILL);
    run.wait().expect(137);
    fs::write(place.path("go"), "").unwrap();
    until("it has asked", || !lines(&place.path("status")).is_empty());
    assert_eq!(lines(&place.path("status")), ["0"]);
}

#[test]
fn acquire_holds_for_another_process_until_it_gives_up_or_ends() {
    let place = Place::new();
    let owner = sleeper(&place);
    let pid = owner.pid().to_string();
    let outcome = place.run(place.claim(["--acquire", "job", "--pid", &pid])).expect(0);
    let fence: u64 = outcome.stdout.trim().parse().expect("the fence");
    assert_eq!(outcome.stdout, format!("{fence}\n"));
    let again = place.run(place.claim(["--acquire", "job", "--pid", &pid])).expect(0);
    assert_eq!(again.stdout, outcome.stdout, "nothing changes");
    let holders = place.holders("job");
    assert_eq!(holders.len(), 1);
    assert_eq!((&holders[0]["pid"], &holders[0]["rev"]), (&Value::from(owner.pid()), &Value::from(fence)));
    assert_eq!(place.try_once(&["job"]), 75);
    let me = std::process::id().to_string();
    assert_eq!(place.status(["--acquire", "job", "--pid", &me, "-n"]), 75);
    assert_eq!(place.status(["--acquire", "job", "--pid", &me, "-w", "0.1", "-E", "9"]), 9);
    assert_eq!(place.status(["--release", "job", "--pid", &me]), 1, "it is not this one's");
    assert_eq!(place.try_once(&["job"]), 75);
    assert_eq!(place.status(["--release", "job", "--pid", &pid]), 0);
    assert_eq!(place.status(["--release", "job", "--pid", &pid]), 1, "there was nothing left");
    place.assert_clean();
    let next = place.run(place.claim(["--acquire", "job", "--pid", &pid])).expect(0).stdout;
    assert!(next.trim().parse::<u64>().unwrap() > fence);
    owner.signal(Signal::KILL);
    owner.wait();
    assert_eq!(place.try_once(&["job"]), 0, "free with the end of its process");
    place.assert_clean();
}

#[test]
fn a_script_holds_for_itself() {
    let place = Place::new();
    let script = r#"fence=$("$claim" --dir "$dir" --acquire job --pid $$) || exit; [ "$fence" -gt 0 ] || exit 9
        "$claim" --dir "$dir" --who job | wc -l; "$claim" --dir "$dir" --release job --pid $$
        "$claim" --dir "$dir" -n job echo free; "$claim" --dir "$dir" --acquire job --pid $$ > fence"#;
    assert_eq!(place.run(place.sh(script)).expect(0).stdout, "1\nfree\n");
    assert_eq!(place.try_once(&["job"]), 0, "the script has ended");
}

#[test]
fn acquire_waits_its_turn() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let owner = sleeper(&place);
    let acquire = place.start(place.claim(["--acquire", "job", "--pid", &owner.pid().to_string()]));
    until("it waits", || place.waiters("job").len() == 1);
    let behind = place.wait_in_line("job", &["job"]);
    holder.finish().expect(0);
    acquire.wait().expect(0);
    assert_eq!(behind.has_started(), None);
    assert_eq!(place.status(["--release", "job", "--pid", &owner.pid().to_string()]), 0);
    behind.finish().expect(0);
}

#[test]
fn release_by_force_takes_from_whoever_holds_and_serves_the_next() {
    let place = Place::new();
    assert_eq!(place.status(["--release", "job", "--force"]), 1);
    let holder = place.hold(&["job"]);
    let waiter = place.wait_in_line("job", &["job"]);
    assert_eq!(place.status(["--release", "job", "--force"]), 0);
    assert!(waiter.started().fence > holder.started().fence);
    assert!(alive(holder.started().pid), "COMMAND goes on; the fence tells them apart");
    holder.finish().expect(0);
    assert_eq!(place.try_once(&["job"]), 75);
    waiter.finish().expect(0);
    place.assert_clean();
}

#[test]
fn release_by_pid_takes_from_a_run_too() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    assert_eq!(place.status(["--release", "job", "--pid", &holder.run.pid().to_string()]), 0);
    assert_eq!(place.try_once(&["job"]), 0);
    holder.finish().expect(0);
}

#[test]
fn the_same_name_with_another_capacity_in_use_is_warned_about_when_it_is_had() {
    let place = Place::new();
    let warning = |args: &[&str]| place.run(place.claim(args)).expect(0).stderr;
    assert_eq!(warning(&["-m", "2", "job", "true"]), "");
    let _holder = place.hold(&["-m", "3", "job"]);
    let line = warning(&["-m", "2", "job", "true"]);
    assert!(line.starts_with("claim: job: ") && line.lines().count() == 1 && line.contains('3'), "{line}");
    assert_eq!(warning(&["-q", "-m", "2", "job", "true"]), "");
    assert_eq!(warning(&["-m", "3", "job", "true"]), "");
    assert_eq!(warning(&["-m", "2", "job2", "true"]), "");
    assert_eq!(warning(&["-m", "2", "jo", "true"]), "");
}

#[test]
fn watch_as_json_prints_a_line_whenever_something_changes() {
    let place = Place::new();
    let watch = place.start(place.claim(["--who", "job", "--watch", "--json"]));
    let seen = |state: &str, pid: i32| {
        until(&format!("{state} {pid} is seen"), || {
            let output = watch.stdout();
            let entries = output.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let mut entries = entries.map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
            entries.any(|entry| entry["state"] == state && entry["pid"] == pid)
        });
    };
    let holder = place.hold(&["job"]);
    seen("held", holder.run.pid());
    let waiter = place.wait_in_line("job", &["job"]);
    seen("waiting", waiter.run.pid());
    let lines_before = watch.stdout().lines().count();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(watch.stdout().lines().count(), lines_before, "nothing changed");
    holder.finish().expect(0);
    waiter.started();
    seen("held", waiter.run.pid());
    watch.signal(Signal::INT);
    let code = watch.wait().code();
    assert!(matches!(code, 0 | 130), "interrupted: {code}");
    waiter.finish().expect(0);
    assert_eq!(place.try_once(&["job"]), 0);
}

#[test]
fn a_watch_for_people_redraws_until_interrupted() {
    let place = Place::new();
    let watch = place.start(place.claim(["--who", "--watch"]));
    let holder = place.hold(&["job"]);
    until("it is shown", || watch.stdout().contains(&format!("pid={}", holder.run.pid())));
    watch.signal(Signal::INT);
    assert!(matches!(watch.wait().code(), 0 | 130));
    holder.finish().expect(0);
    place.assert_clean();
}

#[test]
fn who_and_available_disturb_nobody() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let script = r#"i=0; until [ -e done ]; do "$claim" --dir "$dir" --who > shown; "$claim" --dir "$dir" --available job; i=$((i+1)); done; echo $i"#;
    let asking = place.start(place.sh(script));
    let waiter = place.wait_in_line("job", &["job"]);
    holder.finish().expect(0);
    waiter.finish().expect(0);
    for _ in 0..20 {
        assert_eq!(place.try_once(&["job"]), 0);
    }
    fs::write(place.path("done"), "").unwrap();
    asking.wait().expect(0);
    place.assert_clean();
}

fn sleeper(place: &Place) -> Running {
    let mut command = place.command("sleep");
    command.arg("1000");
    place.start(command)
}
