//! The order of service, bounds, time-outs, resting slots and events.

mod support;

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Hold, Place, Signal, kill, lines, stop, until};

/// A waiter whose COMMAND writes `tag` to the file `order` and ends.
fn writer(place: &Place, args: &[&str], tag: &str) -> support::Running {
    let mut command = place.claim(args);
    command.args(["--", "sh", "-c", r#"echo "$0" >> order"#, tag]).current_dir(place.root());
    place.start(command)
}

fn writer_in_line(place: &Place, name: &str, args: &[&str], tag: &str) -> support::Running {
    let before = place.waiters(name).len();
    let run = writer(place, args, tag);
    until("one more waiter", || place.waiters(name).len() > before);
    run
}

/// The seconds of `retry after Ns` in a message.
#[track_caller]
fn retry_after(message: &str) -> u64 {
    let rest = message.split("retry after ").nth(1).unwrap_or_else(|| panic!("no `retry after`: {message}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    assert!(rest[digits.len()..].starts_with('s'), "{message}");
    digits.parse().unwrap()
}

#[test]
fn first_come_first_served() {
    for _ in 0..5 {
        let place = Place::new();
        let holder = place.hold(&["job"]);
        let runs: Vec<_> = (0..20).map(|i| writer_in_line(&place, "job", &["job"], &i.to_string())).collect();
        holder.finish().expect(0);
        for run in runs {
            run.wait().expect(0);
        }
        assert_eq!(lines(&place.path("order")), (0..20).map(|i| i.to_string()).collect::<Vec<_>>());
        place.assert_clean();
    }
}

#[test]
fn the_highest_class_first_and_within_it_first_come_first_served() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let classes = ["low", "interactive", "normal", "high", "low", "high", "interactive", "normal", "default"];
    let mut runs = Vec::new();
    for (i, class) in classes.into_iter().enumerate() {
        let args = if class == "default" { vec!["job"] } else { vec!["--class", class, "job"] };
        runs.push(writer_in_line(&place, "job", &args, &format!("{class}{i}")));
    }
    holder.finish().expect(0);
    for run in runs {
        run.wait().expect(0);
    }
    let expected = ["interactive1", "interactive6", "default8", "high3", "high5", "normal2", "normal7", "low0", "low4"];
    assert_eq!(lines(&place.path("order")), expected);
}

#[test]
fn a_newcomer_that_tries_once_overtakes_nobody() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let script = "echo waiter >> order; sleep 0.02";
    let waiters: Vec<_> = (0..20)
        .map(|_| {
            let mut command = place.claim(["job", "sh", "-c", script]);
            command.current_dir(place.root());
            place.start(command)
        })
        .collect();
    until("all wait", || place.waiters("job").len() == 20);
    let tries = r#"until [ -e done ]; do "$claim" --dir "$dir" -q -n job sh -c 'echo newcomer >> order'; done"#;
    let tries = [place.start(place.sh(tries)), place.start(place.sh(tries))];
    holder.finish().expect(0);
    for waiter in waiters {
        waiter.wait().expect(0);
    }
    fs::write(place.path("done"), "").unwrap();
    for run in tries {
        run.wait();
    }
    let order = lines(&place.path("order"));
    assert!(order[..20].iter().all(|who| who == "waiter"), "{order:?}");
}

#[test]
fn a_stopped_waiter_is_passed_over_and_keeps_its_place() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let stopped = place.wait_in_line("job", &["job"]);
    let second = place.wait_in_line("job", &["job"]);
    stop(stopped.run.pid());
    holder.finish().expect(0);
    second.started();
    let third = place.wait_in_line("job", &["job"]);
    second.finish().expect(0);
    third.finish().expect(0);
    // Newcomers are served meanwhile, also those that try once.
    assert_eq!(place.try_once(&["job"]), 0);
    let holder = place.hold(&["job"]);
    let last = place.wait_in_line("job", &["job"]);
    stopped.run.signal(Signal::CONT);
    until("it runs on", || support::state(stopped.run.pid()) != Some('T'));
    holder.finish().expect(0);
    stopped.started();
    assert_eq!(last.has_started(), None, "the one that was stopped came first");
    stopped.finish().expect(0);
    last.finish().expect(0);
    place.assert_clean();
}

#[test]
fn only_a_stopped_waiter_is_no_obstacle_to_a_time_out_or_a_try() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let stopped = place.wait_in_line("job", &["job"]);
    stop(stopped.run.pid());
    assert_eq!(place.status(["-w", "0.1", "job", "true"]), 75);
    holder.finish().expect(0);
    for _ in 0..5 {
        assert_eq!(place.try_once(&["job"]), 0);
        assert_eq!(place.status(["job", "true"]), 0);
        assert_eq!(place.status(["--available", "job"]), 0);
    }
    stopped.run.signal(Signal::CONT);
    stopped.finish().expect(0);
    place.assert_clean();
}

#[test]
fn a_killed_waiter_leaves_nothing_and_delays_nobody() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let mut waiters: Vec<Hold> = (0..6).map(|_| place.wait_in_line("job", &["job"])).collect();
    for index in [0, 2, 3] {
        waiters[index].kill_claim();
    }
    until("the dead are gone", || place.waiters("job").len() == 3);
    holder.finish().expect(0);
    for index in [5, 4, 1] {
        // Let go beforehand: each ends when it has been served.
        waiters[index].let_go();
    }
    for index in [5, 4, 1] {
        waiters.remove(index).run.wait().expect(0);
    }
    place.assert_clean();
}

#[test]
fn a_wait_ends_at_its_deadline_and_not_before() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    for (wait, millis) in [("50ms", 50), ("0.3", 300), ("1s", 1000)] {
        let start = Instant::now();
        assert_eq!(place.status(["-w", wait, "job", "true"]), 75);
        assert!(start.elapsed() >= Duration::from_millis(millis), "{wait}: {:?}", start.elapsed());
    }
    assert_eq!(place.waiters("job"), Vec::<Value>::new());
    // One that is first in the line, one behind others.
    let first = place.start(place.claim(["-w", "0.5", "job", "true"]));
    let second = place.start(place.claim(["-w", "0.2", "job", "true"]));
    second.wait().expect(75);
    first.wait().expect(75);
    holder.finish().expect(0);
    place.assert_clean();
}

#[test]
fn a_time_out_in_the_moment_of_service_keeps_nothing() {
    let place = Place::new();
    for round in 0..40_u64 {
        let start = Instant::now();
        let mut holder = place.hold(&["job"]);
        let first = place.start(place.claim(["-w", "0.1", "job", "true"]));
        let second = place.start(place.claim(["job", "true"]));
        while start.elapsed() < Duration::from_millis(95 + round % 20) {
            std::thread::sleep(Duration::from_micros(300));
        }
        holder.let_go();
        assert!(matches!(first.wait().code(), 0 | 75));
        second.wait().expect(0);
        holder.run.wait().expect(0);
        assert_eq!(place.try_once(&["job"]), 0);
    }
    place.assert_clean();
}

#[test]
fn a_full_queue_refuses_and_says_when_to_come_back() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let one = place.wait_in_line("job", &["--queue-size", "2", "job"]);
    let two = place.wait_in_line("job", &["--queue-size", "2", "job"]);
    let refused = place.run(place.claim(["--queue-size", "2", "job", "true"])).expect(75);
    // No hold has ended yet: 2 s x (2 + 1) / 1.
    assert_eq!(retry_after(&refused.stderr), 6);
    assert_eq!(place.status(["--queue-size", "2", "-E", "3", "job", "true"]), 3);
    assert_eq!(place.status(["--queue-size", "2", "--class", "low", "job", "true"]), 75);
    assert_eq!(place.waiters("job").len(), 2);
    let three = place.wait_in_line("job", &["--queue-size", "3", "job"]);
    for hold in [holder, one, two, three] {
        hold.finish().expect(0);
    }
    place.assert_clean();
}

#[test]
fn a_newcomer_to_a_full_queue_displaces_the_newest_of_the_lowest_class_under_its_own() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let bounded = |class: &'static str| ["--queue-size", "4", "--class", class, "job"];
    let normal = place.wait_in_line("job", &bounded("normal"));
    let low_old = place.wait_in_line("job", &bounded("low"));
    let low_new = place.wait_in_line("job", &bounded("low"));
    let interactive = place.wait_in_line("job", &bounded("interactive"));
    let pids =
        || place.waiters("job").iter().map(|w| i32::try_from(w["pid"].as_i64().unwrap()).unwrap()).collect::<Vec<_>>();
    assert_eq!(place.run(place.claim([&bounded("low")[..], &["true"]].concat())).code(), 75, "never a peer");
    let high = place.queue(&bounded("high"));
    let displaced = low_new.run.wait().expect(75);
    // The four that stay, the newcomer among them, and itself: 2 s x (4 + 1) / 1.
    assert_eq!(retry_after(&displaced.stderr), 10);
    let expected = [interactive.run.pid(), high.run.pid(), normal.run.pid(), low_old.run.pid()];
    until("these wait, in this order", || pids() == expected);
    let second = place.queue(&bounded("interactive"));
    low_old.run.wait().expect(75);
    let third = place.queue(&bounded("interactive"));
    normal.run.wait().expect(75);
    let fourth = place.queue(&bounded("interactive"));
    high.run.wait().expect(75);
    let expected = [interactive.run.pid(), second.run.pid(), third.run.pid(), fourth.run.pid()];
    until("these wait, in this order", || pids() == expected);
    assert_eq!(
        place.run(place.claim([&bounded("interactive")[..], &["true"]].concat())).code(),
        75,
        "never an interactive one"
    );
    for hold in [holder, interactive, second, third, fourth] {
        hold.finish().expect(0);
    }
    place.assert_clean();
}

#[test]
fn a_queue_of_0_never_waits() {
    let place = Place::new();
    assert_eq!(place.status(["--queue-size", "0", "job", "true"]), 0);
    let holder = place.hold(&["job"]);
    assert_eq!(place.status(["--queue-size", "0", "job", "true"]), 75);
    assert_eq!(place.status(["--queue-size", "0", "-w", "100", "job", "true"]), 75);
    let low = place.wait_in_line("job", &["--class", "low", "job"]);
    assert_eq!(place.status(["--queue-size", "0", "--class", "high", "job", "true"]), 75);
    assert_eq!(place.waiters("job").len(), 1, "nobody was displaced for nothing");
    holder.finish().expect(0);
    low.finish().expect(0);
    place.assert_clean();
}

/// The case that the usual recipe loses: the second of two holders releases first, and the third waits.
#[test]
fn whichever_holder_releases_first_the_next_waiter_starts() {
    for index in [0, 1] {
        let place = Place::new();
        let mut holders = vec![place.hold(&["-m", "2", "job"]), place.hold(&["-m", "2", "job"])];
        let third = place.wait_in_line("job", &["-m", "2", "job"]);
        let fourth = place.wait_in_line("job", &["-m", "2", "job"]);
        let leaving = holders.remove(index);
        let slot = leaving.started().slot;
        leaving.finish().expect(0);
        assert_eq!(third.started().slot, slot);
        assert_eq!(fourth.has_started(), None);
        let mut staying = holders.pop().unwrap();
        staying.kill_claim();
        staying.kill_command();
        assert_eq!(fourth.started().slot, 1 - slot, "a killed one's slot is served as well");
        third.finish().expect(0);
        fourth.finish().expect(0);
        place.assert_clean();
    }
}

#[test]
fn a_waiter_is_served_at_once_when_the_holder_is_killed() {
    let place = Place::new();
    let mut holder = place.hold(&["job"]);
    let waiter = place.wait_in_line("job", &["job"]);
    holder.kill_claim();
    // As long as COMMAND lives, it is held: seen by looking for a while.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(waiter.has_started(), None);
    holder.kill_command();
    waiter.finish().expect(0);
    place.assert_clean();
}

#[test]
fn three_hundred_waiters_at_once_are_all_served_in_order() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let runs: Vec<_> = (0..300).map(|_| writer(&place, &["job"], "x")).collect();
    until("all wait", || place.waiters("job").len() == 300);
    let order: Vec<Value> = place.waiters("job").iter().map(|waiter| waiter["rev"].clone()).collect();
    assert!(order.windows(2).all(|pair| pair[0].as_u64() < pair[1].as_u64()), "a place each, in order");
    holder.finish().expect(0);
    for run in runs {
        run.wait().expect(0);
    }
    assert_eq!(lines(&place.path("order")).len(), 300);
    place.assert_clean();
}

#[test]
fn at_least_keeps_the_slot_taken_when_command_has_ended() {
    let place = Place::new();
    let start = Instant::now();
    assert_eq!(place.status(["--at-least", "3", "job", "sh", "-c", "exit 4"]), 4);
    assert!(place.processes().is_empty(), "no process is left to hold it");
    assert_eq!(place.try_once(&["job"]), 75);
    assert_eq!(place.status(["--available", "job"]), 1);
    let who = place.run(place.claim(["--who", "job"])).expect(0).stdout;
    assert!(who.starts_with("job[1/1] HELD ") && who.contains(" until=2"), "{who}");
    assert!(place.holders("job")[0]["until"].is_string());
    assert_eq!(place.status(["job", "true"]), 0);
    assert!(start.elapsed() >= Duration::from_secs(3), "a waiter had it after {:?}", start.elapsed());
    place.assert_clean();
}

#[test]
fn at_least_holds_over_a_crash_and_force_ends_it() {
    for option in [&[][..], &["--exec"], &["--tree"]] {
        let place = Place::new();
        let hold = [option, &["--at-least", "1000", "job"]].concat();
        place.crash(&hold);
        assert_eq!(place.try_once(&["job"]), 75, "{option:?}");
        assert_eq!(place.holders("job").len(), 1);
        let waiter = place.wait_in_line("job", &["job"]);
        assert_eq!(place.status(["--release", "job", "--force"]), 0);
        waiter.finish().expect(0);
        assert_eq!(place.try_once(&["job"]), 0);
        place.assert_clean();
    }
}

#[test]
fn at_least_is_shown_while_command_runs_and_a_longer_run_is_not_cut() {
    let place = Place::new();
    let hold = place.hold(&["--at-least", "1000", "other"]);
    assert!(place.holders("other")[0]["until"].is_string());
    drop(hold);
    let hold = place.hold(&["--at-least", "0.01", "job"]);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(place.try_once(&["job"]), 75);
    hold.finish().expect(0);
    assert_eq!(place.try_once(&["job"]), 0);
    let hold = place.hold(&["job"]);
    assert!(place.holders("job")[0].get("until").is_none_or(Value::is_null));
    hold.finish().expect(0);
}

#[test]
fn at_least_holds_with_acquire_too() {
    let place = Place::new();
    let script = r#""$claim" --dir "$dir" --acquire job --pid $$ --at-least 1000 > fence"#;
    place.run(place.sh(script)).expect(0);
    assert_eq!(place.try_once(&["job"]), 75, "its process has ended, its time has not");
    assert_eq!(place.status(["--release", "job", "--force"]), 0);
    assert_eq!(place.try_once(&["job"]), 0);
    place.assert_clean();
}

#[test]
fn workers_that_fire_the_same_job_run_it_once() {
    let place = Place::new();
    let runs: Vec<_> = (0..16).map(|_| writer(&place, &["--at-least", "1000", "-n", "job"], "ran")).collect();
    let mut statuses: Vec<i32> = runs.into_iter().map(|run| run.wait().code()).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [&[0][..], &[75; 15]].concat());
    assert_eq!(lines(&place.path("order")), ["ran"]);
}

#[test]
fn spread_on_one_host_is_one_holder_at_most() {
    let place = Place::new();
    let holder = place.hold(&["-m", "3", "--spread", "job"]);
    assert_eq!(place.try_once(&["-m", "3", "--spread", "job"]), 75);
    holder.finish().expect(0);
    assert_eq!(place.try_once(&["-m", "3", "--spread", "job"]), 0);
}

#[test]
fn a_waiter_steps_in_front_while_others_sleep() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let low = place.wait_in_line("job", &["--class", "low", "job"]);
    let normal = place.wait_in_line("job", &["--class", "normal", "job"]);
    let high = place.wait_in_line("job", &["--class", "high", "job"]);
    holder.finish().expect(0);
    high.started();
    assert_eq!((normal.has_started(), low.has_started()), (None, None));
    // The one in front dies while it holds, and its COMMAND with it.
    kill(high.run.pid(), Signal::KILL);
    high.kill_command();
    normal.started();
    assert_eq!(low.has_started(), None);
    normal.finish().expect(0);
    low.finish().expect(0);
    drop(high);
    place.assert_clean();
}
