//! Every row of the table of exit statuses.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use support::{CLAIM, Place, root_with, strace, until, with};

#[test]
fn commands_own_status_is_the_status() {
    let place = Place::new();
    for status in [0, 1, 3, 64, 75, 127, 255] {
        assert_eq!(place.status(["job", "sh", "-c", &format!("exit {status}")]), status);
    }
}

#[test]
fn a_command_killed_by_a_signal_is_128_and_its_number() {
    let place = Place::new();
    for (signal, number) in
        [("HUP", 1), ("INT", 2), ("KILL", 9), ("USR1", 10), ("SEGV", 11), ("PIPE", 13), ("TERM", 15)]
    {
        let outcome = place.run(place.claim(["job", "sh", "-c", &format!("ulimit -c 0; kill -{signal} $$")]));
        assert_eq!(outcome.code(), 128 + number, "SIG{signal}");
    }
    place.assert_clean();
}

#[test]
fn not_had_is_75_or_what_conflict_exit_code_says() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    for not_had in
        [&["-n"][..], &["--nonblock"], &["-w", "0"], &["-w", "50ms"], &["--wait=0.05"], &["--queue-size", "0"]]
    {
        let mut args = [not_had, &["job", "touch"]].concat();
        let touched = place.path("ran");
        args.push(touched.to_str().unwrap());
        let outcome = place.run(place.claim(&args)).expect(75);
        assert!(outcome.stderr.starts_with("claim: job: "), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
        assert!(outcome.stderr.contains(&holder.run.pid().to_string()), "names the holder: {}", outcome.stderr);
        for status in ["0", "1", "42", "255"] {
            let args = [not_had, &["-E", status, "job", "false"]].concat();
            assert_eq!(place.status(&args).to_string(), status);
        }
        assert_eq!(place.status([not_had, &["--conflict-exit-code", "7", "job", "false"]].concat()), 7);
        assert!(!touched.exists(), "COMMAND ran");
    }
    holder.finish().expect(0);
    assert_eq!(place.status(["-n", "-E", "9", "job", "sh", "-c", "exit 3"]), 3, "-E is for what was not had only");
}

#[test]
fn bad_usage_is_64_and_runs_nothing() {
    let place = Place::new();
    let ran = place.path("ran");
    let touch = ["touch", ran.to_str().unwrap()];
    let long = "x".repeat(4097);
    let with_command: &[&[&str]] = &[
        &["--no-such-option", "job"],
        &["-Z", "job"],
        &[""],
        &[&long],
        &["-w", "-1", "job"],
        &["-w", "", "job"],
        &["-w", "soon", "job"],
        &["-w", "1x", "job"],
        &["-w", "1.2.3", "job"],
        &["-w", "nan", "job"],
        &["--at-least", "-1", "job"],
        &["--at-least", "", "job"],
        &["--kill-after", "x", "job"],
        &["--kill-after=-1s", "job"],
        &["-n", "-w", "1", "job"],
        &["-E", "256", "job"],
        &["-E", "-1", "job"],
        &["-E", "x", "job"],
        &["-E", "", "job"],
        &["--class", "urgent", "job"],
        &["--class", "", "job"],
        &["-m", "0", "job"],
        &["-m", "-1", "job"],
        &["-m", "two", "job"],
        &["-m", "99999999999999999999", "job"],
        &["--queue-size", "-1", "job"],
        &["--queue-size", "many", "job"],
        &["--json", "job"],
        &["--watch", "job"],
        &["-c", "true", "job"],
    ];
    for args in with_command {
        let outcome = place.run(place.claim([args, &touch[..]].concat()));
        assert_eq!(outcome.code(), 64, "{args:?}: {}", outcome.stderr);
        assert!(outcome.stderr.starts_with("claim: ") || outcome.stderr.starts_with("error: "), "{}", outcome.stderr);
        assert_eq!(outcome.stdout, "", "{args:?}");
    }
    let without: &[&[&str]] = &[
        &[],
        &["job"],
        &["job", "--"],
        &["job", "-c"],
        &["job", "-c", "true", "more"],
        &["--acquire", "job"],
        &["--acquire", "job", "--pid", "0"],
        &["--acquire", "job", "--pid", "-5"],
        &["--acquire", "job", "--pid", "me"],
        &["--acquire", "--pid", "1"],
        &["--release", "job"],
        &["--release", "--force"],
        &["--available"],
        &["--master"],
        &["--master", "--"],
        &["--who", "job", "more"],
        &["--acquire", "job", "--release", "job", "--pid", "1"],
        &["--check"],
        &["--check", "job"],
    ];
    for args in without {
        let outcome = place.run(place.claim(*args));
        assert_eq!(outcome.code(), 64, "{args:?}: {}", outcome.stderr);
        assert_ne!(outcome.stderr, "", "{args:?}");
    }
    assert!(!ran.exists(), "COMMAND ran");
}

#[test]
fn durations_in_all_their_spellings_are_understood() {
    let place = Place::new();
    for wait in ["500ms", "2.5", "10s", "1m30s", "2h", "0", "0.001", "99999999999", "200000000h"] {
        assert_eq!(place.status(["-w", wait, "job", "true"]), 0, "{wait}");
    }
}

#[test]
fn acquiring_for_no_such_process_is_64() {
    let place = Place::new();
    let gone = place.run(place.sh("sh -c 'echo $$'")).stdout;
    assert_eq!(place.status(["--acquire", "job", "--pid", gone.trim()]), 64);
    assert_eq!(place.try_once(&["job"]), 0);
    place.assert_clean();
}

#[test]
fn a_record_that_cannot_be_read_is_65() {
    let place = Place::new();
    assert_eq!(place.try_once(&["job"]), 0);
    fs::write(place.path("dir/format"), "claim 9999\n").unwrap();
    let outcome = place.run(place.claim(["-n", "job", "true"])).expect(65);
    assert!(outcome.stderr.contains("format"), "{}", outcome.stderr);
}

/// What the system refuses is 71, with the path and the reason, and never "held".
#[test]
fn a_full_file_system_is_71() {
    if !root_with(&["unshare", "mount"]) {
        return;
    }
    for options in ["size=64k,nr_inodes=999", "size=1m,nr_inodes=12"] {
        for used_before in [false, true] {
            let place = Place::new();
            let mut command = place.command("unshare");
            let script = r#"
                mkdir "$2/mnt" && mount -t tmpfs -o "mode=700,$3" none "$2/mnt" || exit 99
                [ "$4" = false ] || "$1" --dir "$2/mnt" earlier true || exit 98
                i=0; while true > "$2/mnt/fill$i"; do i=$((i+1)); [ $i -lt 5000 ] || break; done 2> /dev/null
                cat /dev/zero > "$2/mnt/fill0" 2> /dev/null
                [ "$3" = size=1m,nr_inodes=12 ] || rm "$2"/mnt/fill[1-9]*
                "$1" --dir "$2/mnt" -n job touch "$2/ran""#;
            command.args(["--mount", "sh", "-c", script, "sh", CLAIM]).arg(place.root());
            command.args([options, &used_before.to_string()]);
            let outcome = place.run(command);
            assert_eq!(outcome.code(), 71, "{options}, used before: {used_before}; {}", outcome.stderr);
            assert!(outcome.stderr.contains("No space left on device"), "{}", outcome.stderr);
            assert!(outcome.stderr.contains("/mnt"), "{}", outcome.stderr);
            assert!(!place.path("ran").exists());
        }
    }
}

#[test]
fn a_read_only_file_system_is_71() {
    if !root_with(&["unshare", "mount"]) {
        return;
    }
    for used_before in ["true", "false"] {
        let place = Place::new();
        let script = r#"
            mkdir -m 700 "$2/mnt" && mount -t tmpfs -o mode=700 none "$2/mnt" || exit 99
            [ "$3" = false ] || "$1" --dir "$2/mnt" earlier true || exit 98
            mount -o remount,ro "$2/mnt" || exit 97
            "$1" --dir "$2/mnt" --available job; [ $? = 71 ] || exit 96
            "$1" --dir "$2/mnt" -n job touch "$2/ran""#;
        let mut command = place.command("unshare");
        command.args(["--mount", "sh", "-c", script, "sh", CLAIM]).arg(place.root()).arg(used_before);
        let outcome = place.run(command).expect(71);
        assert!(outcome.stderr.contains("Read-only file system"), "{}", outcome.stderr);
        assert!(!place.path("ran").exists());
    }
}

/// No file system without hard links can be counted on in a test (vfat needs a module), so the call is made to answer
/// what vfat, exFAT, FUSE and a Lustre directory at its limit answer.
#[test]
fn a_file_system_without_hard_links_is_71() {
    for error in ["EPERM", "EOPNOTSUPP", "ENOSYS", "EXDEV", "EMLINK", "EIO", "EDQUOT", "EACCES"] {
        let place = Place::new();
        let ran = place.path("ran");
        let args = ["-n", "job", "touch", ran.to_str().unwrap()];
        let inject = [format!("linkat,link:error={error}")];
        let outcome = place.run(strace::claim(&place, &place.path("log"), &inject, &args));
        assert_eq!(outcome.code(), 71, "{error}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(place.dir().to_str().unwrap()), "the path is named: {}", outcome.stderr);
        assert!(!ran.exists());
        place.assert_clean();
    }
}

#[test]
fn too_many_open_files_is_71() {
    let place = Place::new();
    let outcome = place.run(place.sh(r#"ulimit -n 3; exec "$claim" --dir "$dir" -n job touch ran"#)).expect(71);
    assert!(outcome.stderr.contains("Too many open files"), "{}", outcome.stderr);
    assert!(!place.path("ran").exists());
}

#[test]
fn no_process_for_command_is_71_and_releases() {
    if !root_with(&["setpriv", "prlimit"]) {
        return;
    }
    let place = Place::public();
    fs::create_dir(place.path("mine")).unwrap();
    std::os::unix::fs::chown(place.path("mine"), Some(54321), Some(54321)).unwrap();
    let script = r#"c="setpriv --reuid 54321 --regid 54321 --clear-groups"
        $c prlimit --nproc=0 bin/claim --dir mine/dir -n job touch ran; echo $?
        $c bin/claim --dir mine/dir -n job true; echo $?"#;
    let outcome = place.run(place.sh(script));
    assert_eq!(outcome.stdout, "71\n0\n", "{}", outcome.stderr);
}

#[test]
fn an_events_file_that_cannot_be_opened_is_71_before_command() {
    let place = Place::new();
    for file in [place.path("missing/events"), place.root().to_path_buf()] {
        let outcome = place.run(place.claim(["--events", file.to_str().unwrap(), "job", "touch", "/proc/none"]));
        assert_eq!(outcome.code(), 71, "{}", outcome.stderr);
        assert!(outcome.stderr.contains(file.to_str().unwrap()), "{}", outcome.stderr);
        assert!(!outcome.stderr.contains("touch:"), "COMMAND ran: {}", outcome.stderr);
    }
    assert_eq!(place.try_once(&["job"]), 0);
    place.assert_clean();
}

#[test]
fn a_directory_of_mine_that_may_not_be_entered_or_written_is_71() {
    if !root_with(&["setpriv"]) {
        return;
    }
    let place = Place::public();
    for mode in [0o000, 0o500, 0o600] {
        let dir = place.path(format!("mode{mode:o}"));
        fs::create_dir(&dir).unwrap();
        std::os::unix::fs::chown(&dir, Some(65534), Some(65534)).unwrap();
        support::chmod(&dir, mode);
        let script = r#"setpriv --reuid 65534 --regid 65534 --clear-groups bin/claim --dir "$0" -n job true"#;
        let mut command = place.sh(script);
        command.arg(&dir);
        let outcome = place.run(command);
        assert_eq!(outcome.code(), 71, "mode {mode:o}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("Permission denied"), "{}", outcome.stderr);
    }
}

#[test]
fn a_directory_that_cannot_be_made_or_is_none_is_73() {
    let place = Place::new();
    fs::write(place.path("file"), "").unwrap();
    support::mkfifo(&place.path("fifo"));
    for dir in ["missing/dir", "file", "file/dir", "fifo"] {
        let mut command = place.command(CLAIM);
        command.arg("--dir").arg(place.path(dir)).args(["-n", "job", "true"]);
        let outcome = place.run(command);
        assert_eq!(outcome.code(), 73, "{dir}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(place.path(dir).to_str().unwrap()), "{}", outcome.stderr);
    }
    assert!(!place.path("missing").exists(), "--dir makes the last part only");
}

#[test]
fn an_unsafe_directory_is_77() {
    let place = Place::new();
    fs::create_dir(place.path("real")).unwrap();
    support::chmod(&place.path("real"), 0o700);
    symlink(place.path("real"), place.path("link")).unwrap();
    symlink(place.path("nowhere"), place.path("dangling")).unwrap();
    for (name, mode) in [("o+w", 0o702), ("all", 0o777), ("sticky", 0o1777), ("setgid", 0o2777)] {
        fs::create_dir(place.path(name)).unwrap();
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for dir in ["link", "dangling", "o+w", "all", "sticky", "setgid"] {
        for variable in [false, true] {
            let mut command = place.command(CLAIM);
            if variable {
                command.env("CLAIM_DIR", place.path(dir));
            } else {
                command.arg("--dir").arg(place.path(dir));
            }
            command.args(["-n", "job", "true"]);
            let outcome = place.run(command);
            assert_eq!(outcome.code(), 77, "{dir}: {}", outcome.stderr);
            assert!(outcome.stderr.contains(place.path(dir).to_str().unwrap()), "{}", outcome.stderr);
        }
    }
    assert!(!place.path("nowhere").exists());
    assert_eq!(support::listing(&place.path("real")), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_directory_of_a_foreign_owner_is_77_for_root_too() {
    if !root_with(&["setpriv"]) {
        return;
    }
    let place = Place::public();
    // Owner, group, mode of the directory; then the user that comes: 0 root, or 1000 with group 1000.
    let foreign = [(2000, 2000, 0o700, 0), (2000, 2000, 0o2770, 0), (2000, 1000, 0o750, 1000), (0, 0, 0o755, 1000)];
    for (number, (owner, group, mode, comer)) in foreign.into_iter().enumerate() {
        let dir = place.path(format!("dir{number}"));
        fs::create_dir(&dir).unwrap();
        std::os::unix::fs::chown(&dir, Some(owner), Some(group)).unwrap();
        support::chmod(&dir, mode);
        let user = format!("setpriv --reuid {comer} --regid {comer} --clear-groups");
        let mut command = place.sh(&format!(r#"{user} bin/claim --dir "$0" -n job true"#));
        command.arg(&dir);
        let outcome = place.run(command);
        assert_eq!(outcome.code(), 77, "{owner}:{group} {mode:o} for {comer}: {}", outcome.stderr);
    }
}

#[test]
fn what_a_process_above_holds_is_78_and_comes_before_75() {
    let place = Place::new();
    for inner in ["", "-n", "-w 1", "-n -E 9", "--queue-size 0"] {
        let script = format!(r#""$claim" --dir "$dir" job -- sh -c '"$claim" --dir "$dir" {inner} job touch ran'"#);
        let outcome = place.run(place.sh(&script)).expect(78);
        assert!(outcome.stderr.contains("claim: job: "), "{}", outcome.stderr);
    }
    let script = r#""$claim" --dir "$dir" --acquire job --pid $$ > fence && "$claim" --dir "$dir" -n job touch ran"#;
    place.run(place.sh(script)).expect(78);
    assert!(!place.path("ran").exists());
    assert_eq!(place.try_once(&["job"]), 0);
    place.assert_clean();
}

#[test]
fn with_two_slots_only_the_third_nested_one_is_78() {
    let place = Place::new();
    let script = r#"c="$claim --dir $dir -m 2 -n job --"; $c $c true; echo $?; $c $c $c true; echo $?"#;
    assert_eq!(place.run(place.sh(script)).stdout, "0\n78\n");
}

#[test]
fn other_names_may_be_nested() {
    let place = Place::new();
    assert_eq!(place.run(place.sh(r#"c="$claim --dir $dir"; $c -n a $c -n b $c -m 2 -n a true"#)).code(), 0);
}

/// Each of `names` is held by one whose COMMAND wants the next one; returns the statuses.
fn ring(place: &Place, names: &[&str]) -> Vec<i32> {
    let mut runs = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let next = names[(index + 1) % names.len()];
        let script = format!(
            r#"exec "$claim" --dir "$dir" {name} -- sh -c '
                : > up.{name}
                while [ "$(ls up.* | wc -l)" -lt {count} ]; do sleep 0.01; done
                exec "$claim" --dir "$dir" -w 50 {next} true'"#,
            count = names.len()
        );
        runs.push(place.start(place.sh(&script)));
    }
    let statuses = runs.into_iter().map(|run| run.wait().code()).collect();
    for name in names {
        fs::remove_file(place.path(format!("up.{name}"))).unwrap();
    }
    statuses
}

#[test]
fn a_wait_that_would_close_a_ring_is_78_and_the_others_go_on() {
    let place = Place::new();
    for round in 0..10 {
        for names in [&["a", "b"][..], &["a", "b", "c"]] {
            let mut statuses = ring(&place, names);
            statuses.sort_unstable();
            let mut expected = vec![0; names.len() - 1];
            expected.push(78);
            assert_eq!(statuses, expected, "round {round}, {names:?}");
        }
    }
    place.assert_clean();
}

#[test]
fn a_ring_is_spelled_out() {
    let place = Place::new();
    let first = r#"exec "$claim" --dir "$dir" a -- "$claim" --dir "$dir" b true"#;
    let second = r#"exec "$claim" --dir "$dir" b -- sh -c ': > up; until [ -e go ]; do sleep 0.01; done; exec "$claim" --dir "$dir" a true'"#;
    let second = place.start(place.sh(second));
    until("b is held", || place.path("up").exists());
    let first = place.start(place.sh(first));
    until("a's holder waits for b", || place.waiters("b").len() == 1);
    fs::write(place.path("go"), "").unwrap();
    let outcome = second.wait().expect(78);
    let line = outcome.stderr.lines().find(|line| line.starts_with("claim: a: ")).expect("a line about it");
    assert!(line.matches('b').count() > 0, "the other name of the ring is named: {line}");
    first.wait().expect(0);
}

#[test]
fn a_command_that_cannot_be_run_is_126_and_the_claim_is_released() {
    let place = Place::new();
    fs::write(place.path("plain"), "#!/bin/sh\n").unwrap();
    for command in ["plain", "."] {
        for option in ["-n", "-nF", "-n --tree"] {
            let mut args: Vec<String> = option.split(' ').map(str::to_owned).collect();
            args.extend(["job".into(), "--".into(), place.path(command).to_str().unwrap().to_owned()]);
            let outcome = place.run(place.claim(&args));
            assert_eq!(outcome.code(), 126, "{command} {option}: {}", outcome.stderr);
            assert!(outcome.stderr.starts_with("claim: job: "), "{}", outcome.stderr);
            place.assert_clean();
        }
    }
}

#[test]
fn a_command_that_is_not_found_is_127_and_the_claim_is_released() {
    let place = Place::new();
    for command in ["no-such-command", "/no/such/command", "./no-such-command", ""] {
        // Nothing has run that --at-least could keep others from running.
        for option in ["-n", "-nF", "-n --tree", "-n --at-least 1000", "-nF --at-least 1000"] {
            let mut args: Vec<&str> = option.split(' ').collect();
            args.extend(["job", "--", command]);
            let mut claim = place.claim(&args);
            // A directory that may not be searched would make it 126, as with all that use execvp(3).
            claim.env("PATH", "/usr/bin:/bin");
            let outcome = place.run(claim);
            assert_eq!(outcome.code(), 127, "{command} {option}: {}", outcome.stderr);
            assert!(outcome.stderr.starts_with("claim: job: "), "{}", outcome.stderr);
            place.assert_clean();
        }
    }
}

#[test]
fn a_release_that_fails_at_the_end_is_commands_status_and_one_line() {
    let place = Place::new();
    with(&["strace"]);
    let inject = ["unlinkat,unlink:error=EIO".to_owned()];
    let outcome =
        place.run(strace::claim(&place, &place.path("log"), &inject, &["job", "sh", "-c", "exit 5"])).expect(5);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("claim: job: "), "{}", outcome.stderr);
    assert_eq!(place.try_once(&["job"]), 0, "its holder is dead all the same");
}
