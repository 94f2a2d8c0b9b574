//! Requests to a cluster: one endpoint at a time, the next one when that does not answer, each request with an end.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::uri::PathAndQuery;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_stream::StreamExt;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::config::Config;
use super::error::{Error, ErrorKind};
use super::wire::{
    self, AuthenticateRequest, KeepAliveRequest, RangeRequest, Rpc, WatchCreate, WatchRequest, WatchResponse,
};

/// A listing of very many contenders is larger than gRPC's usual 4 MiB.
const LARGEST_ANSWER: usize = 256 << 20;

/// Pauses after every endpoint has failed once more.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(20), Duration::from_millis(50), Duration::from_millis(100), Duration::from_millis(200)];

/// How often one request may ask for a new token.
const LOGINS: u32 = 3;

/// A connection to the cluster that outlives its endpoints. Clones share it.
#[derive(Clone)]
pub(crate) struct Client(Arc<Inner>);

struct Inner {
    config: Config,
    endpoints: Vec<tonic::transport::Endpoint>,
    links: Mutex<Links>,
    /// Tells those who hang on a stream that requests go elsewhere now.
    moved: tokio::sync::watch::Sender<u64>,
    token: tokio::sync::Mutex<Option<Token>>,
    patience_ms: AtomicU64,
    requests: AtomicU64,
}

struct Links {
    /// How often requests have moved to another connection.
    epoch: u64,
    current: usize,
    channels: Vec<Option<Channel>>,
}

/// What logging in came to.
#[derive(Clone)]
struct Token {
    /// Nothing where the cluster wants none.
    value: Option<MetadataValue<Ascii>>,
    serial: u64,
}

/// A connection and when it was the one to use.
#[derive(Clone)]
pub(crate) struct Link {
    pub epoch: u64,
    endpoint: usize,
    channel: Channel,
}

/// What an unsuccessful answer means for the request.
enum Fate {
    /// A new token may help.
    Token,
    /// Another endpoint, or the same one later, may answer.
    Elsewhere,
    /// Another endpoint may take the certificates; this one will not.
    Certificate,
    /// That is the answer.
    Final,
}

impl Client {
    /// Opens no connection yet; the first request does.
    pub(super) fn new(config: &Config) -> Result<Client, Error> {
        let endpoints =
            config.endpoints.iter().map(|endpoint| transport(config, endpoint)).collect::<Result<Vec<_>, _>>()?;
        let count = endpoints.len();
        let patience = config.dial_timeout / u32::try_from(count).unwrap_or(u32::MAX);
        Ok(Client(Arc::new(Inner {
            config: config.clone(),
            endpoints,
            links: Mutex::new(Links { epoch: 0, current: 0, channels: vec![None; count] }),
            moved: tokio::sync::watch::channel(0).0,
            token: tokio::sync::Mutex::new(None),
            patience_ms: AtomicU64::new(millis(patience)),
            requests: AtomicU64::new(0),
        })))
    }

    /// How long one endpoint may take for one answer before the next is asked.
    pub(super) fn set_patience(&self, patience: Duration) {
        self.0.patience_ms.store(millis(patience), Ordering::Relaxed);
    }

    /// How many requests have been sent, renewals and watches included.
    pub(super) fn requests(&self) -> u64 {
        self.0.requests.load(Ordering::Relaxed)
    }

    /// Becomes readable whenever requests move to another connection.
    pub(super) fn moves(&self) -> tokio::sync::watch::Receiver<u64> {
        self.0.moved.subscribe()
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        // Nothing panics while it has this lock.
        self.0.links.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The connection in use (`step` 0), or one to another endpoint; when those are used up, fresh ones.
    pub(super) fn link(&self, step: usize) -> Link {
        let mut links = self.links();
        let count = links.channels.len();
        let endpoint = (links.current + step) % count;
        let connect = || self.0.endpoints[endpoint].connect_lazy();
        let channel =
            if step < count { links.channels[endpoint].get_or_insert_with(connect).clone() } else { connect() };
        Link { epoch: links.epoch, endpoint, channel }
    }

    /// `link` did not answer: requests go to the next endpoint, and never again to this connection. Says nothing if
    /// others have moved them already.
    pub(super) fn leave(&self, link: &Link) {
        let mut links = self.links();
        if links.epoch == link.epoch && links.current == link.endpoint {
            let count = links.channels.len();
            links.channels[link.endpoint] = None;
            links.current = (links.current + 1) % count;
            links.epoch += 1;
            self.0.moved.send_replace(links.epoch);
        }
    }

    /// `link` answered where the one in use did not: it is the one in use now.
    pub(super) fn adopt(&self, link: &Link) {
        let mut links = self.links();
        if links.epoch == link.epoch {
            let current = links.current;
            links.channels[current] = None;
            links.channels[link.endpoint] = Some(link.channel.clone());
            links.current = link.endpoint;
            links.epoch += 1;
            self.0.moved.send_replace(links.epoch);
        }
    }

    pub(super) fn name(&self, link: &Link) -> String {
        self.0.config.endpoints[link.endpoint].to_string()
    }

    /// Sends `request` until an endpoint answers, at the latest until `until`. A request whose answer was lost is sent
    /// again, so it must bear being carried out twice.
    pub(super) async fn call<R: Rpc>(&self, request: R, until: Instant) -> Result<R::Answer, Error> {
        let endpoints = self.0.endpoints.len();
        let mut with_token = R::TOKEN;
        let mut logins = 0;
        let mut tries = 0;
        let mut certificates = 0;
        let mut failure = None;
        loop {
            let link = self.link(0);
            let patience = Duration::from_millis(self.0.patience_ms.load(Ordering::Relaxed));
            let stop = until.min(Instant::now() + patience);
            let mut serial = None;
            let answer = async {
                let token = if with_token { self.token(&link).await? } else { None };
                serial = token.as_ref().map(|token| token.serial);
                self.unary(&link, request.clone(), token).await.map_err(|status| refused(R::OPERATION, status))
            };
            match timeout_at(stop, answer).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err((fate, error))) => {
                    let error = error.at(self.name(&link));
                    match fate {
                        Fate::Token if self.0.config.login.is_some() && logins < LOGINS => {
                            with_token = true;
                            logins += 1;
                            self.forget(serial).await;
                            continue;
                        }
                        Fate::Token | Fate::Final => return Err(error),
                        Fate::Certificate => {
                            certificates += 1;
                            if certificates == endpoints {
                                return Err(error);
                            }
                            self.leave(&link);
                            failure = Some(error);
                        }
                        Fate::Elsewhere => {
                            certificates = 0;
                            self.leave(&link);
                            failure = Some(error);
                        }
                    }
                }
                Err(_) => {
                    // Cut short by the end of the whole request, it has not been shown to be slow.
                    if stop < until {
                        self.leave(&link);
                    }
                    let silent = || Error::new(ErrorKind::Unreachable, R::OPERATION, "no answer").at(self.name(&link));
                    failure = Some(failure.unwrap_or_else(silent));
                }
            }
            tries += 1;
            let pause = match tries % endpoints {
                0 => PAUSES[(tries / endpoints - 1).min(PAUSES.len() - 1)],
                _ => Duration::ZERO,
            };
            if Instant::now() + pause >= until {
                let silent = || Error::new(ErrorKind::Unreachable, R::OPERATION, "no answer");
                return Err(failure.unwrap_or_else(silent));
            }
            sleep(pause).await;
        }
    }

    async fn unary<R: Rpc>(&self, link: &Link, request: R, token: Option<Token>) -> Result<R::Answer, Status> {
        let mut request = Request::new(request);
        if let Some(token) = token.and_then(|token| token.value) {
            request.metadata_mut().insert("token", token);
        }
        let mut grpc = ready(link).await?;
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        let codec = ProstCodec::<R, R::Answer>::default();
        Ok(grpc.unary(request, PathAndQuery::from_static(R::PATH), codec).await?.into_inner())
    }

    /// Renews a lease on a stream of its own, so that a try that hangs does not hold up the next. The answer is what the
    /// lease was granted, 0 where there is none.
    ///
    /// A read of `key` goes first: etcd renews without asking a quorum, reads with. A leader that was stopped and does not
    /// know yet that there is another would renew what the other lets end; after the read, whatever leader comes later
    /// gives the lease its whole time from then on. Also, who has answered the read knows of the grant.
    pub(super) async fn renew(&self, link: &Link, id: i64, key: &[u8]) -> Result<i64, Error> {
        let token = self.token(link).await.map_err(|(_, error)| error)?;
        let serial = token.as_ref().map(|token| token.serial);
        let read = RangeRequest { key: key.to_vec(), count_only: true, ..RangeRequest::default() };
        if let Err(status) = self.unary(link, read, token).await {
            let (fate, error) = refused(KeepAliveRequest::OPERATION, status);
            if matches!(fate, Fate::Token) {
                self.forget(serial).await;
            }
            return Err(error);
        }
        let renewed = async {
            let mut grpc = ready(link).await?;
            self.0.requests.fetch_add(1, Ordering::Relaxed);
            let codec = ProstCodec::<KeepAliveRequest, wire::KeepAliveResponse>::default();
            let request = Request::new(tokio_stream::once(KeepAliveRequest { id }));
            let path = PathAndQuery::from_static(KeepAliveRequest::PATH);
            grpc.streaming(request, path, codec).await?.into_inner().message().await
        };
        match renewed.await {
            Ok(Some(answer)) => Ok(answer.ttl),
            Ok(None) => Err(Error::new(ErrorKind::Unreachable, KeepAliveRequest::OPERATION, "the stream ended")),
            Err(status) => Err(refused(KeepAliveRequest::OPERATION, status).1),
        }
    }

    /// Opens watches on `link`, all on one stream. An endpoint without a leader ends it (`hasleader`) instead of keeping
    /// quiet.
    pub(super) async fn watch(&self, link: &Link, create: Vec<WatchCreate>) -> Result<Streaming<WatchResponse>, Error> {
        let token = self.token(link).await.map_err(|(_, error)| error)?;
        let serial = token.as_ref().map(|token| token.serial);
        // The stream of requests stays open: its end would be the end of the watch.
        let create = create.into_iter().map(|create| WatchRequest { create: Some(create) });
        let requests = tokio_stream::iter(create).chain(tokio_stream::pending());
        let mut request = Request::new(requests);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = token.and_then(|token| token.value) {
            request.metadata_mut().insert("token", token);
        }
        let opened = async {
            let mut grpc = ready(link).await?;
            self.0.requests.fetch_add(1, Ordering::Relaxed);
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            Ok(grpc.streaming(request, PathAndQuery::from_static(wire::WATCH), codec).await?.into_inner())
        };
        match opened.await {
            Ok(stream) => Ok(stream),
            Err(status) => {
                let (fate, error) = refused("watch claims", status);
                if matches!(fate, Fate::Token) {
                    self.forget(serial).await;
                }
                Err(error)
            }
        }
    }

    /// The token in use, after logging in if there is none.
    async fn token(&self, link: &Link) -> Result<Option<Token>, (Fate, Error)> {
        let Some(login) = &self.0.config.login else {
            return Ok(None);
        };
        // Whoever comes while another logs in waits here, and finds that token.
        let mut token = self.0.token.lock().await;
        if let Some(token) = &*token {
            return Ok(Some(token.clone()));
        }
        let password = String::from_utf8_lossy(login.password.bytes()).into_owned();
        let request = AuthenticateRequest { name: login.name.clone(), password };
        let value = match self.unary(link, request, None).await {
            Ok(answer) => Some(answer.token.parse().map_err(|_| {
                let reason = "the token is no text";
                (Fate::Final, Error::new(ErrorKind::Refused, AuthenticateRequest::OPERATION, reason))
            })?),
            // A password for a cluster that wants none is no mistake; etcdctl takes it so, too.
            Err(status) if status.message().contains("authentication is not enabled") => None,
            Err(status) => {
                let (fate, error) = refused(AuthenticateRequest::OPERATION, status);
                // A wrong password does not become right by asking for another token.
                let fate = if matches!(fate, Fate::Token) { Fate::Final } else { fate };
                return Err((fate, error));
            }
        };
        *token = Some(Token { value, serial: self.requests() });
        Ok(token.clone())
    }

    /// Forgets the token of that serial number; a newer one stays.
    async fn forget(&self, serial: Option<u64>) {
        let mut token = self.0.token.lock().await;
        if token.as_ref().is_some_and(|token| Some(token.serial) == serial) {
            *token = None;
        }
    }

    /// Forgets whatever token there is. A watch that is refused for its token says "permission denied".
    pub(super) async fn forget_token(&self) {
        *self.0.token.lock().await = None;
    }
}

async fn ready(link: &Link) -> Result<Grpc<Channel>, Status> {
    let mut grpc = Grpc::new(link.channel.clone()).max_decoding_message_size(LARGEST_ANSWER);
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    Ok(grpc)
}

fn refused(operation: &'static str, status: Status) -> (Fate, Error) {
    let message = status.message();
    let fate = match status.code() {
        Code::Unauthenticated => Fate::Token,
        // The first: a token from before a change of users or roles. The second: no token, where one is wanted.
        Code::InvalidArgument if message.contains("auth store is old") || message.contains("user name is empty") => {
            Fate::Token
        }
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => Fate::Final,
        Code::ResourceExhausted if message.contains("space exceeded") => Fate::Final,
        _ => Fate::Elsewhere,
    };
    let kind = match fate {
        Fate::Elsewhere => ErrorKind::Unreachable,
        Fate::Token | Fate::Final | Fate::Certificate => ErrorKind::Refused,
    };
    let error = Error::status(kind, operation, &status);
    // What a handshake failed of is known by its words alone once it has come up through HTTP/2.
    let words = ["invalid peer certificate", "received fatal alert"];
    if matches!(fate, Fate::Elsewhere) && words.iter().any(|word| error.reason().contains(word)) {
        return (Fate::Certificate, Error::status(ErrorKind::Refused, operation, &status));
    }
    (fate, error)
}

fn transport(config: &Config, endpoint: &super::config::Endpoint) -> Result<tonic::transport::Endpoint, Error> {
    let bad = |error: tonic::transport::Error| {
        let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        Error::usage("etcd endpoints", reason).at(endpoint.to_string())
    };
    let transport = tonic::transport::Endpoint::from_shared(endpoint.to_string()).map_err(bad)?;
    if !endpoint.tls {
        return Ok(transport);
    }
    let mut tls = ClientTlsConfig::new();
    if let Some(roots) = &config.tls.roots {
        tls = tls.ca_certificate(Certificate::from_pem(roots));
    }
    if let Some(identity) = &config.tls.identity {
        tls = tls.identity(Identity::from_pem(&identity.cert, identity.key.bytes()));
    }
    let tls_error = |error: tonic::transport::Error| {
        let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        let error = Error::new(ErrorKind::System, "use certificates", reason);
        match &config.tls.identity {
            Some(identity) => error.at(&identity.files),
            None => error,
        }
    };
    transport.tls_config(tls).map_err(tls_error)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}
