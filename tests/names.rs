//! Names are any 1 to 4096 bytes without NUL, and leave nothing behind.

mod support;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use support::{CLAIM, Place, listing};

/// Names that a careless mapping to file names would confuse with each other, or with something else.
fn odd_names() -> Vec<OsString> {
    let mut names: Vec<OsString> = [
        "a",
        "A",
        "a ",
        " a",
        "a/b",
        "/a/b",
        "a/b/",
        "a//b",
        "a%2Fb",
        "a%2fb",
        "/",
        "//",
        ".",
        "..",
        "...",
        "../dir",
        "../../etc/passwd",
        ".hidden",
        "a@1",
        "a@2",
        "a@1.0",
        "a@@",
        "@",
        "@1",
        "%",
        "%%",
        "%2F",
        "%00",
        "%41",
        "a.0",
        "a\nb",
        "a\n",
        "\n",
        "a\tb",
        "a\\b",
        "\\",
        "\\x0a",
        "\u{1b}[31m",
        "\u{7f}",
        "\u{85}",
        "*",
        "?",
        "$(id)",
        "'",
        "\"",
        "~",
        "=",
        "a=b",
        "-n",
        "--",
        "ünï",
        "u\u{308}ni\u{308}",
        "日本語",
        "\u{202e}rtl",
        "\u{1f980}",
        "format",
        "fence",
        "holders",
        "claims",
        "queues",
        "stats",
        "0",
        "00",
        "1",
        "con",
        "a:b",
        "a,b",
        "a;b",
        "#",
        "!",
        "CLAIM_NAME",
    ]
    .map(OsString::from)
    .into();
    names.extend(
        [&b"\xff"[..], b"\xfe\xff", b"a\xc3", b"\x80", b"\xed\xa0\x80", b"\x01", b"\x1f"]
            .map(|b| OsString::from_vec(b.to_vec())),
    );
    // Long ones, and families that share a long prefix (or suffix) and differ in the last (or first) byte only.
    for length in [100, 127, 128, 200, 239, 240, 250, 251, 252, 253, 254, 255, 256, 257, 300, 1000, 4095, 4096] {
        for filler in ["x", "/", "%", "\u{1}", "."] {
            names.push(filler.repeat(length).into());
        }
        names.push(OsString::from("x".repeat(length - 1) + "y"));
        names.push(OsString::from("y".to_owned() + &"x".repeat(length - 1)));
    }
    names.push(OsString::from_vec(vec![0xff; 4096]));
    names.sort();
    names.dedup();
    names
}

#[test]
fn any_name_can_be_held_and_is_told_from_every_other() {
    let place = Place::new();
    // Each is acquired while all others are held: no two of them are one claim.
    for name in odd_names() {
        let mut command = place.claim(["-n", "--acquire", "--pid", &std::process::id().to_string(), "--"]);
        command.arg(&name);
        let outcome = place.run(command);
        assert_eq!(outcome.code(), 0, "{name:?} ({} bytes): {}", name.len(), outcome.stderr);
    }
    for name in odd_names() {
        let mut command = place.claim(["--available", "--"]);
        command.arg(&name);
        assert_eq!(place.run(command).code(), 1, "{name:?} is held");
    }
    assert_eq!(place.run(place.claim(["--who", "--json"])).expect(0).stdout.lines().count(), odd_names().len());
    assert_eq!(
        place.run(place.claim(["--who"])).expect(0).stdout.lines().count(),
        odd_names().len(),
        "one record, one line"
    );
    for name in odd_names() {
        let mut command = place.claim(["--release", "--pid", &std::process::id().to_string(), "--"]);
        command.arg(&name);
        assert_eq!(place.run(command).code(), 0, "{name:?}");
    }
    let outside: Vec<_> = listing(place.root()).into_iter().filter(|path| !path.starts_with("dir")).collect();
    assert!(outside.iter().all(|path| path.to_string_lossy().starts_with("std")), "made outside: {outside:?}");
    place.assert_clean();
}

#[test]
fn command_gets_the_name_byte_by_byte() {
    let place = Place::new();
    for name in odd_names() {
        let mut command = place.claim(["-n", "--"]);
        command.arg(&name).args(["sh", "-c", r#"printf %s "$CLAIM_NAME" > "$0""#]).arg(place.path("name"));
        let outcome = place.run(command);
        assert_eq!(outcome.code(), 0, "{name:?}: {}", outcome.stderr);
        assert_eq!(OsStr::from_bytes(&fs::read(place.path("name")).unwrap()), name);
    }
    place.assert_clean();
}

#[test]
fn any_name_can_be_waited_for() {
    let place = Place::new();
    for name in ["..", "a/b", "a\nb", "%", "@", &"n".repeat(255), &"%".repeat(4096), &"\u{1}".repeat(4096)] {
        let holder = place.hold(&[name]);
        let waiter = place.wait_in_line(name, &["-m", "1", name]);
        assert_eq!(place.try_once(&[name]), 75);
        let mut crashed = place.wait_in_line(name, &[name]);
        crashed.kill_claim();
        holder.finish().expect(0);
        waiter.finish().expect(0);
        assert_eq!(place.try_once(&[name]), 0);
        place.assert_clean();
    }
}

#[test]
fn a_crash_under_any_name_leaves_nothing_after_the_next_run_of_it() {
    let place = Place::new();
    for name in ["..", "a/b", "\n", &"x".repeat(4096), &"\u{1}".repeat(300)] {
        place.crash(&[name]);
        assert_eq!(place.try_once(&[name]), 0);
        place.assert_clean();
    }
}

#[test]
fn an_empty_name_and_one_of_4097_bytes_are_64() {
    let place = Place::new();
    for name in [String::new(), "x".repeat(4097)] {
        for args in [&[&name, "true"][..], &["--available", &name], &["--who", &name], &["--release", &name, "--force"]]
        {
            assert_eq!(place.status(args), 64, "{} bytes, {args:.20?}", name.len());
        }
    }
}

#[test]
fn control_bytes_are_shown_as_hex_in_names_and_labels() {
    let place = Place::new();
    let name = "a\n\t\u{1b}[31mb\u{7f}";
    let shown = r"a\x0a\x09\x1b[31mb\x7f";
    let holder = place.hold(&["--label", "l\rm\n", name]);
    let waiter = place.wait_in_line(name, &["--label", "w", name]);
    let who = place.run(place.claim(["--who"])).expect(0).stdout;
    assert_eq!(who.lines().count(), 2, "{who}");
    assert!(who.lines().all(|line| line.starts_with(&format!("{shown}[1/1] "))), "{who}");
    assert!(who.contains(r"cmd=l\x0dm\x0a"), "{who}");
    assert!(!who.bytes().any(|byte| (byte < 0x20 && byte != b'\n') || byte == 0x7f));
    let not_had = place.run(place.claim(["-n", name, "true"])).expect(75).stderr;
    assert!(not_had.starts_with(&format!("claim: {shown}: ")), "{not_had}");
    assert_eq!(not_had.lines().count(), 1);
    holder.finish().expect(0);
    waiter.finish().expect(0);
    // COMMAND is the label where none is given, and may have control bytes too.
    let _run = place.start(place.claim(["x", "sh", "-c", "sleep 1000 # a\nb", "\u{7}"]));
    support::until("held", || place.holders("x").len() == 1);
    let who = place.run(place.claim(["--who", "x"])).stdout;
    assert_eq!(who.lines().count(), 1, "{who}");
}

#[test]
fn json_has_the_name_as_it_is_and_in_base64_where_it_is_not_utf_8() {
    let place = Place::new();
    for (bytes, json, base64) in [
        (&b"plain"[..], "plain", None),
        ("d\u{e9}j\u{e0}\n\u{1f980}".as_bytes(), "d\u{e9}j\u{e0}\n\u{1f980}", None),
        (b"a\xff", "a\u{fffd}", Some("Yf8=")),
        (b"\xfe\xffz\n", "\u{fffd}\u{fffd}z\n", Some("/v96Cg==")),
        (b"x\xc3", "x\u{fffd}", Some("eMM=")),
    ] {
        let mut command = place.claim(["-n", "--"]);
        command.arg(OsStr::from_bytes(bytes));
        command.args(["sh", "-c", r#""$0" --who --json"#, CLAIM]).env("CLAIM_DIR", place.dir());
        let outcome = place.run(command).expect(0);
        let entry: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("one line of JSON");
        assert_eq!(entry["name"], json);
        assert_eq!(entry.get("name_b64").and_then(|value| value.as_str()), base64, "{json}");
    }
}
