//! Events: one JSON line each, with the occupancy after it.

mod support;

use std::collections::BTreeMap;

use serde_json::Value;
use support::{Place, Signal, lines, until};

/// The seconds of `retry after Ns` in a message.
#[track_caller]
fn retry_after(message: &str) -> u64 {
    let rest = message.split("retry after ").nth(1).unwrap_or_else(|| panic!("no `retry after`: {message}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    assert!(rest[digits.len()..].starts_with('s'), "{message}");
    digits.parse().unwrap()
}
/// The events of a scripted run with every kind of event in it, each with the occupancy after it.
#[test]
fn events_are_appended_with_the_occupancy_after_them() {
    let place = Place::new();
    let events = place.path("events");
    let file = events.to_str().unwrap();
    let args = |options: &[&'static str]| {
        [&["--events", file], options, &["job"]].concat().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let wait = |options: &[&'static str]| {
        place.wait_in_line("job", &args(options).iter().map(String::as_str).collect::<Vec<_>>())
    };
    let hold = |options: &[&'static str]| place.hold(&args(options).iter().map(String::as_str).collect::<Vec<_>>());
    let seen =
        || lines(&events).iter().map(|line| serde_json::from_str::<Value>(line).expect("JSON")).collect::<Vec<_>>();
    let told =
        |event: &str, count: usize| until(event, || seen().iter().filter(|e| e["event"] == event).count() == count);

    let mut holder = hold(&[]);
    let busy = place.run(place.claim(["--events", file, "-n", "job", "true"])).expect(75);
    assert!(busy.stderr.contains("claim: job: "));
    let low = wait(&["--class", "low"]);
    let normal = wait(&["--class", "normal"]);
    let refused =
        place.run(place.claim(["--events", file, "--queue-size", "2", "--class", "low", "job", "true"])).expect(75);
    let high = place.queue(&["--events", file, "--queue-size", "2", "--class", "high", "job"]);
    low.run.wait().expect(75);
    told("queued", 3);
    normal.run.signal(Signal::TERM);
    normal.run.wait().expect(143);
    told("abandoned", 1);
    until("it waits", || place.waiters("job").len() == 1);
    holder.kill_claim();
    holder.kill_command();
    high.started();
    assert_eq!(place.status(["--release", "job", "--force"]), 0);
    let fence = high.started().fence;
    high.finish();
    told("lost", 1);

    let events = seen();
    let all = |event: &str| events.iter().filter(|e| e["event"] == event).collect::<Vec<_>>();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for event in &events {
        *counts.entry(event["event"].as_str().unwrap()).or_default() += 1;
        for key in [
            "ts",
            "name",
            "max",
            "class",
            "pid",
            "held",
            "queued",
            "queued_interactive",
            "queued_high",
            "queued_normal",
            "queued_low",
        ] {
            assert!(event.get(key).is_some(), "{key}: {event}");
        }
        assert_eq!((&event["name"], &event["max"]), (&Value::from("job"), &Value::from(1)));
        let by_class = ["queued_interactive", "queued_high", "queued_normal", "queued_low"]
            .map(|key| event[key].as_u64().unwrap());
        assert_eq!(event["queued"].as_u64().unwrap(), by_class.iter().sum::<u64>(), "{event}");
    }
    for (event, count) in [
        ("acquired", 2),
        ("rejected", 2),
        ("queued", 3),
        ("displaced", 1),
        ("abandoned", 1),
        ("reclaimed", 1),
        ("lost", 1),
    ] {
        assert_eq!(counts.get(event), Some(&count), "{event}: {events:#?}");
    }
    let occupancy = |event: &Value| (event["held"].as_u64().unwrap(), event["queued"].as_u64().unwrap());
    assert_eq!(occupancy(all("acquired")[0]), (1, 0));
    assert_eq!(occupancy(all("rejected")[0]), (1, 0), "a busy -n");
    assert_eq!(all("rejected")[0]["retry_after"], 2);
    assert_eq!(all("queued").iter().map(|e| occupancy(e)).collect::<Vec<_>>(), [(1, 1), (1, 2), (1, 2)]);
    assert_eq!(occupancy(all("rejected")[1]), (1, 2));
    assert_eq!(all("rejected")[1]["retry_after"], retry_after(&refused.stderr));
    assert_eq!(
        (&all("displaced")[0]["retry_after"], &all("displaced")[0]["class"]),
        (&Value::from(6), &Value::from("low"))
    );
    assert_eq!(occupancy(all("abandoned")[0]), (1, 1));
    assert_eq!(occupancy(all("acquired")[1]), (1, 0));
    assert_eq!(all("acquired")[1]["fence"], fence);
    assert!(all("acquired")[1]["wait_ms"].is_u64());
}

#[test]
fn a_release_is_an_event_with_duration_and_fence() {
    let place = Place::new();
    let events = place.path("events");
    place.run(place.claim(["--events", events.to_str().unwrap(), "job", "sh", "-c", "sleep 0.1"])).expect(0);
    let events: Vec<Value> = lines(&events).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.iter().map(|e| e["event"].as_str().unwrap()).collect::<Vec<_>>(), ["acquired", "released"]);
    assert_eq!(events[0]["fence"], events[1]["fence"]);
    assert!(events[1]["duration_ms"].as_u64().unwrap() >= 100);
    assert_eq!((&events[0]["held"], &events[1]["held"]), (&Value::from(1), &Value::from(0)));
}
