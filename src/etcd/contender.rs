//! The blocking side: a thread of its own contends, keeps the session alive and watches; whoever owns the handle polls a
//! descriptor and reads events.
//!
//! The thread, its runtime and its connections come to be in [`Contender::start`], so a program that forks does so first.

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::mpsc;

use super::bid::Bid;
use super::client::Client;
use super::clock::Moment;
use super::config::Config;
use super::contend::{Contest, Custody, End};
use super::error::{Error, ErrorKind};
use super::hold;
use super::inspect::Entry;
use super::keys::{Keys, lease_hex};
use super::leases::{Leases, RELEASE};
use super::session::{Loss, Share, Trust};

/// What happens to a contender, in order.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// It waits. Told at first, and whenever somebody ahead ends.
    Waiting {
        /// All contenders, itself included, in the order in which they are served.
        contenders: Vec<Entry>,
        /// How many are ahead.
        ahead: usize,
    },
    /// It lost its session while it waited, and queues again at the back.
    Requeued(Loss),
    /// It holds.
    Held(Held),
    /// The time is over, or there was none. Who contends, as far as it is known.
    NotHad(Vec<Entry>),
    /// There is no session to be had.
    Failed(Error),
    /// It held and does not any more. The work has to stop.
    Lost(Loss),
    /// What was held or waited for is given up. An error says that etcd could not be told.
    Released(Result<(), Error>),
}

impl Event {
    /// Nothing comes after it but the release.
    fn decides(&self) -> bool {
        !matches!(self, Event::Waiting { .. } | Event::Requeued(_))
    }
}

/// What a holder holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// The key's create revision.
    pub fence: u64,
    /// 0 to N-1.
    pub slot: u32,
    /// The lease, as etcdctl prints it.
    pub lease: String,
    /// The name was in use with another capacity too, when this contender came: another claim, which is rarely meant.
    pub other_capacities: bool,
}

enum Order {
    Release,
    CommandPid(u32),
    WaiveRest,
}

struct Shared {
    events: Mutex<VecDeque<Event>>,
    /// No more events will come. Changed under the lock of `events`.
    over: AtomicBool,
    arrived: Condvar,
    /// Readable while there are events.
    events_fd: OwnedFd,
    /// Readable from the loss on.
    lost_fd: OwnedFd,
    loss: Mutex<Option<Loss>>,
    other_capacities: AtomicBool,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: Event) {
        let mut queue = self.queue();
        // A reader that does not read does not make it grow: only the latest state of waiting counts.
        if matches!((queue.back(), &event), (Some(Event::Waiting { .. }), Event::Waiting { .. })) {
            queue.pop_back();
        }
        self.over.fetch_or(matches!(event, Event::Released(_)), Ordering::Relaxed);
        queue.push_back(event);
        signal(&self.events_fd);
        self.arrived.notify_all();
    }

    fn take(&self) -> Option<Event> {
        let mut queue = self.queue();
        let event = queue.pop_front();
        if queue.is_empty() {
            // Under the lock, so that no event that comes now is overlooked. It fails where nothing was there to read.
            let _ = rustix::io::read(&self.events_fd, &mut [0u8; 8]);
        }
        event
    }

    fn lose(&self, loss: Loss) {
        *self.loss.lock().unwrap_or_else(PoisonError::into_inner) = Some(loss);
        signal(&self.lost_fd);
    }
}

fn signal(fd: &OwnedFd) {
    // It fails only where the count is at its end, and then it is readable.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// One bid for a claim, from contending to release.
///
/// Dropping it gives up what it holds or waits for, within about a second. In a forked child it does nothing.
pub struct Contender {
    shared: Arc<Shared>,
    trust: Arc<Trust>,
    orders: mpsc::UnboundedSender<Order>,
    thread: Option<JoinHandle<()>>,
    client: Client,
    owner: rustix::process::Pid,
    done: bool,
}

impl Contender {
    /// Begins to contend in a thread of its own, which blocks all signals. `share` is called with the deadline of trust
    /// whenever it changes, from that thread; it must not block.
    ///
    /// # Errors
    ///
    /// A bid that makes no sense, certificates that cannot be used, no thread or descriptor. Whatever the cluster has to
    /// say comes as an event.
    pub fn start(config: &Config, bid: Bid, share: Option<Share>) -> Result<Contender, Error> {
        bid.check()?;
        let descriptor = || {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| Error::system("start", error))
        };
        let client = Client::new(config)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::system("start", error))?;
        let shared = Arc::new(Shared {
            events: Mutex::default(),
            over: AtomicBool::new(false),
            arrived: Condvar::new(),
            events_fd: descriptor()?,
            lost_fd: descriptor()?,
            loss: Mutex::default(),
            other_capacities: AtomicBool::new(false),
        });
        let trust = Arc::new(Trust::new(share));
        let (orders, inbox) = mpsc::unbounded_channel();
        let keys = Keys::new(config.prefix());
        let work = Work {
            client: client.clone(),
            leases: Leases::new(client.clone()),
            bid,
            keys,
            trust: trust.clone(),
            shared: shared.clone(),
            inbox,
            dial_timeout: config.dial_timeout(),
        };
        // Blocked before the thread is there, so that no signal meets it; a signal is for the thread that asked for it.
        let before = SigSet::all()
            .thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)
            .map_err(|error| Error::system("start", error))?;
        let finish = Finish { shared: shared.clone(), trust: trust.clone() };
        let thread = std::thread::Builder::new().name("claim-session".into()).spawn(move || {
            let finish = finish;
            let released = runtime.block_on(work.run());
            // A resolver that hangs in its thread holds up nobody.
            runtime.shutdown_background();
            finish.shared.tell(Event::Released(released));
        });
        let restored = before.thread_set_mask();
        let thread = thread.map_err(|error| Error::system("start", error))?;
        let owner = rustix::process::getpid();
        let contender = Contender { shared, trust, orders, thread: Some(thread), client, owner, done: false };
        restored.map_err(|error| Error::system("start", error))?;
        Ok(contender)
    }

    /// Polls readable while there is an event to be read.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.events_fd.as_fd()
    }

    /// Polls readable from the moment on when the claim, once held, is lost. Nobody reads from it.
    pub fn lost_fd(&self) -> BorrowedFd<'_> {
        self.shared.lost_fd.as_fd()
    }

    /// The next event, if there is one.
    pub fn next_event(&self) -> Option<Event> {
        self.shared.take()
    }

    /// Waits for the next event, at most for `timeout`. `None`, too, when all is over and read.
    pub fn wait_event(&self, timeout: Option<Duration>) -> Option<Event> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut queue = self.shared.queue();
        while queue.is_empty() {
            if self.shared.over.load(Ordering::Relaxed) {
                return None;
            }
            let arrived = &self.shared.arrived;
            queue = match until {
                None => arrived.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    arrived.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        drop(queue);
        self.shared.take()
    }

    /// Waits until it is decided: [`Event::Held`], [`Event::NotHad`] or [`Event::Failed`].
    pub fn wait_decided(&self) -> Option<Event> {
        loop {
            match self.wait_event(None) {
                Some(event) if event.decides() => return Some(event),
                Some(_) => {}
                None => return None,
            }
        }
    }

    /// When trust ends unless it is renewed before.
    pub fn deadline(&self) -> Moment {
        self.trust.deadline()
    }

    /// Whether what is held can be trusted at this moment. Never in a forked child.
    pub fn is_trusted(&self) -> bool {
        self.here() && self.trust.holds()
    }

    /// Why it was lost, if it was.
    pub fn loss(&self) -> Option<Loss> {
        *self.shared.loss.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes into the record which process runs under the claim. Does not wait for it; nothing depends on it.
    pub fn set_command_pid(&self, pid: u32) {
        if self.here() {
            // There is nobody to tell where all is over.
            let _ = self.orders.send(Order::CommandPid(pid));
        }
    }

    /// Nothing came of the custody: its slot is not to be kept, as [`Bid::at_least`] would, any longer than it is held.
    pub fn waive_rest(&self) {
        if self.here() {
            let _ = self.orders.send(Order::WaiveRest);
        }
    }

    /// How many requests this has cost the cluster so far.
    pub fn requests(&self) -> u64 {
        self.client.requests()
    }

    /// Gives up what is held or waited for. Harmless a second time, and in a forked child.
    ///
    /// # Errors
    ///
    /// etcd could not be told within a second. It is then free when the lease ends.
    pub fn release(&mut self) -> Result<(), Error> {
        if self.done || !self.here() {
            return Ok(());
        }
        self.done = true;
        let _ = self.orders.send(Order::Release);
        // The thread bounds itself; what is on top is for a machine that is busy with something else.
        let until = Instant::now() + RELEASE + RELEASE / 4;
        loop {
            match self.wait_event(Some(until.saturating_duration_since(Instant::now()))) {
                Some(Event::Released(result)) => {
                    if let Some(thread) = self.thread.take() {
                        let _ = thread.join();
                    }
                    return result;
                }
                Some(_) => {}
                None => {
                    let silent = "no answer within a second";
                    return Err(Error::new(ErrorKind::Unreachable, "release claim", silent));
                }
            }
        }
    }

    /// A forked child has a copy of this and not the thread; what it is a copy of belongs to the parent.
    fn here(&self) -> bool {
        rustix::process::getpid() == self.owner
    }
}

impl std::fmt::Debug for Contender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contender").field("deadline", &self.deadline()).finish_non_exhaustive()
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        // Who wants to know calls `release`.
        let _ = self.release();
        if !self.here() {
            // There is no such thread in a forked child, so nothing to detach from.
            std::mem::forget(self.thread.take());
        }
    }
}

/// Sees to it that the end of the thread is noticed, also if that is a panic.
struct Finish {
    shared: Arc<Shared>,
    trust: Arc<Trust>,
}

impl Drop for Finish {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.trust.end();
            self.shared.lose(Loss::Blind);
            self.shared.tell(Event::Lost(Loss::Blind));
            let broken = Error::new(ErrorKind::System, "keep session", "its thread has failed");
            self.shared.tell(Event::Released(Err(broken)));
        }
    }
}

/// What the thread works with.
struct Work {
    client: Client,
    leases: Leases,
    bid: Bid,
    keys: Keys,
    trust: Arc<Trust>,
    shared: Arc<Shared>,
    inbox: mpsc::UnboundedReceiver<Order>,
    dial_timeout: Duration,
}

impl Work {
    async fn run(mut self) -> Result<(), Error> {
        match self.contend().await {
            Ok(custody) => self.hold(custody).await,
            Err(released) => released,
        }
    }

    /// Contends until it holds, or until it is over and released.
    async fn contend(&mut self) -> Result<Custody, Result<(), Error>> {
        let shared = &self.shared;
        let contest = Contest {
            client: &self.client,
            bid: &self.bid,
            keys: &self.keys,
            trust: &self.trust,
            waiting: &|contenders, ahead| shared.tell(Event::Waiting { contenders, ahead }),
            requeued: &|loss| shared.tell(Event::Requeued(loss)),
            leases: &self.leases,
            other_capacities: &shared.other_capacities,
        };
        let end = tokio::select! {
            end = contest.run(self.dial_timeout) => Some(end),
            () = stopped(&mut self.inbox) => None,
        };
        let event = match end {
            Some(End::Held(custody)) => return Ok(custody),
            Some(End::NotHad(contenders)) => Event::NotHad(contenders),
            Some(End::Failed(error)) => Event::Failed(error),
            None => {
                return Err(self.leases.revoke_all().await);
            }
        };
        shared.tell(event);
        stopped(&mut self.inbox).await;
        Err(Ok(()))
    }

    /// Holds until it is told to release, lost or not.
    async fn hold(&mut self, mut custody: Custody) -> Result<(), Error> {
        let fence = u64::try_from(custody.created).unwrap_or(0);
        let lease = lease_hex(custody.session.lease);
        self.shared.tell(Event::Held(Held {
            fence,
            slot: custody.slot,
            lease,
            other_capacities: self.shared.other_capacities.load(Ordering::Relaxed),
        }));
        let loss = self.guard(&mut custody).await;
        match loss {
            Some(loss) => {
                self.trust.end();
                self.shared.lose(loss);
                self.shared.tell(Event::Lost(loss));
                stopped(&mut self.inbox).await;
            }
            None => self.trust.end(),
        }
        hold::release(&self.leases, &self.keys, &self.bid, custody, loss).await
    }

    /// Returns when it is lost, or with nothing when it is to be released.
    async fn guard(&mut self, custody: &mut Custody) -> Option<Loss> {
        let client = &self.client;
        let key = custody.key.clone();
        let deleted = hold::deleted(client, &key, custody.created, custody.revision);
        tokio::pin!(deleted);
        // All three go on side by side: one that is not polled may have what another waits for, the token's lock, say.
        let mut publishing: Option<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = None;
        loop {
            let published = async {
                match &mut publishing {
                    Some(publishing) => publishing.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                loss = custody.session.lost() => return Some(loss),
                loss = &mut deleted => return Some(loss),
                () = published => publishing = None,
                order = self.inbox.recv() => match order {
                    Some(Order::CommandPid(pid)) => {
                        custody.record.command_pid = Some(pid);
                        publishing = Some(Box::pin(hold::publish(client, custody)));
                    }
                    Some(Order::WaiveRest) => self.bid.at_least = Duration::ZERO,
                    Some(Order::Release) | None => return None,
                },
            }
        }
    }
}

/// Returns when the owner says so, or is gone.
async fn stopped(inbox: &mut mpsc::UnboundedReceiver<Order>) {
    while let Some(order) = inbox.recv().await {
        if matches!(order, Order::Release) {
            return;
        }
    }
}
