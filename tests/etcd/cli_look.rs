//! `claim --etcd`: looking on, `--check`, and what nobody may see.

use rustix::process::Signal;

use crate::support::etcd::Cluster;
use crate::support::host::*;
use crate::support::proxy::{Mode, Proxy};
use crate::support::until;

fn stays(file: &std::path::Path) -> String {
    format!("echo x >{}; exec sleep 600", file.display())
}

#[test]
fn who_shows_hosts_by_name_and_only_the_name_of_command() {
    let cluster = Cluster::one();
    let (one, two) = (Host::new("node1", &cluster.endpoints()), Host::new("node2", &cluster.endpoints()));
    assert_eq!(status_of(&two.run(&["--who", "job"])), 1);
    let begun = one.file("begun");
    let line = stays(&begun);
    let mut first = one.start(&["job", "sh", "-c", &line, "a secret"]);
    until_written(&begun);
    let _waiter = two.start(&["--class", "low", "--label", "a label", "job", "true"]);
    until("both", || text(&one.run(&["--who"]).stdout).lines().count() == 2);
    let who = text(&two.run(&["--who", "job"]).stdout);
    let lines: Vec<_> = who.lines().collect();
    assert!(lines[0].starts_with(&format!("job[1/1] HELD  node1 pid={} since=", first.pid)), "{who}");
    assert!(lines[0].ends_with(" cmd=sh"), "{who}");
    assert!(lines[1].starts_with("job[1/1] WAIT  node2 pid=") && lines[1].ends_with(" class=low cmd=a label"), "{who}");
    let everything = cluster.ctl_ok(&["get", "--prefix", "/", "--print-value-only"]);
    assert!(!everything.contains("secret"), "{everything}");
    let json = text(&two.run(&["--who", "--json", "job"]).stdout);
    let held: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(held["host"], "node1");
    assert_eq!((held["state"].as_str(), held["slot"].as_u64(), held["max"].as_u64()), (Some("held"), Some(0), Some(1)));
    assert!(held["command_pid"].as_i64().unwrap() > i64::from(first.pid));
    // Nothing of it is a claim on this host.
    let dir = one.claims();
    let local = one.bare(&["--dir", dir.to_str().unwrap(), "--who"]).output().unwrap();
    assert_eq!((status_of(&local), text(&local.stdout)), (1, String::new()));
    assert_eq!(status_of(&one.bare(&["--dir", dir.to_str().unwrap(), "-n", "job", "true"]).output().unwrap()), 0);
    first.signal(Signal::TERM);
    first.end();
}

#[test]
fn available_and_force() {
    let cluster = Cluster::one();
    let (one, two) = (Host::new("node1", &cluster.endpoints()), Host::new("node2", &cluster.endpoints()));
    assert_eq!(status_of(&two.run(&["--available", "job"])), 0);
    assert_eq!(status_of(&two.run(&["--release", "job", "--force"])), 1);
    let begun = one.file("begun");
    let mut first = one.start(&["job", "-c", &stays(&begun)]);
    until_written(&begun);
    assert_eq!(status_of(&two.run(&["--available", "job"])), 1);
    assert_eq!(status_of(&two.run(&["--release", "job", "--force"])), 0);
    let lost = first.end();
    assert_eq!(status_of(&lost), 70);
    assert_eq!(text(&lost.stderr).lines().count(), 1, "{lost:?}");
    assert_eq!(status_of(&two.run(&["--available", "job"])), 0);

    // A run would begin with a slot of its host's.
    let mode =
        |mode| std::fs::set_permissions(one.claims(), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    mode(0o777);
    assert_eq!(status_of(&one.run(&["--available", "job"])), 77);
    mode(0o700);
}

#[test]
fn watch_prints_changes_until_it_is_ended() {
    let cluster = Cluster::one();
    let (one, two) = (Host::new("node1", &cluster.endpoints()), Host::new("node2", &cluster.endpoints()));
    let printed = two.file("printed");
    let mut watch = two.claim(&["--who", "--watch", "--json"]);
    watch.stdout(std::fs::File::create(&printed).unwrap());
    let mut watching = Running::printing(watch);
    let states = || {
        let text = std::fs::read_to_string(&printed).unwrap();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let state =
            |line| serde_json::from_str::<serde_json::Value>(line).unwrap()["state"].as_str().unwrap().to_owned();
        whole.lines().map(state).collect::<Vec<_>>()
    };
    let begun = one.file("begun");
    let line = stays(&begun);
    let mut run = one.start(&["job", "-c", &line]);
    // Whoever comes and goes before it has looked for the first time is never seen by it.
    until("a holder", || states().last().is_some_and(|state| state == "held"));
    until_written(&begun);
    run.signal(Signal::TERM);
    run.end();
    until("its end", || states().last().is_some_and(|state| state == "gone"));
    // Not SIGINT, which is ignored where a script runs all this in the background.
    watching.signal(Signal::TERM);
    assert_eq!(status_of(&watching.end()), 143);
}

#[test]
fn check_asks_no_server() {
    let mut cluster = Cluster::one();
    let host = Host::new("node1", &cluster.endpoints());
    let claim = env!("CARGO_BIN_EXE_claim");
    let (begun, go, result) = (host.file("begun"), host.file("go"), host.file("result"));
    let line = format!(
        "{claim} --check; a=$?; echo x >{}; until [ -e {} ]; do sleep 0.02; done; {claim} --check; b=$?; \
         {claim} --check job; c=$?; {claim} --check other; d=$?; CLAIM_FENCE=1 {claim} --check; echo $a $b $c $d $? >{}; \
         exec sleep 600",
        begun.display(),
        go.display(),
        result.display()
    );
    let _run = host.start(&["--ttl", "60s", "--kill-after", "1s", "job", "-c", &line]);
    until_written(&begun);
    cluster.nodes[0].kill();
    std::fs::write(&go, "").unwrap();
    assert_eq!(until_written(&result), "0 0 0 64 1\n");
}

#[test]
fn a_password_is_seen_nowhere() {
    const PASSWORD: &str = "open-sesame";
    let cluster = Cluster::one();
    cluster.ctl_ok(&["user", "add", &format!("root:{PASSWORD}")]);
    cluster.ctl_ok(&["user", "grant-role", "root", "root"]);
    cluster.ctl_ok(&["auth", "enable"]);
    let host = Host::new("node1", &cluster.endpoints());
    let (file, wrong, events, begun) =
        (host.file("password"), host.file("wrong"), host.file("events"), host.file("begun"));
    std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    std::fs::write(&wrong, "no-such-word\n").unwrap();
    let access = ["--user", "root", "--password-file", file.to_str().unwrap()];
    let line = format!("env >{}", begun.display());
    let stays = format!("{line}; exec sleep 600");
    let mut run =
        host.start(&[&access[..], &["-v", "--events", events.to_str().unwrap(), "job", "-c", &stays]].concat());
    until("its start", || std::fs::metadata(&begun).is_ok_and(|file| file.len() > 0));
    let who = host.run(&[&access[..], &["--who", "--json"]].concat());
    assert_eq!(status_of(&who), 0, "{who:?}");
    let mut seen =
        text(&who.stdout) + &std::fs::read_to_string(&events).unwrap() + &std::fs::read_to_string(&begun).unwrap();
    for pid in run.family() {
        seen += &text(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default());
        seen += &text(&std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default());
    }
    run.signal(Signal::TERM);
    seen += &text(&run.end().stderr);
    // In one word with the name, and in the environment.
    let joined = host.run(&["--user", &format!("root:{PASSWORD}"), "job", "true"]);
    assert_eq!(status_of(&joined), 0, "{joined:?}");
    let refused = host.run(&["--user", "root", "--password-file", wrong.to_str().unwrap(), "job", "true"]);
    assert_eq!(status_of(&refused), 69, "{refused:?}");
    let nobody = host.run(&["job", "true"]);
    assert_eq!(status_of(&nobody), 69, "{nobody:?}");
    seen += &(text(&refused.stderr) + &text(&nobody.stderr) + &text(&joined.stderr));
    assert!(!seen.contains(PASSWORD) && !seen.contains("no-such-word"), "{seen}");
}

#[test]
fn a_connection_that_ends_does_not_end_who_looks_on() {
    let cluster = Cluster::one();
    let proxy = Proxy::new(&cluster.endpoints());
    let host = Host::new("node1", &proxy.endpoint());
    proxy.set(Mode::Cut);
    // Whether the end comes between one write and the next is chance.
    for _ in 0..10 {
        for looking in [&["--who"][..], &["--available", "job"], &["--release", "job", "--force"]] {
            let output = host.run(&[&["--dial-timeout", "200ms"], looking].concat());
            assert_eq!(status_of(&output), 69, "{looking:?}: {output:?}");
        }
    }
}
