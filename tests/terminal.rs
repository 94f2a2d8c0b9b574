//! Ctrl-C, Ctrl-Z, pipes and the line that is kept up to date: as if `claim` were not there.

mod support;

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use support::pty::Pty;
use support::{CLAIM, Place, Running, Signal, lines, shell_status, state, until, with};

/// COMMAND writes down every signal it gets, until `done` exists.
const TRAPS: &str = r#"for s in TERM HUP INT QUIT USR1 TSTP; do trap "echo $s >> signals" $s; done
    : > signals; until [ -e done ]; do sleep 0.01; done; exit 3"#;

fn in_terminal(pty: &Pty, place: &Place, args: &[&str]) -> std::process::Child {
    let mut command = pty.command(place, CLAIM);
    command.arg("--dir").arg(place.dir()).args(args).current_dir(place.root());
    command.spawn().unwrap()
}

#[test]
fn keys_that_signal_reach_command_once() {
    let place = Place::new();
    let mut pty = Pty::new();
    let mut child = in_terminal(&pty, &place, &["job", "sh", "-c", TRAPS]);
    until("COMMAND runs", || place.path("signals").exists());
    let mut expected: Vec<String> = Vec::new();
    for (key, name) in [("\x03", "INT"), ("\x1c", "QUIT"), ("\x03", "INT")] {
        pty.send(key);
        expected.push(name.to_owned());
        // A signal that was sent to claim alone, afterwards, is the next: the key gave no second one.
        until(name, || lines(&place.path("signals")).len() >= expected.len());
        support::kill(i32::try_from(child.id()).unwrap(), Signal::USR1);
        expected.push("USR1".to_owned());
        until("USR1", || lines(&place.path("signals")).len() >= expected.len());
        assert_eq!(lines(&place.path("signals")), expected);
    }
    fs::write(place.path("done"), "").unwrap();
    assert_eq!(shell_status(child.wait().unwrap()), 3);
    assert_eq!(lines(&place.path("signals")), expected);
}

#[test]
fn ctrl_c_ends_command_and_looks_like_130_to_a_shell() {
    let place = Place::new();
    for options in [&[][..], &["--tree"], &["--exec"]] {
        let mut pty = Pty::new();
        let _ = fs::remove_file(place.path("up"));
        let mut child = in_terminal(&pty, &place, &[options, &["job", "sh", "-c", ": > up; exec sleep 1000"]].concat());
        until("COMMAND runs", || place.path("up").exists());
        pty.send("\x03");
        assert_eq!(shell_status(child.wait().unwrap()), 130);
        assert_eq!(place.try_once(&["job"]), 0);
    }
}

#[test]
fn ctrl_c_ends_a_script_that_runs_claim_as_it_ends_one_that_does_not() {
    with(&["bash"]);
    let place = Place::new();
    for prefix in ["", &format!("{CLAIM} --dir {} job ", place.dir().display())] {
        let mut pty = Pty::new();
        let _ = fs::remove_file(place.path("up"));
        let mut command = pty.command(&place, "bash");
        command.current_dir(place.root());
        command.args(["-c", &format!("{prefix}sh -c ': > up; exec sleep 1000'; echo went on; exit 0")]);
        let mut child = command.spawn().unwrap();
        until("COMMAND runs", || place.path("up").exists());
        pty.send("\x03");
        assert_eq!(shell_status(child.wait().unwrap()), 130, "{prefix}");
        pty.take(50);
        assert!(!pty.text().contains("went on"), "{prefix}");
    }
}

struct Bash {
    pty: Pty,
    child: std::process::Child,
}

impl Bash {
    fn new(place: &Place) -> Self {
        with(&["bash"]);
        let pty = Pty::new();
        let mut command = pty.command(place, "bash");
        command.args(["--norc", "--noprofile", "--noediting", "-i"]).current_dir(place.root());
        command.env("PS1", "> ").env("claim", CLAIM).env("dir", place.dir()).env("HISTFILE", "");
        let child = command.spawn().unwrap();
        Self { pty, child }
    }

    fn exit(mut self) {
        self.pty.send("exit\n");
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < support::DEADLINE, "bash did not end: {}", self.pty.text());
            self.pty.take(20);
        }
    }
}

fn pid_in(place: &Place, file: &str) -> i32 {
    until(file, || !lines(&place.path(file)).is_empty());
    lines(&place.path(file))[0].parse().unwrap()
}

#[test]
fn ctrl_z_stops_both_and_fg_goes_on() {
    let place = Place::new();
    support::mkfifo(&place.path("gate"));
    let mut gate = fs::File::options().read(true).write(true).open(place.path("gate")).unwrap();
    for option in ["", "--tree", "--exec"] {
        let mut bash = Bash::new(&place);
        bash.pty.send(&format!(r#""$claim" --dir "$dir" {option} job sh -c 'echo $$ > pid; read _ < gate; exit 6'"#));
        bash.pty.send("\n");
        let command = pid_in(&place, "pid");
        let claim = i32::try_from(place.holders("job")[0]["pid"].as_i64().unwrap()).unwrap();
        for _ in 0..2 {
            bash.pty.send("\x1a");
            let stops = bash.pty.text().matches("Stopped").count();
            bash.pty.until("bash says so", |text| text.matches("Stopped").count() > stops);
            until("both are stopped", || (state(claim), state(command)) == (Some('T'), Some('T')));
            assert_eq!(place.try_once(&["job"]), 75, "a stopped holder holds");
            bash.pty.send("fg\n");
            until("both go on", || state(claim) != Some('T') && state(command) != Some('T'));
        }
        gate.write_all(b"\n").unwrap();
        bash.pty.send("echo status=$?\n");
        bash.pty.until("the status", |text| text.contains("status=6\r\n"));
        bash.exit();
        fs::remove_file(place.path("pid")).unwrap();
        assert_eq!(place.try_once(&["job"]), 0);
    }
}

#[test]
fn ctrl_z_while_waiting_lets_others_pass_and_ctrl_c_gives_up() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let mut bash = Bash::new(&place);
    bash.pty.send("\"$claim\" --dir \"$dir\" job touch ran\n");
    until("it waits", || place.waiters("job").len() == 1);
    let waiter = i32::try_from(place.waiters("job")[0]["pid"].as_i64().unwrap()).unwrap();
    bash.pty.send("\x1a");
    until("it is stopped", || state(waiter) == Some('T'));
    let second = place.wait_in_line("job", &["job"]);
    holder.finish().expect(0);
    second.started();
    bash.pty.send("fg\n");
    until("it goes on", || state(waiter) != Some('T'));
    bash.pty.send("\x03");
    until("it gives up", || place.waiters("job").is_empty());
    bash.pty.send("echo status=$?\n");
    bash.pty.until("the status", |text| text.contains("status=130\r\n"));
    second.finish().expect(0);
    bash.exit();
    assert!(!place.path("ran").exists());
    place.assert_clean();
}

#[test]
fn command_in_the_foreground_reads_from_the_terminal() {
    let place = Place::new();
    let mut bash = Bash::new(&place);
    bash.pty.send("\"$claim\" --dir \"$dir\" job sh -c ': > up; read line; echo \"got=$line\"'\n");
    until("COMMAND runs", || place.path("up").exists());
    bash.pty.send("words\n");
    bash.pty.until("they arrive", |text| text.contains("got=words\r\n"));
    bash.exit();
}

#[test]
fn pipes_work_through_claim() {
    with(&["bash"]);
    let place = Place::new();
    let script = r#"c="$claim --dir $dir job"
        seq 1 100000 | $c cat | tail -1
        seq 1 100000 | $c -w 30 head -1
        $c yes | head -1; echo ${PIPESTATUS[*]}
        echo x | $c sh -c 'cat; exit 3' | cat; echo ${PIPESTATUS[*]}
        $c sh -c 'echo out; echo err >&2' 2>&1 > /dev/null | cat"#;
    let mut command = place.command("bash");
    command.args(["-c", script]).env("claim", CLAIM).env("dir", place.dir());
    let outcome = place.run(command).expect(0);
    assert_eq!(outcome.stdout, "100000\n1\ny\n141 0\nx\n0 3 0\nerr\n", "{}", outcome.stderr);
}

#[test]
fn a_wait_shows_one_line_after_a_second_and_erases_it() {
    let place = Place::new();
    let holder = place.hold(&["--label", "the-label", "job"]);
    let _first = place.wait_in_line("job", &["job"]);
    let mut pty = Pty::new();
    let start = Instant::now();
    let mut child = in_terminal(&pty, &place, &["-w", "1000", "job", "true"]);
    pty.until("a line", |text| text.contains("claim: job: "));
    assert!(start.elapsed() >= Duration::from_secs(1), "after {:?}", start.elapsed());
    let pid = holder.run.pid().to_string();
    pty.until("the holder", |text| text.contains(&pid));
    let line = pty.last_line();
    assert!(
        line.starts_with("claim: job: ") && line.split([' ', ',', '#']).any(|word| matches!(word, "1" | "2" | "2nd")),
        "second in the line: {line}"
    );
    let seen = pty.seen.len();
    pty.until("it is kept up to date", |text| text.len() > seen);
    assert!(!pty.text().contains('\n'), "one line: {:?}", pty.text());
    assert_eq!(pty.last_line().matches("claim: job: ").count(), 1);
    holder.finish().expect(0);
    drop(_first.finish().expect(0));
    assert_eq!(shell_status(child.wait().unwrap()), 0);
    while {
        let before = pty.seen.len();
        pty.take(50);
        pty.seen.len() > before
    } {}
    assert_eq!(pty.last_line(), "", "erased: {:?}", pty.text());
    assert!(!pty.text().contains('\n'), "{:?}", pty.text());
}

#[test]
fn a_wait_that_fails_erases_its_line_and_says_so_in_one() {
    let place = Place::new();
    let _holder = place.hold(&["job"]);
    let mut pty = Pty::new();
    let mut child = in_terminal(&pty, &place, &["-w", "2.5", "job", "true"]);
    pty.until("the message", |text| text.contains('\n'));
    assert_eq!(shell_status(child.wait().unwrap()), 75);
    let text = pty.text();
    assert_eq!(text.matches('\n').count(), 1, "{text:?}");
    let line = text.trim_end().rsplit(['\r', '\x1b']).next().unwrap().to_owned();
    assert!(line.contains("claim: job: "), "{text:?}");
}

#[test]
fn a_short_wait_a_quiet_one_and_one_without_a_terminal_show_no_line() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    let mut short = Pty::new();
    let mut quiet = Pty::new();
    let mut children = [
        in_terminal(&short, &place, &["-q", "-w", "0.2", "job", "true"]),
        in_terminal(&quiet, &place, &["-q", "-w", "1.6", "job", "true"]),
    ];
    let plain: Running = place.start(place.claim(["-q", "-w", "1.6", "job", "true"]));
    for child in &mut children {
        assert_eq!(shell_status(child.wait().unwrap()), 75);
    }
    assert_eq!(plain.wait().expect(75).stderr, "");
    short.take(50);
    quiet.take(50);
    assert_eq!((short.text(), quiet.text()), (String::new(), String::new()));
    let waiter = place.start(place.claim(["job", "true"]));
    until("it waits", || place.waiters("job").len() == 1);
    std::thread::sleep(Duration::from_millis(1300));
    holder.finish().expect(0);
    assert_eq!(waiter.wait().expect(0).stderr, "", "no terminal, no line");
}
