//! The handle: a claim inside one's own process.

use std::fmt;
use std::time::Duration;

use crate::acquire::{Contender, Custody, Ended, Refused, Terms};
use crate::class::Class;
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::events::{Event, Observer};
use crate::fence::Fence;
use crate::local::Place;
use crate::local::dir::Directory;
use crate::local::layout::TicketName;
use crate::local::link::Release;
use crate::local::slots::Occupancy;
use crate::name::{Capacity, Key, Name};
use crate::rule::Contender as Asker;

/// A handle on a name. It holds nothing until [`acquire`](Self::acquire), and gives back what it holds when it goes out of
/// scope, unwinding included; when its process ends, in whatever way, the claim is free.
///
/// Two handles on one name conflict, also inside one process and between its threads. After `fork`, the child's copy holds
/// nothing and can release nothing; the parent keeps its claim, and a child that wants the name asks for it and is told the
/// truth. A process that is to replace
/// itself by `exec` releases first: the kernel's lock on its record ends there, and with it the claim for who looks from
/// another pid namespace. There, too, a forked child that lives on keeps the claim of its dead parent alive.
///
/// ```
/// use std::time::Duration;
/// use hostclaim::{Claim, Directory, Outcome};
///
/// # fn main() -> hostclaim::Result<()> {
/// # let scratch = tempfile::tempdir().unwrap();
/// # let dir = Directory::at(scratch.path().join("claims"))?;
/// // In earnest: Directory::from_env()?
/// let mut report = Claim::new(&dir, "nightly-report")?;
/// match report.acquire(Some(Duration::ZERO))? {
///     Outcome::Acquired(fence) => println!("ours, number {fence}"),
///     Outcome::AlreadyHeld(_) => unreachable!("it held nothing before"),
///     Outcome::Refused(refused) => println!("not now: {:?}", refused.reason),
/// }
///
/// let mut second = Claim::new(&dir, "nightly-report")?;
/// assert!(matches!(second.acquire(Some(Duration::ZERO))?, Outcome::Refused(_)));
///
/// report.release()?;
/// assert!(matches!(second.acquire(Some(Duration::ZERO))?, Outcome::Acquired(_)));
/// # Ok(())
/// # }
/// ```
pub struct Claim {
    dir: Directory,
    key: Key,
    terms: Terms,
    observer: Box<dyn Observer>,
    contender: Option<Contender>,
    custody: Option<Custody>,
    /// Which of the processes that share our memory by fork this handle's state belongs to.
    generation: u64,
}

/// What came of asking for a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is ours. The number is larger than that of every holder of the name before.
    Acquired(Fence),
    /// This handle holds it already; nothing has changed.
    AlreadyHeld(Fence),
    /// Somebody else has it, or is before us. An answer, not an error.
    Refused(Refused),
}

/// How a claim stands: see [`Claim::statistics`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Holders and waiters.
    pub occupancy: Occupancy,
    /// How many may hold it.
    pub capacity: Capacity,
    /// How many may wait, as far as this handle goes; `None`: any number.
    pub queue_size: Option<u32>,
    /// The mean of the last hold times (20 at most) since the claim was last idle.
    pub mean_hold: Option<Duration>,
}

struct Nobody;

impl Observer for Nobody {
    fn event(&mut self, _: &Event) {}

    fn wants_events(&self) -> bool {
        false
    }

    fn wants_waits(&self) -> bool {
        false
    }
}

impl Claim {
    /// A handle on a name in a directory, for one holder at a time, of class interactive, with an unbounded queue. Nothing
    /// is touched yet.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the name is none.
    pub fn new(dir: &Directory, name: impl Into<Vec<u8>>) -> Result<Self> {
        let terms = Terms {
            class: Class::default(),
            queue_size: None,
            at_least: Duration::ZERO,
            spread: false,
            label: std::env::args_os().next().map(std::os::unix::ffi::OsStringExt::into_vec).unwrap_or_default(),
            on_behalf_of: None,
            lock_covers: true,
            tree: false,
            reusable: true,
            look_for_rings: true,
        };
        Ok(Self {
            dir: dir.clone(),
            key: Key { name: Name::new(name)?, max: Capacity::ONE },
            terms,
            observer: Box::new(Nobody),
            contender: None,
            custody: None,
            generation: dir.generation(),
        })
    }

    /// Lets that many hold the name. It is part of the identity: the same name with another capacity is another claim.
    #[must_use]
    pub fn capacity(mut self, max: Capacity) -> Self {
        self.key.max = max;
        self
    }

    /// Waits in that class.
    #[must_use]
    pub fn class(mut self, class: Class) -> Self {
        self.terms.class = class;
        self
    }

    /// Joins the queue only if fewer than that wait, or one of a lower class can be displaced; 0: never waits.
    #[must_use]
    pub fn queue_size(mut self, most: u32) -> Self {
        self.terms.queue_size = Some(most);
        self
    }

    /// Keeps the slot taken for that long after it was had, also when it was given back sooner, however this process ended.
    #[must_use]
    pub fn at_least(mut self, duration: Duration) -> Self {
        self.terms.at_least = duration;
        self
    }

    /// Takes at most one slot on this host, whatever the capacity.
    #[must_use]
    pub fn spread(mut self) -> Self {
        self.terms.spread = true;
        self
    }

    /// What `claim --who` shows for it: 1024 bytes of it at most.
    #[must_use]
    pub fn label(mut self, label: impl Into<Vec<u8>>) -> Self {
        self.terms.label = label.into();
        self
    }

    /// Tells somebody what happens to this handle.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Box::new(observer);
        self
    }

    /// Asks for the claim and waits for it: for ever (`None`), or for that long. Zero tries once.
    ///
    /// Waiters are served by class, then by arrival; one that asks only once overtakes none of its own class or a higher one.
    ///
    /// # Errors
    /// Those of the system, with operation and path, and a record that this version cannot read. That somebody else holds
    /// the claim is none.
    pub fn acquire(&mut self, timeout: Option<Duration>) -> Result<Outcome> {
        self.after_fork();
        if let Some(custody) = self.custody() {
            return Ok(Outcome::AlreadyHeld(custody.fence));
        }
        // Taken away by force meanwhile: what is left of it goes first.
        self.release()?;
        let once = timeout == Some(Duration::ZERO);
        let until = timeout.map_or(Deadline::NEVER, Deadline::after);
        let contender = match &mut self.contender {
            Some(contender) => contender,
            none => none.insert(Contender::new(self.dir.clone(), self.key.clone(), self.terms.clone())?),
        };
        match contender.acquire(once, until, &mut (), &mut *self.observer)? {
            Ended::Acquired(custody) => {
                self.custody = Some(custody);
                Ok(Outcome::Acquired(custody.fence))
            }
            Ended::Refused(refused) => Ok(Outcome::Refused(refused)),
            // By nothing: no interrupts were given.
            Ended::Interrupted => Err(Error::system("wait for", self.dir.path(), rustix::io::Errno::INTR)),
        }
    }

    /// Whether it could be had now, by a newcomer of this handle's class. It may be gone the next moment.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub fn available(&self) -> Result<bool> {
        let place = Place::new(self.dir.clone(), self.key.clone())?;
        is_available(&place, self.terms.class, self.terms.spread)
    }

    /// Whether this handle holds the claim; not if it was taken away by force.
    pub fn held(&self) -> bool {
        self.custody().is_some()
    }

    /// The number of this custody, while it lasts.
    pub fn fence(&self) -> Option<Fence> {
        self.custody().map(|custody| custody.fence)
    }

    /// Which of the slots is held, from 0.
    pub fn slot(&self) -> Option<u32> {
        self.custody().map(|custody| custody.slot)
    }

    /// Gives the claim back. `false`: there was nothing to give, because nothing was held, or because it had been taken away
    /// by force.
    ///
    /// # Errors
    /// Those of the system. Nothing is held afterwards all the same: at the latest the end of this process frees the claim.
    pub fn release(&mut self) -> Result<bool> {
        self.after_fork();
        let (Some(custody), Some(contender)) = (self.custody.take(), &mut self.contender) else { return Ok(false) };
        Ok(contender.release(custody, &mut *self.observer)? == Release::Released)
    }

    /// How the claim stands, without disturbing anyone.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub fn statistics(&self) -> Result<Statistics> {
        let place = Place::new(self.dir.clone(), self.key.clone())?;
        Ok(Statistics {
            occupancy: place.occupancy()?,
            capacity: self.key.max,
            queue_size: self.terms.queue_size,
            mean_hold: place.mean_hold()?.map(Duration::from_nanos),
        })
    }

    fn custody(&self) -> Option<&Custody> {
        let revoked = self.contender.as_ref().is_none_or(Contender::is_revoked);
        self.custody.as_ref().filter(|_| self.generation == self.dir.generation() && !revoked)
    }

    /// In a child that inherited this handle by fork, what it holds is the parent's.
    fn after_fork(&mut self) {
        let now = self.dir.generation();
        if self.generation != now {
            self.generation = now;
            self.custody = None;
            if let Some(contender) = self.contender.take() {
                contender.forget();
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.after_fork();
        // An error here has nobody to go to; what it leaves is freed by the end of this process.
        let _ = self.release();
        if let Some(contender) = &mut self.contender {
            let _ = contender.close();
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("key", &self.key).field("custody", &self.custody()).finish_non_exhaustive()
    }
}

/// Whether a newcomer of that class could have the claim now.
pub(crate) fn is_available(place: &Place, class: Class, spread: bool) -> Result<bool> {
    if !place.has_free_slot(spread)? {
        return Ok(false);
    }
    let newcomer = Asker::Newcomer(class);
    let before = place.tickets()?.into_iter().rev().filter(|ticket: &TicketName| newcomer.is_behind(ticket.position()));
    Ok(crate::rule::turn(place.standings(before, &mut Vec::new()))? == crate::rule::Turn::Mine)
}
