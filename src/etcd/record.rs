//! The value of a contender's key: who it is, for people and for `--who`. Nothing is decided by it.

use serde::{Deserialize, Serialize};

/// Who holds or waits, as JSON in etcd.
///
/// The words of a command do not belong here unless its owner says so: `label` is what may be shown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Record {
    /// The host, by its name.
    #[serde(default)]
    pub host: String,
    /// The process that contends.
    #[serde(default)]
    pub pid: u32,
    /// The process that runs while the claim is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_pid: Option<u32>,
    /// When it was had, or began to wait: milliseconds since 1970.
    #[serde(default)]
    pub since_ms: u64,
    /// The class among its host's contenders.
    #[serde(default)]
    pub class: String,
    /// What to show.
    #[serde(default)]
    pub label: String,
    /// Until when the slot stays taken at least: milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// Whoever had it has given it back: until then the slot stays taken with nobody to hold it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resting: bool,
    /// The slot; absent as long as it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
}

impl Record {
    /// A record of this process on this host.
    pub fn here(class: impl Into<String>, label: impl Into<String>) -> Record {
        Record { host: host(), pid: std::process::id(), class: class.into(), label: label.into(), ..Record::default() }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        // A struct of strings and numbers always has a JSON form.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Record> {
        serde_json::from_slice(bytes).ok()
    }
}

/// The name that this host goes by (`uname -n`).
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_was_and_bears_what_it_does_not_know() {
        let record = Record { until_ms: Some(7), ..Record::here("low", "a \"label\"\n") };
        assert_eq!(Record::decode(&record.encode()), Some(record));
        let later = Record::decode(br#"{"host":"h","pid":3,"colour":"blue"}"#).unwrap();
        assert_eq!((later.host.as_str(), later.pid), ("h", 3));
        assert_eq!(Record::decode(b"no json"), None);
    }
}
