//! Durations as people type them.

use std::time::Duration;

/// Longer than this is for ever.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// `500ms`, `2.5`, `10s`, `1m30s`, `2h`, `1d`: numbers with units, a bare number being seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let bad = || format!("not a duration: {text:?} (as in 500ms, 2.5, 10s, 1m30s, 2h)");
    let mut seconds = 0.0_f64;
    let mut rest = text;
    if rest.is_empty() {
        return Err(bad());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        if !number.bytes().any(|byte| byte.is_ascii_digit()) {
            return Err(bad());
        }
        let number: f64 = number.parse().map_err(|_| bad())?;
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, after) = tail.split_at(letters);
        let unit = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            // Only alone: `1m30` might be meant as anything.
            "" if rest.len() == text.len() && after.is_empty() => 1.0,
            _ => return Err(bad()),
        };
        seconds += number * unit;
        rest = after;
    }
    Ok(if seconds >= FOR_EVER.as_secs_f64() { FOR_EVER } else { Duration::from_secs_f64(seconds) })
}

/// A duration to the second, as people read it: `3s`, `2m05s`, `1h00m`.
pub(crate) fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_the_contract_has_them() {
        for (text, ms) in [
            ("500ms", 500),
            ("2.5", 2500),
            ("10s", 10_000),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
            ("0", 0),
            (".5s", 500),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "-1", "-5s", "s", "x", "1x", "1m30", "1..2", "1 s", "+1", "1e3", "inf", "nan", ".", "5s5"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for ever in ["99999999999999999999h", "36600d", "9999999999999999999999999999999999999999"] {
            assert_eq!(parse(ever), Ok(FOR_EVER), "{ever}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,12}") {
            let _ = parse(&text);
        }

        #[test]
        fn seconds_read_back(seconds in 0_u32..1_000_000) {
            prop_assert_eq!(parse(&seconds.to_string()), Ok(Duration::from_secs(u64::from(seconds))));
        }
    }

    #[test]
    fn short_is_short() {
        assert_eq!(short(Duration::from_secs(5)), "5s");
        assert_eq!(short(Duration::from_secs(125)), "2m05s");
        assert_eq!(short(Duration::from_secs(3660)), "1h01m");
        assert_eq!(short(Duration::from_secs(90_000)), "1d01h");
    }
}
