//! Who may: users and passwords, certificates.

use std::time::Duration;

use crate::support::access::{Papers, with_users};
use crate::support::etcd::Cluster;
use crate::support::*;
use hostclaim::etcd::{Contender, ErrorKind, Event, Inspector, Lease, Loss, Options, Outcome, Secret};

fn as_user(cluster: &Cluster, user: Option<&str>) -> Options {
    Options {
        endpoints: Some(cluster.endpoints()),
        user: user.map(Secret::new),
        dial_timeout: Some(HANG / 2),
        ..Options::default()
    }
}

fn refusal(options: Options) -> String {
    let error = Lease::acquire(&config_with(options), bid("job", 2), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    error.to_string()
}

#[test]
fn a_user_with_permission_holds_and_others_are_refused() {
    let cluster = with_users(&[]);
    let config = config_with(as_user(&cluster, Some("worker:secret-w")));
    let mut holder = start(&config, bid("job", 2));
    expect_held(&holder);
    let second = start(&config, bid("job", 2));
    expect_held(&second);
    let waiter = start(&config, bid("job", 2));
    expect_waiting(&waiter, 2);
    for (user, reason) in [
        (None, "user name is empty"),
        (Some("worker:secret-x"), "authentication failed"),
        (Some("nobody:secret"), "authentication failed"),
        (Some("guest:secret-g"), "permission denied"),
    ] {
        let told = refusal(as_user(&cluster, user));
        assert!(told.contains(reason), "{user:?}: {told}");
    }
    holder.release().unwrap();
    expect_held(&waiter);
    let root = config_with(as_user(&cluster, Some("root:secret-r")));
    assert_eq!(Inspector::new(&root).unwrap().force_release(b"job", 2).unwrap(), 2);
    expect(&waiter, "Lost", |event| matches!(event, Event::Lost(Loss::Deleted)).then_some(()));
    // Nothing of what was refused has stayed, and no password anywhere.
    drop((second, waiter));
    let root = ["--user", "root:secret-r"];
    assert_eq!(cluster.ctl_ok(&[&root[..], &["lease", "list"]].concat()).trim(), "found 0 leases");
}

fn lost(contender: &Contender) -> Option<Loss> {
    contender.loss()
}

#[test]
fn tokens_that_are_forgotten_are_renewed() {
    let mut cluster = with_users(&[]);
    let config = config_with(as_user(&cluster, Some("worker:secret-w")));
    let mut holder = start(&config, bid("job", 1));
    expect_held(&holder);
    let waiter = start(&config, bid("job", 1));
    expect_waiting(&waiter, 1);
    // A restart forgets the tokens; leases and keys stay.
    cluster.nodes[0].kill();
    cluster.nodes[0].start();
    let deadline = holder.deadline();
    until("a renewal", || holder.deadline() > deadline || holder.loss().is_some());
    assert_eq!(lost(&holder), None);
    holder.release().unwrap();
    let holder = waiter;
    expect_held(&holder);
    // A change of users makes old tokens unfit for writing.
    cluster.ctl_ok(&["--user", "root:secret-r", "user", "add", "another:secret"]);
    let mut waiter = start(&config, bid("job", 1));
    expect_waiting(&waiter, 1);
    holder.set_command_pid(77);
    let inspector = Inspector::new(&config).unwrap();
    until("the record", || inspector.list(None).unwrap()[0].record.as_ref().unwrap().command_pid == Some(77));
    waiter.release().unwrap();
    cluster.ctl_ok(&["--user", "root:secret-r", "del", "--prefix", "/claim/v1/sema/"]);
    expect(&holder, "Lost", |event| matches!(event, Event::Lost(Loss::Deleted)).then_some(()));
}

#[test]
fn tokens_that_run_out_are_renewed() {
    let cluster = with_users(&["--auth-token-ttl=2".to_owned()]);
    let config = config_with(as_user(&cluster, Some("worker:secret-w")));
    let mut holder = start(&config, bid("job", 1));
    expect_held(&holder);
    let waiter = start(&config, bid("job", 1));
    expect_waiting(&waiter, 1);
    // Renewals need no token and keep none alive.
    std::thread::sleep(Duration::from_secs(4));
    holder.release().unwrap();
    expect_held(&waiter);
    drop(waiter);
    assert_eq!(counts(&config, "job"), (0, 0));
}

#[test]
fn a_password_where_none_is_wanted_does_no_harm() {
    let cluster = Cluster::one();
    let config = config_with(as_user(&cluster, Some("root:secret")));
    match Lease::acquire(&config, bid("job", 1), None).unwrap() {
        Outcome::Held(lease) => lease.release().unwrap(),
        Outcome::NotHad(others) => panic!("{others:?}"),
    }
}

#[test]
fn certificates() {
    let papers = Papers::new();
    let cluster = papers.cluster();
    let options = |ca: &str, client: Option<&str>| Options {
        endpoints: Some(format!("https://{}", cluster.endpoints())),
        cacert: Some(papers.path(&format!("{ca}.pem"))),
        cert: client.map(|client| papers.path(&format!("{client}.pem"))),
        key: client.map(|client| papers.path(&format!("{client}.key"))),
        dial_timeout: Some(HANG / 2),
        ..Options::default()
    };
    let config = config_with(options("ca", Some("client")));
    match Lease::acquire(&config, bid("job", 1), None).unwrap() {
        Outcome::Held(lease) => lease.release().unwrap(),
        Outcome::NotHad(others) => panic!("{others:?}"),
    }
    for (ca, client) in [("other-ca", Some("client")), ("ca", None), ("ca", Some("stranger"))] {
        let begun = std::time::Instant::now();
        let error = Lease::acquire(&config_with(options(ca, client)), bid("job", 1), None).unwrap_err();
        println!("{ca} {client:?}: {error} ({:?})", begun.elapsed());
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    }
    // A key that does not go with the certificate.
    let broken = Options { key: Some(papers.path("stranger.key")), ..options("ca", Some("client")) };
    let error = Lease::acquire(&config_with(broken), bid("job", 1), None).unwrap_err();
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::System);
}

#[test]
fn a_certificate_stands_for_a_user() {
    let papers = Papers::new();
    let cluster = papers.cluster();
    let tls = papers.pass();
    let ctl = |arguments: &[&str]| {
        let all: Vec<_> = tls.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
        cluster.ctl(&all)
    };
    until("etcd", || ctl(&["endpoint", "health"]).status.success());
    // The certificates' common name is `worker`.
    for arguments in [
        &["user", "add", "root:secret-r"][..],
        &["role", "add", "root"],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "worker:secret-w"],
        &["role", "add", "claims"],
        &["role", "grant-permission", "claims", "--prefix=true", "readwrite", "/claim/v1/"],
        &["user", "grant-role", "worker", "claims"],
        &["auth", "enable"],
    ] {
        let output = ctl(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
    let config = config_with(Options {
        endpoints: Some(format!("https://{}", cluster.endpoints())),
        cacert: Some(papers.path("ca.pem")),
        cert: Some(papers.path("client.pem")),
        key: Some(papers.path("client.key")),
        dial_timeout: Some(HANG / 2),
        ..Options::default()
    });
    let mut holder = start(&config, bid("job", 1));
    expect_held(&holder);
    let waiter = start(&config, bid("job", 1));
    expect_waiting(&waiter, 1);
    holder.release().unwrap();
    expect_held(&waiter);
}
