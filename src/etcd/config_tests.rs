use super::super::error::ErrorKind;
use super::*;

fn resolve(options: &Options, env: &[(&str, &str)]) -> Result<Config, Error> {
    Config::resolve(options, &|name| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
}

fn shown(config: &Config) -> Vec<String> {
    config.endpoints().iter().map(Endpoint::to_string).collect()
}

fn login_of(options: &Options, env: &[(&str, &str)]) -> (String, Vec<u8>) {
    let login = resolve(options, env).unwrap().login.unwrap();
    (login.name, login.password.bytes().to_vec())
}

#[test]
fn endpoints_in_all_their_forms() {
    let options =
        Options { endpoints: Some("a:1, http://b:2/,https://c:3,[::1]:4,d,http://[::1]".into()), ..Options::default() };
    let config = resolve(&options, &[]).unwrap();
    assert_eq!(
        shown(&config),
        ["http://a:1", "http://b:2", "https://c:3", "http://[::1]:4", "http://d:2379", "http://[::1]:2379"]
    );
}

#[test]
fn endpoints_come_from_options_then_claim_etcd_then_etcdctl() {
    let both = [("CLAIM_ETCD", "claim:1"), ("ETCDCTL_ENDPOINTS", "ctl:1")];
    let options = Options { endpoints: Some("given:1".into()), ..Options::default() };
    assert_eq!(shown(&resolve(&options, &both).unwrap()), ["http://given:1"]);
    assert_eq!(shown(&resolve(&Options::default(), &both).unwrap()), ["http://claim:1"]);
    assert_eq!(shown(&resolve(&Options::default(), &both[1..]).unwrap()), ["http://ctl:1"]);
    assert_eq!(shown(&resolve(&Options::default(), &[("CLAIM_ETCD", "")]).unwrap()), ["http://127.0.0.1:2379"]);
}

#[test]
fn bad_endpoints_are_usage_errors() {
    for bad in [
        "",
        ",",
        "ftp://a:1",
        "a:0",
        "a:x",
        "a:99999",
        "http://",
        ":1",
        "::1",
        "a:1/path",
        "u:p@h:1",
        "[::1",
        "unix:///s",
    ] {
        let options = Options { endpoints: Some(bad.into()), ..Options::default() };
        let error = resolve(&options, &[]).map(|config| shown(&config)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{bad:?}");
        assert!(!error.to_string().contains("u:p"), "{error}");
    }
}

#[test]
fn users_and_passwords() {
    let user = |text: &str| Options { user: Some(Secret::new(text)), ..Options::default() };
    assert_eq!(login_of(&user("root:a:b"), &[]), ("root".into(), b"a:b".to_vec()));
    assert_eq!(login_of(&user("root:a"), &[("ETCDCTL_PASSWORD", "x")]), ("root".into(), b"a".to_vec()));
    assert_eq!(login_of(&user("root"), &[("ETCDCTL_PASSWORD", "x")]), ("root".into(), b"x".to_vec()));
    let none = Options::default();
    assert_eq!(login_of(&none, &[("ETCDCTL_USER", "r:p")]), ("r".into(), b"p".to_vec()));
    assert_eq!(login_of(&none, &[("ETCDCTL_USER", "r:q"), ("ETCDCTL_PASSWORD", "p")]), ("r:q".into(), b"p".to_vec()));
    assert_eq!(resolve(&user("root"), &[]).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(resolve(&user(":p"), &[]).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(resolve(&none, &[]).unwrap().login, None);
}

#[test]
fn a_password_file_loses_its_last_newline_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    for (content, password) in [("p\n", "p"), ("p\r\n", "p"), ("p q\n\n", "p q\n"), ("p", "p")] {
        std::fs::write(&path, content).unwrap();
        let options =
            Options { user: Some(Secret::new("root")), password_file: Some(path.clone()), ..Options::default() };
        assert_eq!(login_of(&options, &[("ETCDCTL_PASSWORD", "no")]), ("root".into(), password.as_bytes().to_vec()));
    }
}

#[test]
fn a_missing_credential_file_is_named() {
    let gone = || Some(PathBuf::from("/nowhere/at-all"));
    let user = Some(Secret::new("root"));
    for options in [
        Options { password_file: gone(), user, ..Options::default() },
        Options { cacert: gone(), ..Options::default() },
        Options { cert: gone(), key: gone(), ..Options::default() },
    ] {
        let error = resolve(&options, &[]).unwrap_err();
        assert_eq!((error.kind(), error.place()), (ErrorKind::System, Some("/nowhere/at-all")));
    }
    let half = Options { cert: gone(), ..Options::default() };
    assert_eq!(resolve(&half, &[]).unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn a_credential_file_with_something_else_in_it_is_named_and_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        Some(dir.path().join(name))
    };
    let cert = || file("cert", "-----BEGIN CERTIFICATE-----\n");
    let bad = |options: Options, name: &str, why: &str| {
        let error = resolve(&options, &[]).unwrap_err();
        assert_eq!((error.kind(), error.place()), (ErrorKind::System, dir.path().join(name).to_str()));
        assert!(error.reason().contains(why), "{error}");
    };
    bad(Options { cacert: file("ca", "nothing"), ..Options::default() }, "ca", "no certificate");
    bad(Options { cert: file("der", "\u{30}\u{3}"), key: cert(), ..Options::default() }, "der", "no certificate");
    bad(Options { cert: cert(), key: cert(), ..Options::default() }, "cert", "no private key");
    for locked in
        ["-----BEGIN ENCRYPTED PRIVATE KEY-----\n", "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n"]
    {
        bad(Options { cert: cert(), key: file("key", locked), ..Options::default() }, "key", "encrypted");
    }
}

#[test]
fn certificates_make_bare_endpoints_secure() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    let pem = "-----BEGIN CERTIFICATE-----\r\n";
    std::fs::write(&path, pem).unwrap();
    let options = Options { endpoints: Some("a:1,http://b:2".into()), ..Options::default() };
    let config = resolve(&options, &[("ETCDCTL_CACERT", path.to_str().unwrap())]).unwrap();
    assert_eq!(shown(&config), ["https://a:1", "http://b:2"]);
    assert_eq!(config.tls.roots.as_deref(), Some(pem.as_bytes()));
}

#[test]
fn nothing_shows_a_password() {
    let options = Options { user: Some(Secret::new("root:hunter2")), ..Options::default() };
    let config = resolve(&options, &[]).unwrap();
    assert!(!format!("{options:?} {config:?} {config:#?}").contains("hunter2"));
}

#[test]
fn timeouts_and_prefixes() {
    for (text, seconds) in [("5s", 5.0), ("1m30s", 90.0), ("500ms", 0.5), ("2.5", 2.5), ("1h", 3600.0)] {
        let config = resolve(&Options::default(), &[("ETCDCTL_DIAL_TIMEOUT", text)]).unwrap();
        assert_eq!(config.dial_timeout(), Duration::from_secs_f64(seconds), "{text}");
    }
    for text in ["x", "5x", "s", "-1", "5s-", "1e400"] {
        assert!(resolve(&Options::default(), &[("ETCDCTL_DIAL_TIMEOUT", text)]).is_err(), "{text}");
    }
    let prefixed = |prefix: &str| resolve(&Options { prefix: Some(prefix.into()), ..Options::default() }, &[]);
    assert_eq!(prefixed("/x").unwrap().prefix(), "/x/");
    assert_eq!(prefixed("/x/").unwrap().prefix(), "/x/");
    assert!(prefixed("").is_err());
}
