//! What is claimed: a name, and how many may hold it.

use std::fmt;
use std::num::NonZeroU32;

use crate::error::{Error, Result};

/// The name of a claim: 1 to 4096 bytes, any but NUL. Nothing in it has a meaning: `a/b`, `..` and spaces are names
/// like others, and case counts.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Vec<u8>);

impl Name {
    /// The longest name, in bytes.
    pub const LONGEST: usize = 4096;

    /// Checks and keeps a name.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) if it is empty, too long, or has a NUL in it.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(Error::usage("the name is empty"));
        }
        if bytes.len() > Self::LONGEST {
            return Err(Error::usage(format!("the name has {} bytes, {} are the most", bytes.len(), Self::LONGEST)));
        }
        if bytes.contains(&0) {
            return Err(Error::usage("the name has a NUL byte"));
        }
        Ok(Self(bytes))
    }

    /// The bytes as they were given.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// One line whatever is in it: control bytes, and bytes that are not UTF-8, show as `\xNN`.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.0))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}

/// How many may hold a name at once. It is part of the identity: `job` with 2 and `job` with 3 are two claims.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Capacity(NonZeroU32);

impl Capacity {
    /// One holder at a time.
    pub const ONE: Self = Self(NonZeroU32::MIN);

    /// # Errors
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) for nought.
    pub fn new(max: u32) -> Result<Self> {
        NonZeroU32::new(max).map(Self).ok_or_else(|| Error::usage("a capacity of 0 lets nobody in"))
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What identifies a claim in a directory: the name and its capacity.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key {
    /// The name.
    pub name: Name,
    /// How many may hold it.
    pub max: Capacity,
}

/// Text for one line of a terminal or log: control characters and what is not UTF-8 as `\xNN`.
pub(crate) fn printable(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
                let mut utf8 = [0; 4];
                for byte in c.encode_utf8(&mut utf8).bytes() {
                    let _ = write!(out, "\\x{byte:02x}");
                }
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds() {
        assert!(Name::new("").is_err());
        assert!(Name::new("a\0b").is_err());
        assert!(Name::new(vec![b'x'; 4096]).is_ok());
        assert!(Name::new(vec![b'x'; 4097]).is_err());
        assert!(Capacity::new(0).is_err());
    }

    #[test]
    fn one_name_is_one_line() {
        assert_eq!(Name::new("a\nb\x1b[31m\u{85}é").unwrap().to_string(), r"a\x0ab\x1b[31m\xc2\x85é");
        assert_eq!(printable(b"\xffx"), r"\xffx");
    }
}
