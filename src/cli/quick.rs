//! The plain command line, read without setting up the whole parser, which would be the largest part of a short run's time.
//!
//! It answers only where it is sure; everything else (help, errors, abbreviated or joined options, modes other than running
//! a COMMAND) is left to the definition in [`args`](super::args). What it does answer is what that would have answered: a
//! test compares the two on many command lines.

use std::ffi::{OsStr, OsString};

use crate::class::Class;
use crate::cli::args::Args;
use crate::cli::duration;

/// Reads `claim [OPTIONS] NAME [OPTIONS] [--] COMMAND [ARG...]`, or says nothing.
pub(crate) fn read(words: &[OsString]) -> Option<Args> {
    let mut args = Args::plain();
    let mut words = words.iter().skip(1);
    let mut seen = Vec::new();
    while let Some(word) = words.next() {
        let bytes = word.as_encoded_bytes();
        if word == "--" {
            // Where NAME is not known yet, it may begin with `-`, and another `--` may follow it.
            args.name.as_ref()?;
            args.command = words.cloned().collect();
            break;
        }
        if !bytes.starts_with(b"-") {
            if args.name.is_some() {
                args.command = std::iter::once(word).chain(words).cloned().collect();
                break;
            }
            args.name = Some(word.clone());
            continue;
        }
        // An option that comes twice is the definition's business.
        if seen.contains(&bytes) {
            return None;
        }
        seen.push(bytes);
        option(&mut args, word.to_str()?, || words.next())?;
    }
    // A `--` at the head of COMMAND, or no COMMAND at all, is not plain.
    let is_plain = args.command.first().is_some_and(|first| first != "--") && !bytes_repeat(&seen);
    is_plain.then_some(args)
}

fn option<'a>(args: &mut Args, option: &str, mut value: impl FnMut() -> Option<&'a OsString>) -> Option<()> {
    let mut text =
        || value().and_then(|value| value.to_str()).filter(|value| !value.is_empty() && !value.starts_with('-'));
    let time = |text: &str| duration::parse(text).ok();
    match option {
        "-n" | "--nonblock" => args.nonblock = true,
        "-v" | "--verbose" => args.verbose = true,
        "-q" | "--quiet" => args.quiet = true,
        "-F" | "--exec" => args.exec = true,
        "--tree" => args.tree = true,
        "--spread" => args.spread = true,
        "-w" | "--wait" => args.wait = Some(time(text()?)?),
        "--at-least" => args.at_least = Some(time(text()?)?),
        "--kill-after" => args.kill_after = Some(time(text()?)?),
        "-m" | "--max" => args.max = digits(text()?)?,
        "-E" | "--conflict-exit-code" => args.conflict_exit_code = u8::try_from(digits(text()?)?).ok()?,
        "--queue-size" => args.queue_size = Some(digits(text()?)?),
        "--class" => args.class = text()?.parse::<Class>().ok()?,
        "--label" => args.label = Some(OsStr::new(text()?).to_owned()),
        "--dir" => args.dir = Some(text()?.into()),
        "--events" => args.events = Some(text()?.into()),
        _ => return None,
    }
    (args.max > 0 && !(args.quiet && args.verbose)).then_some(())
}

/// A number in digits alone, without the forms that parsers differ about.
fn digits(text: &str) -> Option<u32> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && text != "0";
    plain.then(|| text.parse().ok()).flatten()
}

/// Whether an option stands there in both its forms.
fn bytes_repeat(seen: &[&[u8]]) -> bool {
    const FORMS: [(&str, &str); 7] = [
        ("-n", "--nonblock"),
        ("-v", "--verbose"),
        ("-q", "--quiet"),
        ("-F", "--exec"),
        ("-w", "--wait"),
        ("-m", "--max"),
        ("-E", "--conflict-exit-code"),
    ];
    FORMS.iter().any(|(short, long)| seen.contains(&short.as_bytes()) && seen.contains(&long.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Words that make command lines which are mostly right, and sometimes wrong in every way.
    fn word() -> impl Strategy<Value = String> {
        let options = [
            "-n",
            "--nonblock",
            "-v",
            "--verbose",
            "-q",
            "--quiet",
            "-F",
            "--exec",
            "--no-fork",
            "--tree",
            "--spread",
            "-w",
            "--wait",
            "--at-least",
            "--kill-after",
            "-m",
            "--max",
            "-E",
            "--conflict-exit-code",
            "--queue-size",
            "--class",
            "--label",
            "--dir",
            "--events",
            "-c",
            "-x",
            "-e",
            "-o",
            "--close",
            "--exclusive",
            "--who",
            "--json",
            "--master",
            "--acquire",
            "--pid",
            "--",
            "-",
            "--max=2",
            "-m2",
            "-nv",
            "--bogus",
            "--help",
            "-V",
        ];
        let values = [
            "1",
            "0",
            "75",
            "2.5",
            "10s",
            "1m30s",
            "-1",
            "low",
            "high",
            "",
            "x",
            "job",
            "true",
            "4294967296",
            "007",
            "256",
        ];
        prop_oneof![
            4 => prop::sample::select(values.map(str::to_owned).to_vec()),
            5 => prop::sample::select(options.map(str::to_owned).to_vec()),
            1 => "\\PC{0,4}",
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn what_is_read_quickly_is_what_the_definition_says(words in prop::collection::vec(word(), 0..9)) {
            let words: Vec<OsString> = std::iter::once("claim".to_owned()).chain(words).map(OsString::from).collect();
            if let Some(quick) = read(&words) {
                match Args::read_defined(&words) {
                    Ok(defined) => prop_assert_eq!(quick, defined),
                    Err(error) => prop_assert!(false, "{words:?} is wrong: {error}"),
                }
            }
        }
    }

    #[test]
    fn the_plain_cases_are_read() {
        for line in [
            "claim x true",
            "claim x -- true",
            "claim -n x -- true -n",
            "claim -w 5 -m 3 x ./a b",
            "claim x --label a -v -- b",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(read(&words).is_some(), "{line}");
        }
    }
}
