//! What the tests against a real etcd need. Each test starts its own, on loopback, and kills it by its number.
#![allow(dead_code)]

pub(crate) mod access;
pub(crate) mod etcd;
pub(crate) mod host;
pub(crate) mod net;
pub(crate) mod proxy;
pub(crate) mod ticks;

use std::time::{Duration, Instant};

use hostclaim::etcd::{Bid, Config, Contender, Event, Held, Inspector, Options, Standing};

/// A wait that takes so long has failed, on however busy a machine.
pub(crate) const HANG: Duration = Duration::from_secs(60);

pub(crate) fn config(endpoints: &str) -> Config {
    config_with(Options { endpoints: Some(endpoints.to_owned()), dial_timeout: Some(HANG / 2), ..Options::default() })
}

pub(crate) fn config_with(options: Options) -> Config {
    Config::resolve(&options, &|_| None).unwrap()
}

pub(crate) fn bid(name: &str, max: u32) -> Bid {
    Bid::new(name, max)
}

pub(crate) fn start(config: &Config, bid: Bid) -> Contender {
    Contender::start(config, bid, None).unwrap()
}

/// The first event that `pick` wants; what comes before is dropped.
pub(crate) fn expect<T>(contender: &Contender, what: &str, pick: impl Fn(&Event) -> Option<T>) -> T {
    let until = Instant::now() + HANG;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match contender.wait_event(Some(left)) {
            Some(event) => match pick(&event) {
                Some(picked) => return picked,
                None => eprintln!("before {what}: {event:?}"),
            },
            None => panic!("no {what} in {HANG:?}"),
        }
    }
}

pub(crate) fn expect_held(contender: &Contender) -> Held {
    expect(contender, "Held", |event| match event {
        Event::Held(held) => Some(held.clone()),
        Event::Failed(error) => panic!("{error}"),
        Event::NotHad(others) => panic!("not had: {others:?}"),
        _ => None,
    })
}

/// Waits until it waits behind exactly so many.
pub(crate) fn expect_waiting(contender: &Contender, behind: usize) {
    expect(contender, "Waiting", |event| match event {
        Event::Waiting { ahead, .. } if *ahead == behind => Some(()),
        Event::Failed(error) => panic!("{error}"),
        Event::Held(held) => panic!("holds: {held:?}"),
        _ => None,
    });
}

/// Fails if the contender has come to hold; it may be told anything else.
pub(crate) fn assert_not_held(contender: &Contender) {
    while let Some(event) = contender.next_event() {
        assert!(!matches!(event, Event::Held(_)), "{event:?}");
    }
}

/// How many hold and how many wait for `name`.
pub(crate) fn counts(config: &Config, name: &str) -> (usize, usize) {
    let entries = Inspector::new(config).unwrap().list(Some(name.as_bytes())).unwrap();
    let held = entries.iter().filter(|entry| entry.standing == Standing::Held).count();
    (held, entries.len() - held)
}

/// Asks again until `done`.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + HANG;
    while !done() {
        assert!(Instant::now() < end, "not in {HANG:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
