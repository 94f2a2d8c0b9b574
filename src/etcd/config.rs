//! Where etcd is and how to get in: options first, then the environment as etcdctl reads it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::Error;

/// Where claims live in etcd unless `--etcd-prefix` says otherwise.
pub const DEFAULT_PREFIX: &str = "/claim/v1/";

const DEFAULT_ENDPOINT: &str = "127.0.0.1:2379";
const DEFAULT_PORT: u16 = 2379;
const DEFAULT_DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Bundles of trusted roots, for `https` without `--cacert`: where the distributions put them.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A password or private key: it can be used, and not be seen.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Takes `bytes` in.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Secret {
        Secret(bytes.into())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The options of the command line, before the environment fills the gaps.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `--etcd=ENDPOINTS` or `--endpoints`.
    pub endpoints: Option<String>,
    /// `--user`: `NAME` or `NAME:PASSWORD`.
    pub user: Option<Secret>,
    /// `--password-file`.
    pub password_file: Option<PathBuf>,
    /// `--cacert`.
    pub cacert: Option<PathBuf>,
    /// `--cert`.
    pub cert: Option<PathBuf>,
    /// `--key`.
    pub key: Option<PathBuf>,
    /// `--dial-timeout`.
    pub dial_timeout: Option<Duration>,
    /// `--etcd-prefix`.
    pub prefix: Option<String>,
}

/// One address of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

/// User name and password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub name: String,
    pub password: Secret,
}

/// Certificates in PEM form.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Tls {
    pub roots: Option<Vec<u8>>,
    pub identity: Option<Identity>,
}

/// A client certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub cert: Vec<u8>,
    pub key: Secret,
    /// The files they are from, for messages.
    pub files: String,
}

/// Everything that a session needs to know about the cluster, credentials read and checked for presence.
///
/// Its `Debug` form shows no password and no key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) login: Option<Login>,
    pub(crate) tls: Tls,
    pub(crate) dial_timeout: Duration,
    pub(crate) prefix: String,
}

impl Config {
    /// Options, and where they are silent `env`: `CLAIM_ETCD`, then `ETCDCTL_ENDPOINTS`, `ETCDCTL_USER`,
    /// `ETCDCTL_PASSWORD`, `ETCDCTL_CACERT`, `ETCDCTL_CERT`, `ETCDCTL_KEY`, `ETCDCTL_DIAL_TIMEOUT`. Empty variables
    /// count as unset. Reads the credential files.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Usage`](super::ErrorKind::Usage) for what makes no sense,
    /// [`ErrorKind::System`](super::ErrorKind::System) with the path for a file that cannot be read.
    pub fn resolve(options: &Options, env: &dyn Fn(&str) -> Option<String>) -> Result<Config, Error> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let path = |option: &Option<PathBuf>, name: &str| option.clone().or_else(|| env(name).map(PathBuf::from));

        let cacert = path(&options.cacert, "ETCDCTL_CACERT");
        let cert = path(&options.cert, "ETCDCTL_CERT");
        let key = path(&options.key, "ETCDCTL_KEY");
        let named = options.endpoints.clone().or_else(|| env("CLAIM_ETCD")).or_else(|| env("ETCDCTL_ENDPOINTS"));
        let secured = cacert.is_some() || cert.is_some() || key.is_some();
        let endpoints = endpoints(named.as_deref().unwrap_or(DEFAULT_ENDPOINT), secured)?;

        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some(Identity {
                cert: read_certificate("read client certificate", &cert)?,
                key: read_key(&key)?,
                files: format!("{} and {}", cert.display(), key.display()),
            }),
            (None, None) => None,
            _ => {
                return Err(Error::usage("etcd options", "a client certificate needs both --cert and --key"));
            }
        };
        let roots = match cacert {
            Some(path) => Some(read_certificate("read CA certificate", &path)?),
            None if endpoints.iter().any(|endpoint| endpoint.tls) => system_roots(),
            None => None,
        };
        let dial_timeout = match (options.dial_timeout, env("ETCDCTL_DIAL_TIMEOUT")) {
            (Some(given), _) => given,
            (None, Some(text)) => duration(&text)
                .ok_or_else(|| Error::usage("ETCDCTL_DIAL_TIMEOUT", format_args!("not a duration: {text:?}")))?,
            (None, None) => DEFAULT_DIAL_TIMEOUT,
        };
        let mut prefix = options.prefix.clone().unwrap_or_else(|| DEFAULT_PREFIX.to_owned());
        if prefix.is_empty() {
            return Err(Error::usage("etcd options", "the prefix is empty"));
        }
        if !prefix.ends_with('/') {
            prefix.push('/');
        }
        Ok(Config { endpoints, login: login(options, &env)?, tls: Tls { roots, identity }, dial_timeout, prefix })
    }

    /// The configuration that the process's own environment describes.
    ///
    /// # Errors
    ///
    /// As [`Config::resolve`].
    pub fn from_env() -> Result<Config, Error> {
        Config::resolve(&Options::default(), &|name| std::env::var(name).ok())
    }

    /// The endpoints, as they will be tried.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// Where claims live in the key space; ends with a slash.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The same for a question that is not worth a wait.
    #[cfg(feature = "cli")]
    pub(crate) fn hasty(self) -> Config {
        Config { dial_timeout: self.dial_timeout.min(Duration::from_secs(1)), ..self }
    }

    /// How long the first session may take to come about.
    pub fn dial_timeout(&self) -> Duration {
        self.dial_timeout
    }
}

/// As etcdctl has it, a user is split at the colon only where no password is given in another way.
fn login(options: &Options, env: &dyn Fn(&str) -> Option<String>) -> Result<Option<Login>, Error> {
    let text = |secret: &Secret| String::from_utf8_lossy(secret.bytes()).into_owned();
    let (user, separate) = match &options.user {
        Some(user) if options.password_file.is_none() && user.bytes().contains(&b':') => (text(user), None),
        Some(user) => (text(user), env("ETCDCTL_PASSWORD")),
        None => match env("ETCDCTL_USER") {
            Some(user) => (user, env("ETCDCTL_PASSWORD")),
            None if options.password_file.is_some() => {
                return Err(Error::usage("etcd options", "--password-file needs --user"));
            }
            None => return Ok(None),
        },
    };
    let (name, password) = if let Some(path) = &options.password_file {
        let mut password = read("read password file", path)?;
        if password.last() == Some(&b'\n') {
            password.pop();
            if password.last() == Some(&b'\r') {
                password.pop();
            }
        }
        (user, password)
    } else if let Some(password) = separate {
        (user, password.into_bytes())
    } else if let Some((name, password)) = user.split_once(':') {
        (name.to_owned(), password.as_bytes().to_vec())
    } else {
        return Err(Error::usage("etcd options", format_args!("user {user:?} without a password")));
    };
    if name.is_empty() {
        return Err(Error::usage("etcd options", "the user's name is empty"));
    }
    if std::str::from_utf8(&password).is_err() {
        return Err(Error::usage("etcd options", "the password is not UTF-8"));
    }
    Ok(Some(Login { name, password: Secret(password) }))
}

fn read(operation: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| Error::file(operation, path, error))
}

/// What is no certificate would be reported by the far end only, or not at all, and not as what it is.
fn read_certificate(operation: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    let pem = read(operation, path)?;
    match has_block(&pem, |label| label == "CERTIFICATE") {
        true => Ok(pem),
        false => Err(Error::file(operation, path, "no certificate in PEM form in it")),
    }
}

fn read_key(path: &Path) -> Result<Secret, Error> {
    let operation = "read client key";
    let pem = read(operation, path)?;
    let is_locked = has_block(&pem, |label| label == "ENCRYPTED PRIVATE KEY")
        || pem.split(|&byte| byte == b'\n').any(|line| line.starts_with(b"Proc-Type: 4,ENCRYPTED"));
    if is_locked {
        return Err(Error::file(operation, path, "the key is encrypted, and there is nobody to ask for its password"));
    }
    match has_block(&pem, |label| label.ends_with("PRIVATE KEY")) {
        true => Ok(Secret(pem)),
        false => Err(Error::file(operation, path, "no private key in PEM form in it")),
    }
}

/// Whether a block of that kind begins in a text in PEM form (RFC 7468).
fn has_block(pem: &[u8], is_it: impl Fn(&str) -> bool) -> bool {
    pem.split(|&byte| byte == b'\n')
        .filter_map(|line| {
            std::str::from_utf8(line).ok()?.trim_end().strip_prefix("-----BEGIN ")?.strip_suffix("-----")
        })
        .any(is_it)
}

fn system_roots() -> Option<Vec<u8>> {
    SYSTEM_ROOTS.iter().find_map(|path| std::fs::read(path).ok())
}

/// Comma-separated `host:port`, `http://host:port`, `https://host:port`. Without a scheme, `https` if certificates are
/// given, else `http`.
fn endpoints(list: &str, secured: bool) -> Result<Vec<Endpoint>, Error> {
    let parsed: Result<Vec<_>, _> =
        list.split(',').map(str::trim).filter(|item| !item.is_empty()).map(|item| endpoint(item, secured)).collect();
    match parsed {
        Ok(list) if list.is_empty() => Err(Error::usage("etcd endpoints", "none given")),
        parsed => parsed,
    }
}

fn endpoint(text: &str, secured: bool) -> Result<Endpoint, Error> {
    // A password in the text of an endpoint is refused, so it is not repeated either.
    let bad = |why: &str| Error::usage("etcd endpoints", why);
    let (tls, rest) = match text.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        Some(_) => return Err(bad("only http:// and https:// are understood")),
        None => (secured, text),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains('@') {
        return Err(bad("no user in an endpoint, please: use --user"));
    }
    if rest.contains(['/', '?', '#', ' ']) {
        return Err(bad("an endpoint is a host and a port"));
    }
    let after_host = rest.rfind(']').map_or(0, |bracket| bracket + 1);
    let (host, port) = match rest[after_host..].rfind(':') {
        Some(colon) => (&rest[..after_host + colon], &rest[after_host + colon + 1..]),
        None => (rest, ""),
    };
    let port = match port {
        "" => DEFAULT_PORT,
        port => port.parse().ok().filter(|port| *port != 0).ok_or_else(|| bad("not a port"))?,
    };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    if host.is_empty() || (!bracketed && host.contains([':', '[', ']'])) {
        return Err(bad("not a host; IPv6 addresses stand in brackets"));
    }
    Ok(Endpoint { tls, host: host.to_owned(), port })
}

/// A duration as Go writes it (`5s`, `1m30s`, `500ms`); a bare number is seconds.
fn duration(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        rest = &rest[letters..];
        total = total.checked_add(Duration::try_from_secs_f64(number * unit).ok()?)?;
    }
    Some(total)
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
