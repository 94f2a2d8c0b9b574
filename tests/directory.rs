//! The claim directory: where it is, what is accepted, and what it survives.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};
use support::{CLAIM, Hold, Place, Signal, end_all, listing, root_with, text, until, with};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// A shell script as root in a mount namespace whose /run/lock and /tmp are empty and its own, with `$claim` where
/// every user can run it (`/tmp/bin/claim`).
fn with_own_places(place: &Place, script: &str) -> Command {
    let prepare = r#"exec 8< "$root/bin/claim"; mount --make-rprivate / && mkdir -p /run/lock &&
        mount -t tmpfs -o mode=1777 none /run/lock && mount -t tmpfs -o mode=1777 none /tmp && mkdir -m 755 /tmp/bin &&
        cat <&8 > /tmp/bin/claim && chmod 755 /tmp/bin/claim && exec 8<&- && claim=/tmp/bin/claim || exit 99
        as() { uid=$1; shift; setpriv --reuid $uid --regid $uid --clear-groups "$@"; }
        cd /"#;
    let mut command = place.command("unshare");
    command.args(["--mount", "sh", "-c", &format!("{prepare}\n{script}")]).env("root", place.root());
    command
}

#[test]
fn the_default_is_one_place_for_a_user_whatever_the_environment() {
    if !root_with(&["unshare", "mount", "setpriv"]) {
        return;
    }
    let place = Place::public();
    let script = r#"where='echo $CLAIM_DIR'
        for uid in 0 1000; do
            as $uid $claim job sh -c "$where"
            as $uid env -i $claim job sh -c "$where"
            as $uid env HOME=/nowhere TMPDIR=/var/tmp XDG_RUNTIME_DIR=/run XDG_STATE_HOME=/run CLAIM_TMPDIR=/run $claim job sh -c "$where"
            as $uid env CLAIM_DIR= $claim job sh -c "$where"
            as $uid setsid --wait $claim job sh -c "$where"
        done; stat -c '%n %u %a' /run/lock/*"#;
    let outcome = place.run(with_own_places(&place, script)).expect(0);
    let expected = ["/run/lock/claim-0\n".repeat(5), "/run/lock/claim-1000\n".repeat(5)].concat()
        + "/run/lock/claim-0 0 700\n/run/lock/claim-1000 1000 700\n";
    assert_eq!(outcome.stdout, expected, "{}", outcome.stderr);
}

#[test]
fn without_a_sticky_run_lock_it_is_in_tmp_but_for_root() {
    if !root_with(&["unshare", "mount", "setpriv"]) {
        return;
    }
    let place = Place::public();
    let script = r#"for mode in 755 1755 777; do
            chmod $mode /run/lock; as 1000 $claim job sh -c 'echo $CLAIM_DIR'; $claim job sh -c 'echo $CLAIM_DIR'
        done"#;
    let outcome = place.run(with_own_places(&place, script)).expect(0);
    assert_eq!(outcome.stdout, "/tmp/claim-1000\n/run/lock/claim-0\n".repeat(3), "{}", outcome.stderr);
}

#[test]
fn a_default_that_cannot_be_used_is_an_error_and_never_another_place() {
    if !root_with(&["unshare", "mount", "setpriv"]) {
        return;
    }
    let place = Place::public();
    let script = r#"dir=/run/lock/claim-1000; try() { as 1000 $claim -n job true; echo $?; rm -rf $dir; }
        touch $dir; try
        ln -s /tmp $dir; try
        ln -s /nowhere $dir; try
        mkdir -m 777 $dir; try
        mkdir $dir; chown 1000 $dir; chmod 777 $dir; try
        mkdir -m 700 $dir; chown 2000 $dir; try
        mkdir $dir; chgrp 1000 $dir; chmod 2770 $dir; try
        ls /tmp"#;
    let outcome = place.run(with_own_places(&place, script)).expect(0);
    assert_eq!(outcome.stdout, "73\n77\n77\n77\n77\n77\n77\nbin\n", "{}", outcome.stderr);
}

#[test]
fn claim_dir_names_the_directory_and_dir_comes_before_it() {
    let place = Place::new();
    let print = ["job", "sh", "-c", "echo $CLAIM_DIR"];
    let mut command = place.command(CLAIM);
    command.env("CLAIM_DIR", place.path("variable")).args(print);
    assert_eq!(place.run(command).expect(0).stdout.trim(), place.path("variable").to_str().unwrap());
    let mut command = place.claim(print);
    command.env("CLAIM_DIR", place.path("unused"));
    assert_eq!(place.run(command).expect(0).stdout.trim(), place.dir().to_str().unwrap());
    assert!(!place.path("unused").exists());
}

#[test]
fn it_is_made_with_mode_0700_whatever_the_umask() {
    for umask in ["000", "022", "077", "777"] {
        let place = Place::new();
        place.run(place.sh(&format!(r#"umask {umask}; exec "$claim" --dir "$dir" job true"#))).expect(0);
        assert_eq!(mode(&place.dir()), 0o700, "umask {umask}");
        assert_eq!(place.try_once(&["job"]), 0);
    }
}

#[test]
fn a_directory_shared_by_a_group_works_for_its_users_with_any_umask() {
    if !root_with(&["setpriv", "unshare"]) {
        return;
    }
    for (first, second) in [(1001, 1002), (1002, 1001), (1001, 0)] {
        let place = Place::public();
        fs::create_dir(place.dir()).unwrap();
        chown(place.dir(), Some(1001), Some(3000)).unwrap();
        support::chmod(&place.dir(), 0o2770);
        let claim = |user: u32, args: &[&str]| {
            let script = format!(
                r#"umask 077; exec setpriv --reuid {user} --regid {user} --groups 3000 bin/claim --dir "$dir" "$@""#
            );
            let mut command = place.sh(&script);
            command.arg("sh").args(args);
            command
        };
        support::mkfifo(&place.path("gate"));
        support::chmod(&place.path("gate"), 0o666);
        let gate = fs::File::options().read(true).write(true).open(place.path("gate")).unwrap();
        let holder = place.start(claim(first, &["job", "sh", "-c", "read _ < gate"]));
        until("held", || place.run(claim(second, &["--who", "job"])).code() == 0);
        assert_eq!(place.run(claim(second, &["-n", "job", "true"])).code(), 75);
        let waiter = place.start(claim(second, &["job", "sh", "-c", "echo $CLAIM_FENCE"]));
        until("it waits", || place.run(claim(first, &["--who", "job"])).stdout.lines().count() == 2);
        std::io::Write::write_all(&mut &gate, b"\n").unwrap();
        holder.wait().expect(0);
        let outcome = waiter.wait().expect(0);
        assert_ne!(outcome.stdout, "", "{}", outcome.stderr);
        // A holder of the one user that is dead is reclaimed by the other.
        let holder = place.start(claim(first, &["-n", "-F", "job", "sleep", "1000"]));
        until("held", || place.run(claim(second, &["--who", "job"])).code() == 0);
        holder.signal(Signal::KILL);
        holder.wait();
        let outcome = place.run(claim(second, &["-n", "job", "true"]));
        assert_eq!(outcome.code(), 0, "dead holder of {first}, comer {second}: {}", outcome.stderr);
        let outcome = place.run(claim(first, &["-n", "job", "true"]));
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    }
}

#[test]
fn an_unknown_format_concerns_every_claim() {
    let place = Place::new();
    assert_eq!(place.try_once(&["job"]), 0);
    let known = fs::read(place.path("dir/format")).unwrap();
    for format in [&b"\n"[..], b"", b"999\n", b"\0\xff", &[b'x'; 100_000]] {
        fs::write(place.path("dir/format"), format).unwrap();
        for args in [&["-n", "job", "true"][..], &["-w", "0.1", "other", "true"], &["--available", "job"], &["--who"]] {
            assert_eq!(place.status(args), 65, "{format:.10?}, {args:?}");
        }
    }
    fs::write(place.path("dir/format"), known).unwrap();
    assert_eq!(place.try_once(&["job"]), 0);
}

/// Puts something in the place of the record by which `args` would be held.
fn damage(place: &Place, args: &[&str], content: &[u8]) -> PathBuf {
    let hold = place.hold(args);
    let slots: Vec<PathBuf> = listing(&place.path("dir/claims")).into_iter().collect();
    assert_eq!(slots.len(), 1, "one slot is held: {slots:?}");
    hold.finish().expect(0);
    let path = place.path("dir/claims").join(&slots[0]);
    assert!(!path.exists());
    fs::write(&path, content).unwrap();
    support::chmod(&path, 0o600);
    path
}

#[test]
fn a_record_that_cannot_be_read_is_never_free_and_concerns_its_claim_only() {
    for content in [&b""[..], b"garbage\n", &[0; 4096], &[0xff; 100_000]] {
        let place = Place::new();
        let path = damage(&place, &["job"], content);
        for args in [&["-n", "job", "true"][..], &["-w", "0.2", "job", "true"], &["--available", "job"]] {
            let outcome = place.run(place.claim(args));
            assert_eq!(outcome.code(), 65, "{content:.10?} {args:?}: {}", outcome.stderr);
            assert!(outcome.stderr.contains(path.to_str().unwrap()), "{}", outcome.stderr);
        }
        assert_eq!(place.try_once(&["other"]), 0);
        assert_eq!(place.try_once(&["-m", "2", "job"]), 0, "another capacity is another claim");
        assert_eq!(place.status(["--release", "job", "-m", "2", "--force"]), 1, "nothing to release there");
        assert_eq!(place.try_once(&["job"]), 65);
        assert_eq!(place.status(["--release", "job", "--force"]), 0);
        assert_eq!(place.try_once(&["job"]), 0);
        place.assert_clean();
    }
}

fn fence(place: &Place) -> u64 {
    place.run(place.claim(["-n", "job", "sh", "-c", "echo $CLAIM_FENCE"])).expect(0).stdout.trim().parse().unwrap()
}

#[test]
fn the_fence_grows_over_a_damaged_or_removed_counter_and_a_removed_directory() {
    let place = Place::new();
    let counter = place.path("dir/fence");
    let mut last = fence(&place);
    let mut grows = |what: &str| {
        let next = fence(&place);
        assert!(next > last, "{what}: {last}, then {next}");
        last = next;
    };
    grows("a second run");
    for content in [&b""[..], b"\0", &[0; 8], &[0; 4096], b"garbage", &[0xff; 8], &[0xff; 4096], b"12345678"] {
        fs::write(&counter, content).unwrap();
        grows(&format!("written over with {content:.10?}"));
    }
    fs::remove_file(&counter).unwrap();
    grows("counter removed");
    fs::remove_dir_all(place.dir()).unwrap();
    grows("directory removed");
    // Whoever removes it under a living holder gives up the exclusion, but not the growth.
    let hold = place.hold(&["job"]);
    fs::remove_dir_all(place.dir()).unwrap();
    grows("removed under a living holder");
    drop(hold);
}

#[test]
fn a_holder_whose_directory_was_removed_ends_with_commands_status() {
    let place = Place::new();
    let hold = place.hold(&["job"]);
    fs::remove_dir_all(place.dir()).unwrap();
    let next = place.hold(&["job"]);
    hold.finish().expect(0);
    assert_eq!(place.try_once(&["job"]), 75, "the old one's release took nothing from the new one");
    next.finish().expect(0);
    place.assert_clean();
}

/// What cleaners of temporary files that go by age do, now and when the runs have gone on for two months: "not newer
/// than in 50 days" is what "older than 10 days" will be then. (ctime cannot be set, and none of them goes by it.)
#[test]
fn cleaners_that_heed_ages_do_not_free_the_claim_of_a_run() {
    with(&["find"]);
    let place = Place::new();
    let runs: Vec<Hold> = vec![place.hold(&["job"]), place.hold(&["-F", "exec"]), place.hold(&["--tree", "tree"])];
    // Reading a file changes its access time.
    for name in ["job", "exec", "tree"] {
        assert_eq!(place.holders(name).len(), 1);
        assert_eq!(place.try_once(&[name]), 75);
    }
    for clean in ["-mtime +10", "-atime +10", "! -newermt '+50 days'", "! -newerat '+50 days'"] {
        place.run(place.sh(&format!(r#"find "$dir" -mindepth 1 -depth -type f {clean} -delete"#))).expect(0);
        place.run(place.sh(&format!(r#"find "$dir" -mindepth 1 -depth -type d -empty {clean} -delete"#))).expect(0);
        for name in ["job", "exec", "tree"] {
            assert_eq!(place.try_once(&[name]), 75, "{name} after find {clean}");
        }
    }
    for run in runs {
        run.finish().expect(0);
    }
    for name in ["job", "exec", "tree"] {
        assert_eq!(place.try_once(&[name]), 0);
    }
}

#[test]
fn cleaners_do_not_free_the_claim_that_a_killed_claims_command_holds() {
    with(&["find"]);
    let place = Place::new();
    let mut hold = place.hold(&["job"]);
    hold.kill_claim();
    place.run(place.sh(r#"find "$dir" -mindepth 1 -depth -type f ! -newermt '+50 days' -delete"#)).expect(0);
    assert_eq!(place.try_once(&["job"]), 75);
}

#[test]
fn a_lock_on_the_directory_as_systemd_tmpfiles_takes_it_keeps_nobody_from_running() {
    let place = Place::new();
    assert_eq!(place.try_once(&["job"]), 0);
    let directory = fs::File::open(place.dir()).unwrap();
    flock(&directory, FlockOperation::NonBlockingLockExclusive).expect("nobody holds it now");
    let holder = place.hold(&["job"]);
    let waiter = place.wait_in_line("job", &["job"]);
    holder.finish().expect(0);
    waiter.finish().expect(0);
}

fn master(place: &Place, args: &[&str]) -> Command {
    let mut command = place.command(CLAIM);
    command.env("CLAIM_TMPDIR", place.root()).args(["--master", "--"]).args(args);
    command
}

#[test]
fn a_master_makes_exports_and_removes_a_directory_of_its_own() {
    let place = Place::new();
    let script = r#"echo $CLAIM_DIR; stat -c %a $CLAIM_DIR; "$0" job sh -c 'echo $CLAIM_DIR'; "$0" job false; exit 7"#;
    let outcome = place.run(master(&place, &["sh", "-c", script, CLAIM])).expect(7);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!((lines[0], lines[1]), (lines[2], "700"));
    assert_eq!(Path::new(lines[0]).parent(), Some(place.root()));
    assert!(!Path::new(lines[0]).exists(), "removed at the end");
}

#[test]
fn a_masters_directory_is_under_claim_tmpdir_or_tmpdir_or_tmp() {
    let place = Place::new();
    for directory in ["one", "two"] {
        fs::create_dir(place.path(directory)).unwrap();
    }
    for (claim_tmpdir, tmpdir, parent) in
        [(Some("one"), Some("two"), Some("one")), (None, Some("two"), Some("two")), (None, None, None)]
    {
        let mut command = place.command(CLAIM);
        command.env_remove("TMPDIR").args(["--master", "--", "sh", "-c", "echo $CLAIM_DIR"]);
        claim_tmpdir.map(|dir| command.env("CLAIM_TMPDIR", place.path(dir)));
        tmpdir.map(|dir| command.env("TMPDIR", place.path(dir)));
        let outcome = place.run(command).expect(0);
        let parent = parent.map_or(PathBuf::from("/tmp"), |parent| place.path(parent));
        assert_eq!(Path::new(outcome.stdout.trim()).parent(), Some(parent.as_path()));
        assert!(!Path::new(outcome.stdout.trim()).exists());
    }
}

#[test]
fn what_a_killed_master_left_is_swept_by_the_next_once_nobody_holds_there() {
    let place = Place::new();
    let script = r#"echo $CLAIM_DIR > where.tmp; mv where.tmp where; exec "$0" job sh -c 'echo $$ > pid; until [ -e done ]; do sleep 0.01; done'"#;
    let mut command = master(&place, &["sh", "-c", script, CLAIM]);
    command.current_dir(place.root());
    let first = place.start(command);
    until("a claim is held there", || !text(&place.path("pid")).is_empty());
    let left = PathBuf::from(text(&place.path("where")).trim());
    first.signal(Signal::KILL);
    first.wait().expect(137);
    assert!(left.is_dir());
    place.run(master(&place, &["true"])).expect(0);
    assert!(left.is_dir(), "somebody holds there");
    end_all(|| place.processes());
    place.run(master(&place, &["true"])).expect(0);
    assert!(!left.exists(), "swept");
}

#[test]
fn a_sweep_leaves_other_masters_and_strangers_alone() {
    let place = Place::new();
    let script =
        "echo $CLAIM_DIR > where.tmp; mv where.tmp where; until [ -e done ]; do sleep 0.01; done; test -d $CLAIM_DIR";
    let mut command = master(&place, &["sh", "-c", script]);
    command.current_dir(place.root());
    let idle = place.start(command);
    until("it runs", || place.path("where").exists());
    let its = PathBuf::from(text(&place.path("where")).trim());
    // A link that looks like a master's directory leads nowhere.
    let name = its.file_name().unwrap().to_str().unwrap();
    fs::create_dir(place.path("precious")).unwrap();
    fs::write(place.path("precious/file"), "").unwrap();
    let alike: String = name.chars().rev().enumerate().map(|(i, c)| if i == 0 { '0' } else { c }).collect();
    symlink(place.path("precious"), place.path(alike.chars().rev().collect::<String>())).unwrap();
    for _ in 0..3 {
        place.run(master(&place, &["true"])).expect(0);
    }
    assert!(its.is_dir() && place.path("precious/file").exists());
    fs::write(place.path("done"), "").unwrap();
    idle.wait().expect(0);
}

/// A slot's name that reached the disk before what is in it. The boot that began later is a time namespace whose clock does.
#[test]
fn what_a_power_cut_left_of_a_record_holds_nothing_after_the_next_boot() {
    if !root_with(&["unshare"]) {
        return;
    }
    for (content, options) in [("", "job"), ("", "-m 2 job"), ("\\0\\0\\0", "job")] {
        let place = Place::new();
        let script = r#"
            "$claim" --dir "$dir" other true || exit 98
            for slot in 1.0 2.0 2.1; do printf "$content" > "$dir/claims/job@$slot"; done
            "$claim" --dir "$dir" -n $options true; [ $? = 65 ] || exit 97
            made=$(date +%s); until [ $(($(date +%s) - made)) -gt 1 ]; do sleep 0.1; done
            boot="unshare --time --boottime -$(cut -d. -f1 /proc/uptime) --"
            $boot "$claim" --dir "$dir" --who job && exit 96
            $boot "$claim" --dir "$dir" --available $options || exit 95
            $boot "$claim" --dir "$dir" -n $options true || exit 94
            ls "$dir/claims" | grep -c "job@$max""#;
        let mut command = place.sh(script);
        command.env("content", content).env("options", options).env("max", if options == "job" { "1" } else { "2" });
        let outcome = place.run(command);
        assert_eq!((outcome.code(), outcome.stdout.as_str()), (1, "0\n"), "{options}: {}", outcome.stderr);
    }
}
