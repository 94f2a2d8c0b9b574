//! Where in etcd a claim is. The only maker and reader of keys.
//!
//! ```text
//! PREFIX sema/NAME/MAX/LEASE    a contender: holder or waiter (HOST in place of LEASE for one slot per host)
//! PREFIX slot/NAME/MAX/SLOT     which holder has which slot, where there are several
//! ```
//!
//! NAME is percent-encoded, slashes included, so no name is inside another's prefix.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

/// What stays as it is in a key; everything else becomes `%XX`.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A range of keys: one, or everything that begins like it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    pub start: Vec<u8>,
    alone: bool,
}

impl Range {
    /// Everything that begins with `start`.
    pub(super) fn new(start: Vec<u8>) -> Range {
        Range { start, alone: false }
    }

    /// `key` and nothing else.
    pub(super) fn only(key: &[u8]) -> Range {
        Range { start: key.to_vec(), alone: true }
    }

    /// The first key behind the range, as etcd wants it: nothing for one key.
    pub(super) fn end(&self) -> Vec<u8> {
        if self.alone {
            return Vec::new();
        }
        let mut end = self.start.clone();
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                return end;
            }
        }
        // Nothing but 0xff: etcd reads a single zero byte as "to the end of all keys".
        vec![0]
    }
}

/// The layout below one prefix.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    root: String,
}

/// What a contender's key says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub name: Vec<u8>,
    pub max: u32,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Keys {
        Keys { root: prefix.to_owned() }
    }

    /// Every contender for any name.
    pub(super) fn all(&self) -> Range {
        Range::new(format!("{}sema/", self.root).into_bytes())
    }

    /// Every contender for `name`, whatever the capacity.
    pub(super) fn name(&self, name: &[u8]) -> Range {
        Range::new(format!("{}sema/{}/", self.root, percent_encode(name, ESCAPED)).into_bytes())
    }

    /// The contenders for one claim.
    pub(super) fn contenders(&self, name: &[u8], max: u32) -> Range {
        Range::new(format!("{}sema/{}/{max}/", self.root, percent_encode(name, ESCAPED)).into_bytes())
    }

    /// The slots of one claim.
    pub(super) fn slots(&self, name: &[u8], max: u32) -> Range {
        Range::new(format!("{}slot/{}/{max}/", self.root, percent_encode(name, ESCAPED)).into_bytes())
    }

    /// A contender's key, named by its lease.
    pub(super) fn by_lease(&self, name: &[u8], max: u32, lease: i64) -> Vec<u8> {
        let mut key = self.contenders(name, max).start;
        key.extend_from_slice(lease_hex(lease).as_bytes());
        key
    }

    /// A contender's key, named by its host.
    pub(super) fn by_host(&self, name: &[u8], max: u32, host: &str) -> Vec<u8> {
        let mut key = self.contenders(name, max).start;
        key.extend_from_slice(percent_encode(host.as_bytes(), ESCAPED).to_string().as_bytes());
        key
    }

    /// A slot's key.
    pub(super) fn slot(&self, name: &[u8], max: u32, slot: u32) -> Vec<u8> {
        let mut key = self.slots(name, max).start;
        key.extend_from_slice(slot.to_string().as_bytes());
        key
    }

    /// The slot that a slot's key names.
    pub(super) fn parse_slot(&self, slots: &Range, key: &[u8]) -> Option<u32> {
        std::str::from_utf8(key.strip_prefix(&slots.start[..])?).ok()?.parse().ok()
    }

    /// What a contender's key says; nothing for a key that this layout does not make.
    pub(super) fn parse(&self, key: &[u8]) -> Option<Parsed> {
        let rest = std::str::from_utf8(key.strip_prefix(&self.all().start[..])?).ok()?;
        let mut parts = rest.split('/');
        let (encoded, max, last) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || last.is_empty() {
            return None;
        }
        let name: Vec<u8> = percent_decode_str(encoded).collect();
        let parsed = Parsed { max: max.parse().ok().filter(|max| *max > 0)?, name };
        let mut again = self.contenders(&parsed.name, parsed.max).start;
        again.extend_from_slice(last.as_bytes());
        (again == key).then_some(parsed)
    }
}

/// A lease as etcdctl prints it.
pub(crate) fn lease_hex(lease: i64) -> String {
    format!("{lease:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_layout() {
        let keys = Keys::new("/claim/v1/");
        assert_eq!(keys.by_lease(b"a/b", 2, 0x1234), b"/claim/v1/sema/a%2Fb/2/0000000000001234");
        assert_eq!(keys.by_host(b"job", 1, "node.1"), b"/claim/v1/sema/job/1/node.1");
        assert_eq!(keys.slot(b"job", 3, 2), b"/claim/v1/slot/job/3/2");
        assert_eq!(keys.contenders(b"job", 1).end(), b"/claim/v1/sema/job/10");
    }

    #[test]
    fn foreign_keys_are_not_ours() {
        let keys = Keys::new("/claim/v1/");
        for key in ["", "/claim/v1/", "/claim/v1/sema/a", "/claim/v1/sema/a/1/", "/claim/v1/sema/a/0/x"] {
            assert_eq!(keys.parse(key.as_bytes()), None, "{key}");
        }
        for key in ["/claim/v1/sema/a/01/x", "/claim/v1/sema/a/1/x/y", "/claim/v1/sema/%61/1/x", "/claim/v2/sema/a/1/x"]
        {
            assert_eq!(keys.parse(key.as_bytes()), None, "{key}");
        }
    }

    #[test]
    fn a_prefix_of_the_highest_bytes_ends_with_all_keys() {
        assert_eq!(Range::new(vec![b'a', 0xff]).end(), b"b");
        assert_eq!(Range::new(vec![0xff]).end(), [0]);
    }

    proptest! {
        #[test]
        fn what_is_made_is_read_back(name in proptest::collection::vec(1u8.., 1..40), max in 1u32.., lease in 1i64..) {
            let keys = Keys::new("/p/");
            let parsed = keys.parse(&keys.by_lease(&name, max, lease));
            prop_assert_eq!(parsed, Some(Parsed { name, max }));
        }

        #[test]
        fn no_name_is_inside_another(
            one in proptest::collection::vec(1u8.., 1..8),
            other in proptest::collection::vec(1u8.., 1..8),
            max in 1u32..200,
            lease in 1i64..,
        ) {
            let keys = Keys::new("/p/");
            let inside = keys.by_lease(&other, max, lease).starts_with(&keys.name(&one).start);
            prop_assert_eq!(inside, one == other);
        }
    }
}
