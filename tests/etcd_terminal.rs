//! `claim --etcd` in a terminal: a keeper in between changes nothing about Ctrl-C and Ctrl-Z, and is not stopped by them.

#[path = "etcd/support/mod.rs"]
mod etcd_support;
mod support;

use etcd_support::etcd::Cluster;
use support::pty::Pty;
use support::{CLAIM, Place, Signal, lines, shell_status, until, with};

/// COMMAND writes down every signal it gets, until `done` exists.
const TRAPS: &str = r#"for s in TERM HUP INT QUIT USR1; do trap "echo $s >> signals" $s; done
    : > signals; until [ -e done ]; do sleep 0.01; done; exit 3"#;

#[test]
fn keys_that_signal_reach_command_once() {
    let (cluster, place, mut pty) = (Cluster::one(), Place::new(), Pty::new());
    let mut command = pty.command(&place, CLAIM);
    command.arg(format!("--etcd={}", cluster.endpoints())).arg("--dir").arg(place.dir());
    let mut child = command.args(["job", "sh", "-c", TRAPS]).current_dir(place.root()).spawn().unwrap();
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
    std::fs::write(place.path("done"), "").unwrap();
    assert_eq!(shell_status(child.wait().unwrap()), 3);
}

#[test]
fn a_stopped_job_goes_on_within_the_ttl_and_is_ended_by_its_end() {
    with(&["bash"]);
    let (cluster, place, mut pty) = (Cluster::one(), Place::new(), Pty::new());
    let mut command = pty.command(&place, "bash");
    let mut shell = command.args(["--norc", "--noprofile", "-i"]).env("PS1", "ready> ").spawn().unwrap();
    pty.until("a prompt", |seen| seen.contains("ready> "));
    let claim = |ttl: &str, command: &str| {
        let dir = place.dir();
        format!("{CLAIM} --etcd={} --dir {} --ttl {ttl} job {command}\n", cluster.endpoints(), dir.display())
    };
    // COMMAND stops by itself, as an editor would: the shell sees claim stop, and `fg` wakes both.
    pty.send(&claim("60s", "sh -c 'echo r''uns; kill -TSTP $$; echo go''es on; exit 3'"));
    pty.until("it stops", |seen| seen.contains("runs") && seen.contains("Stopped"));
    pty.send("fg; echo status:$?:\n");
    pty.until("its end", |seen| seen.contains("goes on") && seen.contains("status:3:"));
    // Ctrl-C ends it, and looks like it.
    pty.seen.clear();
    pty.send(&claim("60s", "sh -c 'echo r''uns; exec sleep 600'"));
    pty.until("it runs", |seen| seen.contains("runs"));
    pty.send("\x03");
    pty.send("echo status:$?:\n");
    pty.until("its end", |seen| seen.contains("status:130:"));
    // Stopped for longer than the TTL, it is ended without being woken.
    pty.seen.clear();
    pty.send(
        &claim("2s", "sh -c 'echo $$ >pid; echo r''uns; exec sleep 600'")
            .replace("pid;", &format!("{};", place.path("pid").display())),
    );
    pty.until("it runs", |seen| seen.contains("runs"));
    pty.send("\x1a");
    pty.until("it stops", |seen| seen.contains("Stopped"));
    let pid = lines(&place.path("pid"))[0].clone();
    until("COMMAND's end", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
    pty.send("fg; echo status:$?:\n");
    pty.until("its end", |seen| seen.contains("the claim was lost") && seen.contains("status:70:"));
    pty.send("exit\n");
    shell.wait().unwrap();
}
