//! Waits that could never end: 78, and the others of a ring go on.

mod support;

use support::{Place, lines, until};

/// Runs a script in which `job` is `claim` with the directory; the lines it has written to `out`, sorted.
fn outcome(script: &str) -> Vec<String> {
    let place = Place::new();
    let mut command = place.sh(&format!("job() {{ \"$claim\" --dir \"$dir\" -q \"$@\"; }}\n{script}\nwait"));
    // For what runs inside a COMMAND.
    command.env("job", format!("{} --dir {} -q", support::CLAIM, place.dir().display()));
    place.run(command);
    let mut out = lines(&place.path("out"));
    out.sort();
    if !script.contains("-F") {
        // What a process leaves that has become COMMAND is there for the next run to remove.
        place.assert_clean();
    }
    out
}

#[test]
fn what_a_process_above_holds_could_never_be_had() {
    assert_eq!(outcome("job a -c '$job a true; echo $? >> out'"), ["78"]);
    assert_eq!(outcome("job a -c '$job b -c \"$job -n a true; echo \\$? >> out\"'"), ["78"]);
    assert_eq!(outcome("job -m 2 a -c '$job -m 2 -n a true; echo $? >> out'"), ["0"], "another slot is free");
}

#[test]
fn what_a_process_holds_itself_it_does_not_wait_for_when_it_becomes_claim() {
    assert_eq!(outcome("job -F a $job a true; echo $? >> out"), ["78"]);
    assert_eq!(outcome("job -F a $job -n a true; echo $? >> out"), ["78"]);
    assert_eq!(outcome("job -F a sh -c 'exec $job a true'; echo $? >> out"), ["78"]);
}

/// Each side waits until the other holds, so that the ring closes whoever is faster.
#[test]
fn of_a_ring_one_is_told_and_the_others_go_on() {
    let side = |mine: &str, next: &str| {
        format!(
            "job {mine} -c 'echo >> held; until [ $(wc -l < held) = N ]; do :; done; $job {next} true; echo $? >> out' &\n"
        )
    };
    let two = side("a", "b") + &side("b", "a");
    assert_eq!(outcome(&two.replace("= N", "= 2")), ["0", "78"]);
    let three = side("a", "b") + &side("b", "c") + &side("c", "a");
    assert_eq!(outcome(&three.replace("= N", "= 3")), ["0", "0", "78"]);
}

#[test]
fn a_ring_leads_through_every_slot_of_a_semaphore() {
    let side =
        "job -m 2 a -c 'echo >> held; until [ $(wc -l < held) = 2 ]; do :; done; $job -m 2 a true; echo $? >> out' &\n";
    assert_eq!(outcome(&side.repeat(2)), ["0", "78"]);
    // Both slots of b are held by who waits for a; a's holder waits for b.
    let b = "job -m 2 b -c 'echo >> held; until [ $(wc -l < held) = 3 ]; do :; done; $job a true; echo $? >> out' &\n";
    let a = "job a -c 'echo >> held; until [ $(wc -l < held) = 3 ]; do :; done; $job -m 2 b true; echo $? >> out' &\n";
    let out = outcome(&(b.repeat(2) + a));
    assert_eq!((out.len(), out.iter().filter(|status| *status == "78").count()), (3, 1), "{out:?}");
}

#[test]
fn a_ring_with_a_way_out_is_none() {
    let place = Place::new();
    let other = place.hold(&["-m", "2", "b"]);
    // a holds, and waits for b, of whose two slots one is held below a and one is not.
    let script = r#""$claim" --dir "$dir" -m 2 b -c '
        "$claim" --dir "$dir" -m 2 b true; echo $? > out'"#;
    let run = place.start(place.sh(script));
    until("it waits", || !place.waiters("b").is_empty());
    other.finish().expect(0);
    run.wait().expect(0);
    assert_eq!(lines(&place.path("out")), ["0"]);
}
