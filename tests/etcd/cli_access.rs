//! `claim --etcd` with certificates, users and passwords.

use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;

use crate::support::access::{Papers, with_users};
use crate::support::etcd::Cluster;
use crate::support::host::*;
use crate::support::until;

/// Runs a COMMAND that leaves `ran` behind, and fails unless it was refused before that, with the reason on one line.
#[track_caller]
fn refused(host: &Host, mut command: Command, status: i32, reason: &str) {
    let ran = host.file("ran");
    command.args(["-E", "9", "job", "touch"]).arg(&ran);
    let output = Running::of(command).end();
    let said = text(&output.stderr);
    assert_eq!(status_of(&output), status, "{reason}: {output:?}");
    assert!(said.starts_with("claim: job: ") && said.contains(reason), "{reason:?} is not in {said:?}");
    assert_eq!(said.lines().count(), 1, "{said:?}");
    assert!(!ran.exists(), "{reason}");
}

#[track_caller]
fn had(mut command: Command) {
    command.args(["job", "-c", "echo $CLAIM_BACKEND"]);
    let output = Running::of(command).end();
    assert_eq!((status_of(&output), &*text(&output.stdout)), (0, "etcd\n"), "{output:?}");
}

/// The same with variables, as etcdctl has them.
fn with(mut command: Command, variables: &[(&str, &str)]) -> Command {
    command.envs(variables.iter().copied());
    command
}

fn as_str(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn https(cluster: &Cluster) -> String {
    format!("https://{}", cluster.endpoints())
}

#[test]
fn certificates_by_options_and_by_variables() {
    let papers = Papers::new();
    let cluster = papers.cluster();
    let pass = papers.pass();
    let pass: Vec<_> = pass.iter().map(String::as_str).collect();
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|name| papers.path(name));
    let variables = [("ETCDCTL_CACERT", as_str(&ca)), ("ETCDCTL_CERT", as_str(&cert)), ("ETCDCTL_KEY", as_str(&key))];
    // Where there are certificates, an endpoint without a scheme is one for them.
    for endpoints in [https(&cluster), cluster.endpoints()] {
        let host = Host::new("node1", &endpoints);
        had(host.claim(&pass));
        had(with(host.claim(&[]), &variables));
        // An option counts for more than a variable.
        had(with(host.claim(&pass), &[("ETCDCTL_CACERT", "/no/such/file"), ("ETCDCTL_KEY", as_str(&cert))]));
    }
    // Waiting, being shown and taking over go the same way.
    let (one, two) = (Host::new("node1", &https(&cluster)), Host::new("node2", &https(&cluster)));
    let begun = one.file("begun");
    let line = format!("echo x >{}; exec sleep 600", begun.display());
    let mut first = one.start(&[&pass[..], &["job", "-c", &line]].concat());
    until_written(&begun);
    let mut second = Running::of(with(two.claim(&["job", "-c", "exit 5"]), &variables));
    let who = || text(&with(two.claim(&["--who", "job"]), &variables).output().unwrap().stdout);
    until("both", || who().lines().count() == 2);
    first.signal(Signal::TERM);
    assert_eq!((status_of(&first.end()), status_of(&second.end())), (143, 5));
}

#[test]
fn certificates_that_do_not_fit_are_69_with_the_reason() {
    let papers = Papers::new();
    let cluster = papers.cluster();
    let host = Host::new("node1", &https(&cluster));
    let file = |option: &str, name: &str| papers.argument(option, name);
    let [ca, client, key] = papers.pass();
    had(host.claim(&[&ca, &client, &key]));
    let other_ca = file("cacert", "other-ca.pem");
    let stranger = [file("cert", "stranger.pem"), file("key", "stranger.key")];
    // The server's is by none that we know: with another authority, and with those of the system.
    refused(&host, host.claim(&[&other_ca, &client, &key]), 69, "invalid peer certificate");
    refused(&host, host.claim(&[&client, &key]), 69, "invalid peer certificate");
    refused(&host, host.claim(&[]), 69, "invalid peer certificate");
    // Ours is by none that the server knows, or is not there.
    refused(&host, host.claim(&[&ca]), 69, "fatal alert");
    refused(&host, host.claim(&[&ca, &stranger[0], &stranger[1]]), 69, "fatal alert");
    // Looking on is no different.
    for arguments in [&["--who"][..], &["--available", "job"], &["--release", "job", "--force"]] {
        for (pass, reason) in
            [(&[&*other_ca, &*client, &*key][..], "invalid peer certificate"), (&[&*ca], "fatal alert")]
        {
            let output = host.run(&[pass, arguments].concat());
            assert_eq!(status_of(&output), 69, "{arguments:?}: {output:?}");
            assert!(text(&output.stderr).contains(reason), "{arguments:?}: {output:?}");
        }
    }
}

#[test]
fn a_credential_file_that_cannot_be_read_is_71_with_its_path() {
    // Nobody is asked anything.
    let host = Host::new("node1", "https://127.0.0.1:1");
    let papers = Papers::new();
    let [cert, key] = ["client.pem", "client.key"].map(|name| papers.path(name));
    let (cert, key) = (as_str(&cert), as_str(&key));
    let [no_file, folder, empty] = ["no-such-file", "folder", "empty"].map(|name| host.file(name));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(&empty, "").unwrap();
    for bad in [&no_file, &folder, &empty] {
        let bad = as_str(bad);
        for options in [&["--cacert", bad][..], &["--cert", bad, "--key", key], &["--cert", cert, "--key", bad]] {
            refused(&host, host.claim(options), 71, bad);
        }
        for variables in [
            &[("ETCDCTL_CACERT", bad)][..],
            &[("ETCDCTL_CERT", bad), ("ETCDCTL_KEY", key)],
            &[("ETCDCTL_CERT", cert), ("ETCDCTL_KEY", bad)],
        ] {
            refused(&host, with(host.claim(&[]), variables), 71, bad);
        }
    }
    for bad in [&no_file, &folder] {
        refused(&host, host.claim(&["--user", "worker", "--password-file", as_str(bad)]), 71, as_str(bad));
    }
}

#[test]
fn users_and_passwords_in_every_way_and_refusals_with_the_reason() {
    let cluster = with_users(&[]);
    let host = Host::new("node1", &cluster.endpoints());
    let (right, wrong) = (host.file("right"), host.file("wrong"));
    std::fs::write(&right, "secret-w\n").unwrap();
    std::fs::write(&wrong, "secret-x\n").unwrap();
    had(host.claim(&["--user", "worker", "--password-file", as_str(&right)]));
    had(host.claim(&["--user", "worker:secret-w"]));
    let password = ("ETCDCTL_PASSWORD", "secret-w");
    had(with(host.claim(&["--user", "worker"]), &[password]));
    had(with(host.claim(&[]), &[("ETCDCTL_USER", "worker"), password]));
    had(with(host.claim(&[]), &[("ETCDCTL_USER", "worker:secret-w")]));
    // An option counts for more than a variable.
    had(with(host.claim(&["--user", "worker:secret-w"]), &[("ETCDCTL_USER", "guest"), ("ETCDCTL_PASSWORD", "x")]));

    let not_known = "authentication failed";
    refused(&host, host.claim(&["--user", "worker", "--password-file", as_str(&wrong)]), 69, not_known);
    refused(&host, host.claim(&["--user", "worker:secret-x"]), 69, not_known);
    refused(&host, with(host.claim(&["--user", "worker"]), &[("ETCDCTL_PASSWORD", "secret-x")]), 69, not_known);
    refused(&host, with(host.claim(&[]), &[("ETCDCTL_USER", "nobody"), password]), 69, not_known);
    refused(&host, host.claim(&["--user", "guest:secret-g"]), 69, "permission denied");
    refused(&host, host.claim(&["--etcd-prefix", "/elsewhere/", "--user", "worker:secret-w"]), 69, "permission denied");
    refused(&host, host.claim(&[]), 69, "user name is empty");
    // Looking on is no different.
    for user in ["worker:secret-x", "guest:secret-g"] {
        for looking in [&["--who"][..], &["--available", "job"], &["--release", "job", "--force"]] {
            let said = host.run(&[&["--user", user], looking].concat());
            assert_eq!((status_of(&said), text(&said.stderr).contains("secret")), (69, false), "{looking:?}: {said:?}");
        }
    }
}

/// Everything that is in the files below a directory.
fn all_files(below: &Path, into: &mut String) {
    for entry in std::fs::read_dir(below).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            all_files(&entry.path(), into);
        } else if kind.is_file() {
            *into += &text(&std::fs::read(entry.path()).unwrap_or_default());
        }
    }
}

#[test]
fn a_password_leaves_no_trace() {
    const PASSWORD: &str = "secret-w";
    let cluster = with_users(&[]);
    let all = |output: Output| text(&output.stdout) + &text(&output.stderr);
    for way in ["file", "variable", "one-word"] {
        let (one, two) = (Host::new("node1", &cluster.endpoints()), Host::new("node2", &cluster.endpoints()));
        let (secret, events, begun) = (one.file("password"), one.file("events"), one.file("begun"));
        std::fs::write(&secret, PASSWORD).unwrap();
        let joined = format!("worker:{PASSWORD}");
        let claim = |host: &Host, arguments: &[&str]| {
            let login = match way {
                "file" => &["--user", "worker", "--password-file", as_str(&secret)][..],
                "variable" => &["--user", "worker"],
                _ => &["--user", &joined],
            };
            let command = host.claim(&[login, &["-v", "--events", as_str(&events)], arguments].concat());
            with(command, if way == "variable" { &[("ETCDCTL_PASSWORD", PASSWORD)] } else { &[] })
        };
        let line = format!("echo x >{}; sleep 600; true", begun.display());
        let mut holder = Running::of(claim(&one, &["job", "-c", &line]));
        until_written(&begun);
        let mut waiter = Running::of(claim(&two, &["job", "true"]));
        let who = |json: &[&str]| all(claim(&two, &[&["--who"], json].concat()).output().unwrap());
        until("both", || who(&[]).lines().count() == 2);

        let mut seen = who(&[]) + &who(&["--json"]);
        let cmdline = |pid: i32| text(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap());
        let (keeper, command) = (holder.keeper(), children(holder.keeper())[0]);
        assert!(cmdline(command).contains("sleep 600"), "{}", cmdline(command));
        seen += &cmdline(command);
        let environment = text(&std::fs::read(format!("/proc/{command}/environ")).unwrap());
        assert!(environment.contains("CLAIM_FENCE="), "{environment}");
        seen += &environment;
        // What was said on a command line is there to be read; but for that, the keeper shows none either.
        if way != "one-word" {
            assert!(cmdline(keeper).contains("worker"), "{}", cmdline(keeper));
            seen += &(cmdline(keeper) + &cmdline(holder.pid));
            seen += &text(&std::fs::read(format!("/proc/{command}/comm")).unwrap());
        }
        let root = ["--user", "root:secret-r"];
        let stored = cluster.ctl_ok(&[&root[..], &["get", "--prefix", ""]].concat());
        assert_eq!(stored.matches("\"host\"").count(), 2, "{stored}");
        seen += &stored;
        all_files(&one.claims(), &mut seen);
        all_files(&two.claims(), &mut seen);
        holder.signal(Signal::TERM);
        seen += &(all(holder.end()) + &all(waiter.end()));
        seen += &std::fs::read_to_string(&events).unwrap();
        for sign in ["waiting", "acquired", "released", "\"event\"", "HELD", "\"state\":\"waiting\"", "sleep 600"] {
            assert!(seen.contains(sign), "{way}: no {sign} in {seen}");
        }
        assert!(!seen.contains(PASSWORD), "{way}: {seen}");
    }
}
