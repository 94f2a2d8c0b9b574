//! Man page and completions are made from the one definition of the arguments, and committed. These tests fail when that
//! has changed and they have not; `UPDATE_DOCUMENTS=1 cargo test --test documents` writes them anew.
//!
//! They also see to it that README.md and man page do not contradict each other or the program.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Arg, Command};
use clap_complete::Shell;
use clap_mangen::roff::{Roff, bold, italic, roman};
use hostclaim::{Claim, Directory, Outcome};

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

fn read(file: &str) -> String {
    fs::read_to_string(path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The definition, with what clap adds by itself (help and version).
fn definition() -> Command {
    let mut command = hostclaim::cli::command();
    command.build();
    command
}

/// Compares a committed file with what it should be, or makes it that.
fn is_current(file: &str, expected: &str) {
    if std::env::var_os("UPDATE_DOCUMENTS").is_some_and(|value| value == "1") {
        fs::write(path(file), expected).unwrap();
        return;
    }
    let committed = fs::read_to_string(path(file)).unwrap_or_default();
    if committed == expected {
        return;
    }
    let differs = committed.lines().zip(expected.lines()).position(|(old, new)| old != new);
    let line = differs.unwrap_or_else(|| committed.lines().count().min(expected.lines().count()));
    panic!(
        "{file} is stale, from line {} on:\n  is        {:?}\n  should be {:?}\n\
         UPDATE_DOCUMENTS=1 cargo test --test documents",
        line + 1,
        committed.lines().nth(line),
        expected.lines().nth(line),
    );
}

#[test]
fn the_man_page_is_current() {
    is_current("man/claim.1", &man_page(&read("man/claim.1.in"), &definition()));
}

#[test]
fn the_completions_are_current() {
    for (shell, file) in [(Shell::Bash, "claim.bash"), (Shell::Zsh, "_claim"), (Shell::Fish, "claim.fish")] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut hostclaim::cli::command(), "claim", &mut script);
        is_current(&format!("completions/{file}"), &String::from_utf8(script).unwrap());
    }
}

/// The template with its placeholders filled in: `@VERSION@`, `@SYNOPSIS@`, and for each option `@OPTION id@`.
fn man_page(template: &str, command: &Command) -> String {
    let mut page =
        ".\\\" Made from claim.1.in and the definition of the arguments: see tests/documents.rs.\n".to_owned();
    let mut left: BTreeSet<&str> = options(command).map(|option| option.get_id().as_str()).collect();
    for line in template.lines() {
        if line == "@SYNOPSIS@" {
            page += &synopsis(command);
        } else if let Some(id) = line.strip_prefix("@OPTION ").and_then(|rest| rest.strip_suffix('@')) {
            let option = options(command).find(|option| option.get_id() == id);
            page += &entry(option.unwrap_or_else(|| panic!("man/claim.1.in: there is no option {id}")));
            assert!(left.remove(id), "man/claim.1.in: option {id} stands there twice");
        } else {
            page += &line.replace("@VERSION@", command.get_version().unwrap());
            page.push('\n');
        }
    }
    assert!(left.is_empty(), "man/claim.1.in says nothing of {left:?}");
    page
}

fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set())
}

fn synopsis(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let forms = usage.strip_prefix("Usage: ").unwrap().lines().map(|form| {
        let form = form.trim().strip_prefix("claim").unwrap();
        [vec![bold("claim")], words(form, &[])].concat()
    });
    forms.fold(String::new(), |text, line| text + &rendered(line))
}

/// `.TP`, the ways to write an option, and what it does.
fn entry(option: &Arg) -> String {
    let takes_value = option.get_num_args().is_some_and(|number| number.takes_values());
    let values: Vec<String> =
        option.get_value_names().filter(|_| takes_value).unwrap_or_default().iter().map(ToString::to_string).collect();
    let short = option.get_short_and_visible_aliases().unwrap_or_default().into_iter().map(|c| format!("-{c}"));
    let hidden_short = option.get_all_short_aliases().unwrap_or_default().into_iter().map(|c| format!("-{c}"));
    let long = option.get_long_and_visible_aliases().unwrap_or_default().into_iter().map(|word| format!("--{word}"));
    let mut tag = Vec::new();
    for word in short.chain(hidden_short).chain(long) {
        if !tag.is_empty() {
            tag.push(roman(", "));
        }
        tag.push(bold(word));
    }
    for value in &values {
        tag.extend([roman(" "), italic(value)]);
    }

    let mut help = option.get_long_help().or_else(|| option.get_help()).map(ToString::to_string).unwrap_or_default();
    // Help and version are clap's own; what it says of -h is of no use here.
    if let Some((first, _)) = help.split_once(" (see ") {
        help = first.to_owned();
    }
    if !help.ends_with('.') {
        help.push('.');
    }
    let possible: Vec<String> = option.get_possible_values().iter().map(|it| format!("`{}`", it.get_name())).collect();
    if takes_value && !possible.is_empty() {
        let _ = write!(help, " {} is one of {}.", values[0], possible.join(", "));
    }
    let defaults: Vec<String> = option.get_default_values().iter().map(|v| v.to_string_lossy().into_owned()).collect();
    if takes_value && !defaults.is_empty() {
        let _ = write!(help, " The default is {}.", defaults.join(", "));
    }
    // One sentence a line, as mandoc(1) would have it.
    let sentences = help.replace('\n', " ").replace(". ", ".\n");
    let body = sentences.lines().map(|sentence| rendered(words(sentence, &values)));
    format!(".TP\n{}{}", rendered(tag), body.collect::<String>())
}

/// Text with what is to be typed in bold (`in backquotes`, or an option) and what stands for something in italics.
fn words(text: &str, values: &[String]) -> Vec<clap_mangen::roff::Inline> {
    const STAND_FOR_SOMETHING: [&str; 5] = ["NAME", "COMMAND", "PID", "DUR", "ARG"];
    let mut parts = Vec::new();
    for (number, piece) in text.split('`').enumerate() {
        if number % 2 == 1 {
            parts.push(bold(piece));
            continue;
        }
        let is_part_of_word = |c: char| c.is_alphanumeric() || c == '-' || c == '$' || c == '_';
        let mut rest = piece;
        while !rest.is_empty() {
            let starts_word = rest.starts_with(is_part_of_word);
            let end = rest.find(|c| is_part_of_word(c) != starts_word).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            rest = after;
            let is_option = word.len() > 1 && word.starts_with('-') && word != "--";
            let is_value = STAND_FOR_SOMETHING.contains(&word) || values.iter().any(|value| value == word);
            parts.push(match (is_option, is_value) {
                (true, _) => bold(word),
                (_, true) => italic(word),
                _ => roman(word),
            });
        }
    }
    parts
}

fn rendered(line: Vec<clap_mangen::roff::Inline>) -> String {
    Roff::new().text(line).to_roff()
}

#[test]
fn every_option_is_explained_where_people_look() {
    let (readme, man) = (read("README.md"), read("man/claim.1").replace("\\-", "-"));
    for option in options(&definition()) {
        if let Some(long) = option.get_long() {
            assert!(man.contains(&format!("--{long}")), "--{long} is not in man/claim.1");
        }
    }
    // And nothing is explained that is not there.
    let known: BTreeSet<String> = options(&definition())
        .flat_map(|option| option.get_long_and_visible_aliases().unwrap_or_default())
        .map(ToOwned::to_owned)
        .collect();
    for (file, text) in [("README.md", readme), ("man/claim.1", man)] {
        for line in text.lines().filter(|line| line.contains("claim ")) {
            let ours = line.split("claim ").skip(1).collect::<String>();
            let ours = ours.split(" -- ").next().unwrap_or_default();
            for word in ours.split(|c: char| !(c.is_alphanumeric() || c == '-')).filter(|word| word.starts_with("--")) {
                let name = word.trim_start_matches('-');
                assert!(name.is_empty() || known.contains(name), "{file} knows --{name}, the program does not: {line}");
            }
        }
    }
}

#[test]
fn readme_and_man_page_have_the_same_exit_statuses() {
    let (readme, man) = (statuses_of_readme(&read("README.md")), statuses_of_man_page(&read("man/claim.1")));
    assert!(man.len() >= 10, "{man:?}");
    assert_eq!(readme, man);
}

/// The rows of the table under the heading.
fn statuses_of_readme(text: &str) -> BTreeMap<String, String> {
    let section = text.split("\n## Exit status\n").nth(1).expect("README.md has a section `Exit status`");
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let cells = rows.map(|row| row.trim_matches('|').split_once('|').expect("two columns"));
    cells.map(|(status, when)| (plain(status), plain(when))).collect()
}

/// The tagged paragraphs of the section.
fn statuses_of_man_page(text: &str) -> BTreeMap<String, String> {
    let section = text.split("\n.SH EXIT STATUS\n").nth(1).expect("man/claim.1 has a section EXIT STATUS");
    let section = section.split("\n.PP\n").next().unwrap();
    let entries = section.split(".TP\n").filter(|entry| !entry.trim().is_empty());
    let parts = entries.map(|entry| entry.split_once('\n').expect("a tag and a text"));
    parts.map(|(status, when)| (plain(status), plain(when))).collect()
}

/// Text without the markup of either.
fn plain(text: &str) -> String {
    let mut text = text.replace(['`', '*', '\n'], " ");
    for font in ["\\fB", "\\fI", "\\fP", "\\fR"] {
        text = text.replace(font, "");
    }
    text.replace("\\-", "-").split_whitespace().collect::<Vec<_>>().join(" ")
}

// The programs of the README, which it has to have word for word.

fn nightly(dir: &Directory) -> hostclaim::Result<()> {
    let mut claim = Claim::new(dir, "nightly-report")?;
    match claim.acquire(Some(Duration::from_secs(5)))? {
        Outcome::Acquired(fence) => println!("ours, with the number {fence}"),
        Outcome::AlreadyHeld(_) => unreachable!("this handle held nothing before"),
        Outcome::Refused(refused) => println!("not had: {:?}", refused.reason),
    }
    Ok(())
} // given back here, if it was had

fn workers(number: u32) -> hostclaim::Result<()> {
    let master = hostclaim::Master::new()?; // before the first fork
    let mut once = Claim::new(master.directory(), "rotate")?.at_least(Duration::from_secs(300));
    for _ in 0..number {
        fork_a_worker(|| {
            if let Outcome::Acquired(_) = once.acquire(Some(Duration::ZERO))? {
                rotate(); // in one worker of them all
            }
            Ok(())
        })?;
    }
    Ok(())
} // the directory is removed here, by the process that made it

/// What a pool does in its own way. Here nobody is forked.
fn fork_a_worker(work: impl FnOnce() -> hostclaim::Result<()>) -> hostclaim::Result<()> {
    work()
}

fn rotate() {}

#[test]
fn the_programs_in_the_readme_are_compiled_and_run() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = Directory::at(scratch.path().join("claims")).unwrap();
    nightly(&dir).unwrap();
    workers(3).unwrap();

    let here = read("tests/documents.rs");
    let readme = read("README.md");
    let blocks: Vec<&str> = readme.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        for part in block.split("\n\n").filter(|part| !part.starts_with("use ")) {
            assert!(here.contains(part.trim()), "tests/documents.rs does not have, word for word:\n{part}");
        }
    }
}

#[test]
fn the_files_that_the_readme_names_are_there() {
    use std::os::unix::fs::PermissionsExt;
    let readme = read("README.md");
    for file in ["examples/report.sh", "examples/crontab", "examples/nightly-report.service", "check", "CHANGELOG.md"] {
        assert!(readme.contains(file), "README.md does not name {file}");
        assert!(path(file).is_file(), "{file} is not there");
    }
    for program in ["examples/report.sh", "check", ".ci/run"] {
        assert!(
            fs::metadata(path(program)).unwrap().permissions().mode() & 0o111 == 0o111,
            "{program}: not executable"
        );
    }
}
