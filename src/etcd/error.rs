//! What can go wrong between here and etcd.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use tonic::{Code, Status};

/// What sort of failure an [`Error`] is; the sort decides how a program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// What was asked for makes no sense: a bad endpoint, a TTL under one second, a user without a password.
    Usage,
    /// The local system refused something: a credential file cannot be read, no thread, no descriptor.
    System,
    /// No endpoint gave an answer in time.
    Unreachable,
    /// etcd answered, and the answer was no: log-in, permission, certificate, quota, or a request it does not know.
    Refused,
}

/// A failure, with the operation and where it happened.
///
/// "Held by somebody else" is not among them: that is an answer. No message contains a password or a token.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    operation: &'static str,
    place: Option<String>,
    reason: String,
    code: Option<Code>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, operation: &'static str, reason: impl fmt::Display) -> Error {
        Error { kind, operation, place: None, reason: reason.to_string(), code: None }
    }

    pub(crate) fn usage(operation: &'static str, reason: impl fmt::Display) -> Error {
        Error::new(ErrorKind::Usage, operation, reason)
    }

    pub(crate) fn system(operation: &'static str, reason: impl Into<io::Error>) -> Error {
        Error::new(ErrorKind::System, operation, reason.into())
    }

    pub(crate) fn file(operation: &'static str, path: &Path, reason: impl fmt::Display) -> Error {
        Error::new(ErrorKind::System, operation, reason).at(PathBuf::from(path).display().to_string())
    }

    pub(crate) fn at(mut self, place: impl Into<String>) -> Error {
        self.place = Some(place.into());
        self
    }

    /// An answer of etcd's that says no.
    pub(crate) fn status(kind: ErrorKind, operation: &'static str, status: &Status) -> Error {
        let mut reason = status.message().to_owned();
        // The transport's own words say only that it failed; why is at the bottom of the chain.
        let mut source = std::error::Error::source(status);
        while let Some(cause) = source {
            reason = cause.to_string();
            source = cause.source();
        }
        Error { kind, operation, place: None, reason, code: Some(status.code()) }
    }

    /// etcd knows no such lease: it ended, or its grant has not been seen yet.
    pub(crate) fn is_no_lease(&self) -> bool {
        self.code == Some(Code::NotFound) && self.reason.contains("lease not found")
    }

    /// A lease of that number is there already: an earlier try of the same grant got through.
    pub(crate) fn is_lease_there(&self) -> bool {
        self.code == Some(Code::FailedPrecondition) && self.reason.contains("lease already exists")
    }

    /// The sort of failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What was being done, as a short phrase: `read CA certificate`, `grant lease`.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// Where: a path for files, an endpoint for requests.
    pub fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }

    /// Why, as the system or etcd put it.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if let Some(place) = &self.place {
            write!(f, " ({place})")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_operation_place_and_reason() {
        let missing = io::Error::from_raw_os_error(2);
        let error = Error::file("read CA certificate", Path::new("/no/ca.pem"), &missing);
        assert_eq!(error.kind(), ErrorKind::System);
        assert_eq!(error.to_string(), "read CA certificate (/no/ca.pem): No such file or directory (os error 2)");
    }
}
