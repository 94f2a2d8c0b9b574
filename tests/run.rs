//! What COMMAND gets, and how `claim` stands between it and those who signal it.

mod support;

use std::fs;
use std::time::{Duration, Instant};

use support::{CLAIM, Place, Signal, alive, end_all, kill, lines, root_with, state, until, with};

/// Runs `script` by itself, through `claim` and through `claim --exec`, each in `setting` (a shell line that ends with
/// `exec "$@"`), and expects one and the same output.
#[track_caller]
fn same_with_and_without(setting: &str, script: &str) -> String {
    let place = Place::new();
    let run = |prefix: &str| {
        let mut command = place.sh(setting);
        command.arg("sh");
        command.args(prefix.replace("CLAIM", CLAIM).replace("DIR", place.dir().to_str().unwrap()).split_whitespace());
        command.args(["sh", "-c", script]).env("out", place.path("out"));
        let outcome = place.run(command).expect(0);
        fs::read_to_string(place.path("out")).unwrap_or_default() + &outcome.stdout
    };
    let plain = run("");
    assert_ne!(plain, "");
    assert_eq!(run("CLAIM --dir DIR job --"), plain, "through claim");
    assert_eq!(run("CLAIM --exec --dir DIR job --"), plain, "through claim --exec");
    assert_eq!(place.try_once(&["job"]), 0);
    place.assert_clean();
    plain
}

#[test]
fn arguments_are_untouched() {
    let place = Place::new();
    let odd = ["", " ", "-n", "--", "--max", "a\nb", "$HOME", "*", "-m3", "\\", "\u{e9}"];
    for separator in [&["--"][..], &[]] {
        let command = ["printf", "[%s]"];
        let outcome = place.run(place.claim([&["-n", "job"], separator, &command, &odd].concat())).expect(0);
        assert_eq!(outcome.stdout, odd.map(|arg| format!("[{arg}]")).concat());
    }
    let outcome = place.run(place.claim(["job", "--", "echo", "--", "-n"])).expect(0);
    assert_eq!(outcome.stdout, "-- -n\n");
}

#[test]
fn options_may_stand_before_and_after_the_name() {
    let place = Place::new();
    let print = ["sh", "-c", "echo $CLAIM_NAME/$CLAIM_MAX"];
    for (args, expected) in [
        (&["-m", "2", "job"][..], "job/2\n"),
        (&["job", "-m", "2"], "job/2\n"),
        (&["job", "-m2", "--"], "job/2\n"),
        (&["-n", "job", "--max=2"], "job/2\n"),
        (&["-n", "job", "--max", "2", "--label", "text", "--"], "job/2\n"),
        (&["-xn", "job"], "job/1\n"),
        (&["-x", "-o", "-w5", "job"], "job/1\n"),
        (&["-e", "job"], "job/1\n"),
        (&["--exclusive", "--close", "job"], "job/1\n"),
        (&["--", "-job"], "-job/1\n"),
        (&["-n", "--", "--max"], "--max/1\n"),
    ] {
        let outcome = place.run(place.claim([args, &print].concat())).expect(0);
        assert_eq!(outcome.stdout, expected, "{args:?}");
    }
}

#[test]
fn claim_itself_prints_nothing() {
    let place = Place::new();
    for quiet in [&[][..], &["-q"]] {
        let outcome = place.run(place.claim([quiet, &["job", "true"]].concat())).expect(0);
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("", ""));
    }
}

#[test]
fn verbose_says_what_happens_and_quiet_not_even_what_was_not_had() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let waiter = place.wait_in_line("job", &["-v", "job"]);
    assert_eq!(place.run(place.claim(["-q", "-n", "job", "true"])).expect(75).stderr, "");
    assert_ne!(place.run(place.claim(["-q", "-n", "job"])).expect(64).stderr, "", "errors are told all the same");
    holder.finish().expect(0);
    let outcome = waiter.finish().expect(0);
    for word in ["wait", "acquired", "released"] {
        assert!(outcome.stderr.contains(word), "{word}: {}", outcome.stderr);
    }
    assert!(outcome.stderr.lines().all(|line| line.starts_with("claim: job: ")), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "");
}

#[test]
fn not_had_is_told_with_holder_age_and_number_of_waiters() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let _waiters = [place.wait_in_line("job", &["job"]), place.wait_in_line("job", &["job"])];
    let line = place.run(place.claim(["-n", "job", "true"])).expect(75).stderr;
    assert!(line.contains(&format!("{}", holder.run.pid())), "{line}");
    assert!(line.contains('2'), "two wait: {line}");
    assert!(line.starts_with("claim: job: ") && line.ends_with('\n') && line.lines().count() == 1, "{line}");
}

#[test]
fn descriptors_are_those_that_claim_got() {
    let list = r#"find /proc/$$/fd -type l -printf "%f %l\n" > "$out"; sort -o "$out" "$out""#;
    for setting in [
        r#"exec "$@""#,
        r#"exec 7> seven 8< /dev/null; exec "$@""#,
        r#"exec "$@" <&-"#,
        r#"exec "$@" >&-"#,
        r#"exec "$@" 2>&-"#,
        r#"exec "$@" <&- >&- 2>&-"#,
        r#"exec "$@" <&- 2>&- 7< /dev/null"#,
    ] {
        // Paths of the place and of its output files differ from run to run.
        let place_free = format!(
            r#"{list}; sed -i -e "s|$root|ROOT|" -e "s|[.:][^ ]*[0-9]]*$||" "$out" > /dev/null 2>&1 < /dev/null"#
        );
        same_with_and_without(setting, &place_free);
    }
}

#[test]
fn standard_output_with_nobody_to_read_it_is_commands_affair() {
    let place = Place::new();
    let outcome = place.run(place.sh(r#"{ "$claim" --dir "$dir" job yes; echo $? >&2; } | head -1"#)).expect(0);
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("y\n", "141\n"));
}

#[test]
fn signal_mask_and_ignored_signals_are_those_that_claim_got() {
    with(&["env", "grep"]);
    for setting in [
        r#"exec "$@""#,
        r#"exec env --ignore-signal=HUP,USR1,PIPE "$@""#,
        r#"exec env --ignore-signal=TERM,INT,QUIT,USR2,WINCH,CONT,TSTP,TTOU "$@""#,
        r#"exec env --ignore-signal=CHLD "$@""#,
        r#"exec env --block-signal=USR1,HUP,PIPE,CHLD "$@""#,
        r#"exec env --block-signal=TERM,INT,CONT,TSTP,WINCH,RTMIN+3 "$@""#,
        r#"exec env --block-signal "$@""#,
        r#"exec env --default-signal "$@""#,
    ] {
        same_with_and_without(setting, "exec grep -E 'Sig(Blk|Ign|Cgt)|ShdPnd|Seccomp:|NoNewPrivs' /proc/self/status");
    }
}

#[test]
fn directory_umask_limits_niceness_and_group_are_those_that_claim_got() {
    let script = r#"pwd; umask; ulimit -a; nice; cat /proc/$$/oom_score_adj /proc/$$/comm
        cut -d ' ' -f 5-8 /proc/$$/stat; cat /proc/$$/timerslack_ns 2> /dev/null; grep -E 'Cap|Groups|THP' /proc/$$/status"#;
    same_with_and_without(r#"cd /; umask 027; ulimit -c 0 -n 100; exec nice -n 3 "$@""#, script);
    same_with_and_without(
        r#"mkdir gone; cd gone; rmdir ../gone; exec "$@""#,
        r#"cd ..; umask; readlink /proc/$$/cwd > "$out""#,
    );
}

#[test]
fn the_environment_is_that_of_claim_and_the_variables_of_the_claim() {
    same_with_and_without(
        r#"export ODD="a
b" EMPTY= MORE="$(printf 'x%.0s' $(seq 5000))"; exec "$@""#,
        r#"env | grep -v -e ^CLAIM_ -e ^_= | sort"#,
    );
    let place = Place::new();
    let mut fences = Vec::new();
    for _ in 0..3 {
        let mut command = place.command(CLAIM);
        command.current_dir(place.root()).args(["--dir", "dir", "-m", "3", "a b", "env"]);
        command.env("CLAIM_NAME", "stale").env("CLAIM_LEASE", "stale").env("CLAIM_SLOT", "9");
        let outcome = place.run(command).expect(0);
        let value = |name: &str| {
            let prefix = format!("{name}=");
            let found: Vec<&str> = outcome.stdout.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
            assert!(found.len() <= 1, "{name} is there {} times", found.len());
            found.first().map(|value| (*value).to_owned())
        };
        assert_eq!(value("CLAIM_NAME").as_deref(), Some("a b"));
        assert_eq!(value("CLAIM_MAX").as_deref(), Some("3"));
        assert_eq!(value("CLAIM_SLOT").as_deref(), Some("0"));
        assert_eq!(value("CLAIM_BACKEND").as_deref(), Some("local"));
        assert_eq!(
            value("CLAIM_DIR").as_deref(),
            Some(place.dir().to_str().unwrap()),
            "absolute: COMMAND may go elsewhere"
        );
        fences.push(value("CLAIM_FENCE").unwrap().parse::<u64>().unwrap());
    }
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
}

#[test]
fn slots_are_numbered_from_zero() {
    let place = Place::new();
    let mut holds: Vec<_> = (0..3).map(|_| place.hold(&["-m", "3", "job"])).collect();
    let mut slots: Vec<u32> = holds.iter().map(|hold| hold.started().slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2]);
    let free = holds.remove(1);
    let slot = free.started().slot;
    free.finish().expect(0);
    assert_eq!(place.hold(&["-m", "3", "job"]).started().slot, slot);
}

/// COMMAND writes down every signal it gets, until `done` exists.
const TRAPS: &str = r#"for s in TERM HUP INT QUIT USR1 USR2 WINCH CONT; do trap "echo $s >> signals" $s; done
    : > signals; until [ -e done ]; do sleep 0.01; done; exit 3"#;

#[test]
fn signals_sent_to_claim_are_passed_on_once() {
    let place = Place::new();
    let mut command = place.claim(["job", "sh", "-c", TRAPS]);
    command.current_dir(place.root());
    let run = place.start(command);
    until("COMMAND runs", || place.path("signals").exists());
    let mut expected = Vec::new();
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
        (Signal::CONT, "CONT"),
        (Signal::TERM, "TERM"),
    ] {
        run.signal(signal);
        expected.push(name.to_owned());
        until(&format!("{name} reaches COMMAND"), || lines(&place.path("signals")).len() >= expected.len());
        assert_eq!(lines(&place.path("signals")), expected, "in order, each once");
    }
    fs::write(place.path("done"), "").unwrap();
    run.wait().expect(3);
    assert_eq!(lines(&place.path("signals")), expected);
}

#[test]
fn a_signal_that_ends_command_ends_claim_with_its_number() {
    let place = Place::new();
    for (signal, status) in
        [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130), (Signal::QUIT, 131), (Signal::USR1, 138)]
    {
        let hold = place.hold(&["job"]);
        hold.run.signal(signal);
        hold.run.wait().expect(status);
        assert_eq!(place.try_once(&["job"]), 0);
    }
}

#[test]
fn a_signal_that_ends_claim_while_it_waits_starts_nothing_and_leaves_no_place_in_the_queue() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    for (signal, status) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130), (Signal::QUIT, 131)] {
        let waiter = place.wait_in_line("job", &["job"]);
        waiter.run.signal(signal);
        let ready = waiter.has_started();
        waiter.run.wait().expect(status);
        assert_eq!((ready, place.waiters("job").len()), (None, 0));
    }
    holder.finish().expect(0);
    place.assert_clean();
}

#[test]
fn shell_lines_run_through_the_users_shell() {
    let place = Place::new();
    let outcome = |shell: Option<&str>, args: &[&str]| {
        let mut command = place.claim(args);
        match shell {
            Some(shell) => command.env("SHELL", shell),
            None => command.env_remove("SHELL"),
        };
        place.run(command)
    };
    assert_eq!(outcome(None, &["job", "-c", "echo $0 | sed 's|.*/||'; exit 4"]).expect(4).stdout, "sh\n");
    with(&["bash"]);
    assert_eq!(outcome(Some("/bin/bash"), &["job", "-c", "echo ${BASH_VERSION:+bash}"]).expect(0).stdout, "bash\n");
    assert_eq!(outcome(Some("/bin/bash"), &["-n", "-c", "echo $CLAIM_NAME", "job"]).expect(0).stdout, "job\n");
    fs::write(place.path("shell"), "#!/bin/sh\necho shell \"$@\"\n").unwrap();
    support::chmod(&place.path("shell"), 0o755);
    assert_eq!(outcome(place.path("shell").to_str(), &["job", "-c", "a  b"]).expect(0).stdout, "shell -c a  b\n");
}

#[test]
fn a_script_without_a_first_line_runs_as_with_flock_and_timeout() {
    let place = Place::new();
    fs::write(place.path("script"), "echo by sh\n").unwrap();
    support::chmod(&place.path("script"), 0o755);
    let outcome = place.run(place.claim(["job", place.path("script").to_str().unwrap()])).expect(0);
    assert_eq!(outcome.stdout, "by sh\n");
}

#[test]
fn with_exec_claim_becomes_command() {
    let place = Place::new();
    for option in ["--exec", "-F", "--no-fork"] {
        let mut hold = place.hold(&[option, "job"]);
        assert_eq!(hold.started().pid, hold.run.pid());
        assert_eq!(place.try_once(&["job"]), 75);
        assert_eq!(place.holders("job")[0]["pid"], hold.run.pid());
        hold.let_go();
        hold.run.wait().expect(0);
        assert_eq!(place.try_once(&["job"]), 0, "free with the end of that process");
        let mut hold = place.hold(&[option, "job"]);
        hold.kill_claim();
        assert_eq!(place.try_once(&["job"]), 0);
        place.assert_clean();
    }
}

#[test]
fn kill_after_kills_a_command_that_ignores_the_passed_on_sigterm() {
    let place = Place::new();
    for tree in [&[][..], &["--tree"]] {
        let script = r#"trap '' TERM; echo $$ > pid; until [ -e done ]; do sleep 0.01; done"#;
        let mut command = place.claim([&["--kill-after", "0.2"], tree, &["job", "sh", "-c", script]].concat());
        command.current_dir(place.root());
        let run = place.start(command);
        until("COMMAND runs", || !lines(&place.path("pid")).is_empty());
        let sent = Instant::now();
        run.signal(Signal::TERM);
        run.wait().expect(137);
        assert!(sent.elapsed() >= Duration::from_millis(200), "not before the time is over");
        assert_eq!(place.try_once(&["job"]), 0);
        fs::remove_file(place.path("pid")).unwrap();
    }
}

#[test]
fn without_kill_after_nothing_is_killed_and_nothing_without_sigterm() {
    let place = Place::new();
    for (options, signal) in [(&[][..], Signal::TERM), (&["--kill-after", "0.1"], Signal::INT)] {
        let mut command = place.claim([options, &["job", "sh", "-c", TRAPS]].concat());
        command.current_dir(place.root());
        let run = place.start(command);
        until("COMMAND runs", || place.path("signals").exists());
        run.signal(signal);
        until("the signal arrives", || !lines(&place.path("signals")).is_empty());
        // That nothing comes can only be seen by looking for a while.
        std::thread::sleep(Duration::from_millis(600));
        fs::write(place.path("done"), "").unwrap();
        run.wait().expect(3);
        fs::remove_file(place.path("done")).unwrap();
        fs::remove_file(place.path("signals")).unwrap();
    }
}

/// COMMAND that leaves a daemon (double-forked, in a session of its own) which writes its pid to `daemon` and runs
/// until `done` exists, and itself exits with 4.
const DAEMON: &str = r#"(setsid sh -c 'echo $$ > daemon; until [ -e done ]; do sleep 0.01; done' > /dev/null 2>&1 < /dev/null &)
    until [ -s daemon ]; do sleep 0.01; done; exit 4"#;

#[test]
fn without_tree_a_daemon_does_not_hold() {
    let place = Place::new();
    let mut command = place.claim(["job", "sh", "-c", DAEMON]);
    command.current_dir(place.root());
    place.run(command).expect(4);
    assert_eq!(place.try_once(&["job"]), 0);
}

#[test]
fn with_tree_the_claim_is_held_until_the_last_daemon_has_ended() {
    let place = Place::new();
    let mut command = place.claim(["--tree", "job", "sh", "-c", DAEMON]);
    command.current_dir(place.root());
    let mut run = place.start(command);
    until("the daemon runs", || !lines(&place.path("daemon")).is_empty());
    let holder = place.holders("job")[0]["command_pid"].as_i64().map(|pid| i32::try_from(pid).unwrap());
    until("COMMAND itself has ended", || !holder.is_some_and(alive));
    assert_eq!(place.try_once(&["job"]), 75);
    assert!(run.ended().is_none());
    fs::write(place.path("done"), "").unwrap();
    run.wait().expect(4);
    assert_eq!(place.try_once(&["job"]), 0);
    place.assert_clean();
}

#[test]
fn with_tree_the_daemon_holds_also_when_claim_is_killed() {
    let place = Place::new();
    let mut command = place.claim(["--tree", "job", "sh", "-c", DAEMON]);
    command.current_dir(place.root());
    let run = place.start(command);
    until("the daemon runs", || !lines(&place.path("daemon")).is_empty());
    run.signal(Signal::KILL);
    run.wait().expect(137);
    let daemon: i32 = lines(&place.path("daemon"))[0].parse().unwrap();
    until("COMMAND has ended", || place.processes() == [daemon] || place.processes().len() <= 2);
    assert_eq!(place.try_once(&["job"]), 75);
    assert_eq!(place.holders("job").len(), 1);
    end_all(|| place.processes());
    assert_eq!(place.try_once(&["job"]), 0, "had at once");
    place.assert_clean();
}

#[test]
fn kill_after_with_tree_kills_all_that_command_started() {
    let place = Place::new();
    let daemon = DAEMON
        .replace("exit 4", "until [ -e done ]; do sleep 0.01; done")
        .replace("echo $$", "trap \"\" TERM; echo $$");
    let mut command = place.claim(["--tree", "--kill-after", "100ms", "job", "sh", "-c", &daemon]);
    command.current_dir(place.root());
    let run = place.start(command);
    until("the daemon runs", || !lines(&place.path("daemon")).is_empty());
    run.signal(Signal::TERM);
    run.wait().expect(143);
    assert!(!alive(lines(&place.path("daemon"))[0].parse().unwrap()), "the daemon is dead");
    assert_eq!(place.try_once(&["job"]), 0);
    place.assert_clean();
}

#[test]
fn a_killed_claim_holds_as_long_as_command_lives_and_is_free_at_once_afterwards() {
    let place = Place::new();
    for _ in 0..5 {
        let mut hold = place.hold(&["job"]);
        hold.kill_claim();
        for _ in 0..3 {
            assert_eq!(place.try_once(&["job"]), 75);
        }
        assert_eq!(place.holders("job").len(), 1);
        let pid = hold.started().pid;
        hold.let_go();
        until("COMMAND has ended", || !alive(pid));
        assert_eq!(place.try_once(&["job"]), 0, "had at once");
        place.assert_clean();
    }
}

#[test]
fn a_stopped_holder_still_holds() {
    let place = Place::new();
    let hold = place.hold(&["job"]);
    support::stop(hold.run.pid());
    support::stop(hold.started().pid);
    assert_eq!(place.try_once(&["job"]), 75);
    kill(hold.started().pid, Signal::CONT);
    kill(hold.run.pid(), Signal::CONT);
    hold.finish().expect(0);
}

#[test]
fn a_zombie_holds_nothing() {
    let place = Place::new();
    // COMMAND's parent is killed, and nobody reaps COMMAND itself: its new parent is a shell that does not wait.
    support::mkfifo(&place.path("gate"));
    let script = r#""$claim" --exec --dir "$dir" job sh -c 'echo $$ > pid' & exec sh -c 'read _ < gate'"#;
    let run = place.start(place.sh(script));
    until("a zombie", || lines(&place.path("pid")).first().is_some_and(|pid| state(pid.parse().unwrap()) == Some('Z')));
    assert_eq!(place.try_once(&["job"]), 0);
    assert_eq!(place.who("job"), Vec::<serde_json::Value>::new());
    fs::write(place.path("gate"), "\n").unwrap();
    run.wait().expect(0);
}

#[test]
fn a_pid_used_again_is_not_the_holder() {
    if !root_with(&["unshare"]) {
        return;
    }
    // In a pid namespace of its own the next pid can be chosen.
    let place = Place::new();
    let script = r#""$claim" --dir "$dir" --exec job sleep 1000 & pid=$!
        until "$claim" --dir "$dir" --who job > /dev/null; do :; done
        kill -KILL $pid; wait $pid; echo $((pid - 1)) > /proc/sys/kernel/ns_last_pid
        sleep 1000 & echo $((pid - $!)); "$claim" --dir "$dir" -n job true; echo $?; kill -KILL $!"#;
    let mut command = place.command("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script]);
    command.env("claim", CLAIM).env("dir", place.dir());
    assert_eq!(place.run(command).stdout, "0\n0\n");
}

/// It is COMMAND that one can do something about then.
#[test]
fn when_claim_was_killed_the_message_names_the_process_that_holds() {
    let place = Place::new();
    let mut hold = place.hold(&["job"]);
    let pids = |place: &Place| {
        let holder = &place.holders("job")[0];
        (holder["pid"].as_i64().unwrap(), holder["command_pid"].as_i64().unwrap())
    };
    let refused = |place: &Place| place.run(place.claim(["-n", "job", "true"])).expect(75).stderr;
    let (claim, command) = pids(&place);
    let said = refused(&place);
    assert!(said.contains(&format!("held by pid {claim} ")), "{said}");
    hold.kill_claim();
    let said = refused(&place);
    assert!(said.contains(&format!("held by pid {command} ")), "{said}");
    assert_eq!(pids(&place), (claim, command), "--who goes on naming both");
}
