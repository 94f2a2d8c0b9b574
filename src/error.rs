//! What went wrong, where, and in whose words.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure: never a synonym for "held by someone else", which is an answer
/// (see [`Outcome`](crate::Outcome)).
///
/// It carries the operation, the path it was done on, and the system's reason.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    path: PathBuf,
    reason: Reason,
}

#[derive(Debug)]
enum Reason {
    System(io::Error),
    Text(String),
}

/// What to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The system refused something: no space, too many files, read-only, no permission, no hard links here.
    System,
    /// A record (or the format of the directory) is not one that this version can read.
    Unreadable,
    /// The claim directory cannot be made, or is no directory.
    NoDirectory,
    /// The claim directory is not safe: a symbolic link, writable by others, or of a foreign owner.
    UnsafeDirectory,
    /// Across hosts: no session with the backend, which cannot be reached or says no.
    NoSession,
    /// What was asked for makes no sense: an empty name, a capacity of nought, a process that is not there.
    Usage,
}

impl Error {
    /// The kind, to match on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The path the failed operation was about.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The operation that failed, as a verb with its object.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The system's error number, where there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match &self.0.reason {
            Reason::System(error) => error.raw_os_error(),
            Reason::Text(_) => None,
        }
    }

    pub(crate) fn system(operation: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self::new(ErrorKind::System, operation, path, Reason::System(source.into()))
    }

    pub(crate) fn of(kind: ErrorKind, operation: &'static str, path: impl Into<PathBuf>, why: &str) -> Self {
        Self::new(kind, operation, path, Reason::Text(why.to_owned()))
    }

    pub(crate) fn because(
        kind: ErrorKind,
        operation: &'static str,
        path: impl Into<PathBuf>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::new(kind, operation, path, Reason::System(source.into()))
    }

    pub(crate) fn usage(why: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, "", "", Reason::Text(why.into()))
    }

    /// An error in the words of another layer.
    #[cfg(all(feature = "cli", feature = "etcd"))]
    pub(crate) fn told(kind: ErrorKind, why: impl Into<String>) -> Self {
        Self::new(kind, "", "", Reason::Text(why.into()))
    }

    fn new(kind: ErrorKind, operation: &'static str, path: impl Into<PathBuf>, reason: Reason) -> Self {
        Self(Box::new(Inner { kind, operation, path: path.into(), reason }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { operation, path, reason, .. } = &*self.0;
        if !operation.is_empty() {
            write!(f, "cannot {operation} {}: ", path.display())?;
        }
        match reason {
            Reason::System(error) => write!(f, "{error}"),
            Reason::Text(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.reason {
            Reason::System(error) => Some(error),
            Reason::Text(_) => None,
        }
    }
}
