//! The queue of a claim: a directory with one FIFO per waiter.
//!
//! A ticket is a FIFO that its waiter has open for reading. That makes three things the kernel's business: a byte wakes that
//! waiter and nobody else; opening it for writing says ENXIO once the waiter is gone, however it went; and who has it open
//! for writing is told (POLLERR) the moment that happens. Tickets have names that are never used again, so removing a dead
//! one can be done by anybody, any number of times, and never hits a living one. That is why no lock is needed here, and
//! nobody who is stopped can hold up the others.

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::Result;
use crate::fence::Fence;
use crate::local::Place;
use crate::local::dir::Directory;
use crate::local::fresh::keep_from_cleaners;
use crate::local::holder::{Holder, Opened};
use crate::local::layout::TicketName;
use crate::local::liveness::{Liveness, judge};
use crate::local::{process, procfs};
use crate::rule::{self, Position, Standing};
use crate::sys;

/// Our own place in a queue. Dropping it leaves.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) name: TicketName,
    /// Open for reading and writing, so that it never reports a hang-up however many writers come and go.
    fifo: Option<OwnedFd>,
    path: String,
    holder_path: String,
    dir: Directory,
    generation: u64,
    /// Whoever stands directly behind has been told that it does not stand there alone any more.
    pub(crate) announced: bool,
}

/// What has been told to a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    /// Nothing but "look".
    Wake,
    /// It was displaced, and is to come back after that many seconds.
    Displaced(u64),
}

const WAKE: u8 = b'W';
const DISPLACED: u8 = b'D';

/// Somebody's ticket, seen from outside.
#[derive(Debug)]
pub(crate) struct Neighbour {
    pub(crate) name: TicketName,
    /// Open for writing: polls POLLERR when the waiter leaves or dies.
    pub(crate) fifo: OwnedFd,
}

impl TicketName {
    pub(crate) fn position(&self) -> Position {
        Position { class: self.class, rev: self.rev }
    }
}

impl Ticket {
    pub(crate) fn fifo(&self) -> Option<&OwnedFd> {
        self.fifo.as_ref()
    }

    /// What has been told since the last time. A displacement outweighs any number of wake-ups.
    pub(crate) fn read(&self) -> Result<Option<Message>> {
        let Some(fifo) = &self.fifo else { return Ok(None) };
        let mut told = Vec::new();
        let mut bytes = [0; 256];
        loop {
            match rustix::io::read(fifo, &mut bytes) {
                Ok(0) | Err(Errno::AGAIN) => return Ok(parse(&told)),
                Ok(length) => {
                    told.extend_from_slice(&bytes[..length]);
                    // pipe(7): a read takes what is there, up to its size; so there was no more.
                    if length < bytes.len() {
                        return Ok(parse(&told));
                    }
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.dir.system("read", &self.path, errno)),
            }
        }
    }

    /// Lets go of a ticket that has been removed, but not of the record, which may have no other name.
    pub(crate) fn abandon(&mut self) {
        self.fifo = None;
    }

    /// Gives the record the name that goes with the ticket, if it is not there.
    pub(crate) fn link_record(&self, holder: &Holder) -> Result<()> {
        match holder.link(&self.holder_path) {
            Ok(()) | Err(Errno::EXIST | Errno::NOENT) => Ok(()),
            Err(errno) => Err(crate::local::holder::cannot_link(&self.dir, &self.holder_path, errno)),
        }
    }

    /// Leaves the queue. The FIFO is closed first: from then on the kernel tells the next waiter, whatever becomes of us.
    /// The ticket goes last, because it is what others find the rest by.
    pub(crate) fn leave(&mut self) -> Result<()> {
        if self.fifo.take().is_none() || self.generation != self.dir.generation() {
            return Ok(());
        }
        self.dir.unlink(&self.holder_path)?;
        self.dir.unlink(&self.path)?;
        Ok(())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Dropped on the way out of an error; what is left behind then is swept by whoever comes next.
        let _ = self.leave();
    }
}

impl PartialOrd for Message {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Message {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let weight = |message: &Self| match message {
            Self::Wake => 0,
            Self::Displaced(after) => after.saturating_add(1),
        };
        weight(self).cmp(&weight(other))
    }
}

fn parse(bytes: &[u8]) -> Option<Message> {
    let mut message = None;
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        let (read, after) = match (*first, tail.split_first_chunk::<8>()) {
            (DISPLACED, Some((seconds, after))) => (Message::Displaced(u64::from_le_bytes(*seconds)), after),
            _ => (Message::Wake, tail),
        };
        message = message.max(Some(read));
        rest = after;
    }
    message
}

impl Place {
    /// Whether anybody has waited since the claim was last idle. Where mostly nobody has, asking is cheaper than trying to open.
    pub(crate) fn has_queue(&self) -> Result<bool> {
        self.dir.exists(&self.layout.queue)
    }

    /// The tickets in the order of service, those of the dead among them.
    pub(crate) fn tickets(&self) -> Result<Vec<TicketName>> {
        Ok(self.queue()?.unwrap_or_default())
    }

    /// The same; `None`: nobody has waited since the claim was last idle.
    pub(crate) fn queue(&self) -> Result<Option<Vec<TicketName>>> {
        let mut tickets = Vec::new();
        let is_there = self.dir.for_each(&self.layout.queue, |name| {
            tickets.extend(std::str::from_utf8(name).ok().and_then(TicketName::parse));
        })?;
        tickets.sort_unstable_by_key(TicketName::position);
        Ok(is_there.then_some(tickets))
    }

    /// Joins the queue with a place drawn before.
    ///
    /// The ticket is made under a hidden name, opened, and only then gets the name that counts: a ticket in the queue has a
    /// reader from its first instant, so one without a reader is always one whose waiter is gone. `None`: something on the
    /// way was swept away, as may happen beside others that leave; to be tried anew, with a new place.
    pub(crate) fn enqueue(&self, holder: &Holder, class: crate::Class, rev: Fence) -> Result<Option<Ticket>> {
        let (pid, pid_namespace) = (self.me.process.pid, self.me.pid_namespace);
        let name = TicketName { class, rev: rev.get(), pid, pid_namespace };
        self.publish(holder, name)
    }

    /// Makes a ticket of that name; also when our own was taken for dead or cleaned away, to have the same place again.
    pub(crate) fn publish(&self, holder: &Holder, name: TicketName) -> Result<Option<Ticket>> {
        let (hidden, path) = (self.layout.hidden_ticket(&name), self.layout.ticket(&name));
        let mode = self.dir.file_mode();
        loop {
            match rustix::fs::mknodat(&self.dir, hidden.as_str(), FileType::Fifo, mode, 0) {
                Ok(()) | Err(Errno::EXIST) => break,
                Err(Errno::NOENT) if self.dir.make_folder(&self.layout.queue)? => {}
                // Made and removed again by others meanwhile.
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(self.dir.system("make FIFO", &hidden, errno)),
            }
        }
        let mut ticket = Ticket {
            name,
            fifo: None,
            path: hidden.clone(),
            holder_path: self.layout.holder(&name.holder_id()),
            dir: self.dir.clone(),
            generation: self.dir.generation(),
            announced: false,
        };
        // The umask may have taken away what the others need, or we.
        let set_mode = || rustix::fs::chmodat(&self.dir, hidden.as_str(), mode, AtFlags::empty());
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let open = || rustix::fs::openat(&self.dir, hidden.as_str(), flags, Mode::empty());
        let is_shared = !(mode & !Mode::RWXU).is_empty();
        if is_shared {
            match set_mode() {
                Ok(()) => {}
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(self.dir.system("set the mode of", &hidden, errno)),
            }
        }
        let opened = match open() {
            Err(Errno::ACCESS) if !is_shared => set_mode().and_then(|()| open()),
            opened => opened,
        };
        match opened {
            // From here on, dropping the ticket cleans up. For cleaners that go by age it is dated as records are.
            Ok(fifo) => {
                keep_from_cleaners(&fifo).map_err(|errno| self.dir.system("set the times of", &hidden, errno))?;
                ticket.fifo = Some(fifo);
            }
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.dir.system("open", &hidden, errno)),
        }
        match rustix::fs::renameat(&self.dir, hidden.as_str(), &self.dir, path.as_str()) {
            Ok(()) => ticket.path = path,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.dir.system("rename", &hidden, errno)),
        }
        // After the ticket, and gone before it: whoever dies in between leaves nothing that no ticket leads to.
        loop {
            match holder.link(&ticket.holder_path) {
                Ok(()) | Err(Errno::EXIST) => return Ok(Some(ticket)),
                // A record without any name left can get none: the caller has to make another.
                Err(Errno::NOENT) if holder.is_lost()? => return Ok(None),
                Err(Errno::NOENT) => drop(self.dir.make_folder(&self.layout.holders)?),
                Err(errno) => return Err(crate::local::holder::cannot_link(&self.dir, &ticket.holder_path, errno)),
            }
        }
    }

    /// A waiter as it stands now; `None`, and removed, if it is gone.
    pub(crate) fn visit(&self, name: TicketName) -> Result<Option<(Neighbour, Standing)>> {
        let path = self.layout.ticket(&name);
        let fifo = match rustix::fs::openat(&self.dir, path.as_str(), knock(), Mode::empty()) {
            Ok(fifo) => fifo,
            Err(Errno::NXIO) => {
                self.sweep(&name, &path)?;
                return Ok(None);
            }
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.dir.system("open", &path, errno)),
        };
        if name.pid_namespace != self.me.pid_namespace {
            return Ok(Some((Neighbour { name, fifo }, Standing::Ready)));
        }
        let Some(standing) = self.standing(name.pid)? else {
            // Only its forked children still have the FIFO open.
            self.sweep(&name, &path)?;
            return Ok(None);
        };
        Ok(Some((Neighbour { name, fifo }, standing)))
    }

    /// How the process of that pid stands, in this pid namespace; `None` if it has ended.
    ///
    /// One look at /proc says both that it is there and whether it is stopped. Only where that shows nothing (it is gone,
    /// or hidden from us, or /proc is another's), or a zombie, which may have left threads behind, the kernel is asked.
    fn standing(&self, pid: i32) -> Result<Option<Standing>> {
        let shown = if self.me.proc_is_ours()? { procfs::stat_of_ours(pid)? } else { None };
        match shown {
            Some(stat) if stat.is_stopped() => Ok(Some(Standing::Absent)),
            Some(stat) if !stat.is_zombie() => Ok(Some(Standing::Ready)),
            _ => Ok((!process::has_gone(pid)?).then_some(Standing::Ready)),
        }
    }

    /// Removes what a waiter that is gone has left. The ticket goes last: it is what the rest is found by.
    fn sweep(&self, name: &TicketName, path: &str) -> Result<()> {
        self.dir.unlink(&self.layout.holder(&name.holder_id()))?;
        self.dir.unlink(path)?;
        Ok(())
    }

    /// Removes what a waiter left that died before its ticket was in the queue.
    fn sweep_hidden(&self, hidden: &str) -> Result<()> {
        let Some(name) = hidden.strip_prefix('.').and_then(TicketName::parse) else { return Ok(()) };
        let path = self.layout.hidden_ticket(&name);
        // In this namespace the process is asked, because the FIFO of a living one may not be open yet.
        let gone = if name.pid_namespace == self.me.pid_namespace {
            process::has_gone(name.pid)?
        } else {
            rustix::fs::openat(&self.dir, path.as_str(), knock(), Mode::empty()).err() == Some(Errno::NXIO)
        };
        if gone { self.sweep(&name, &path) } else { Ok(()) }
    }

    /// Tells a waiter something. It may be gone by now, which is as good.
    pub(crate) fn tell(&self, neighbour: &Neighbour, message: Message) -> Result<()> {
        let mut bytes = [0; 9];
        let bytes = match message {
            Message::Wake => &[WAKE][..],
            Message::Displaced(seconds) => {
                bytes[0] = DISPLACED;
                bytes[1..].copy_from_slice(&seconds.to_le_bytes());
                &bytes[..]
            }
        };
        match sys::write_without_sigpipe(std::os::fd::AsFd::as_fd(&neighbour.fifo), bytes) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                // EAGAIN: it is full of wake-ups already.
                Some(Errno::PIPE | Errno::AGAIN | Errno::INTR) => Ok(()),
                _ => Err(self.dir.system("write to", &self.layout.ticket(&neighbour.name), error)),
            },
        }
    }

    /// Wakes the first waiter of the queue that can take a slot. False: nobody waits.
    pub(crate) fn wake_first(&self, tickets: Vec<TicketName>) -> Result<bool> {
        let mut neighbours = Vec::new();
        let first = rule::first_ready(self.standings(tickets.into_iter(), &mut neighbours))?;
        if let Some(first) = first {
            self.tell(&neighbours[first], Message::Wake)?;
        }
        Ok(!neighbours.is_empty())
    }

    /// How waiters stand, asked for one at a time as they are needed; those who are gone are left out. Who was met is
    /// added to `met`, so that the index that the rule finds is an index into that.
    pub(crate) fn standings(
        &self,
        tickets: impl Iterator<Item = TicketName>,
        met: &mut Vec<Neighbour>,
    ) -> impl Iterator<Item = Result<Standing>> {
        tickets.filter_map(move |name| match self.visit(name) {
            Ok(Some((neighbour, standing))) => {
                met.push(neighbour);
                Some(Ok(standing))
            }
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        })
    }

    /// Wakes the waiter directly behind a place: whoever stood there until that place was taken.
    pub(crate) fn wake_behind(&self, position: Position, tickets: &[TicketName]) -> Result<()> {
        for name in tickets.iter().filter(|name| name.position() > position) {
            if let Some((neighbour, Standing::Ready)) = self.visit(*name)? {
                return self.tell(&neighbour, Message::Wake);
            }
        }
        Ok(())
    }

    /// Removes a waiter from the queue that has been told to come back later.
    pub(crate) fn displace(&self, name: TicketName, retry_after: u64) -> Result<()> {
        if let Some((neighbour, _)) = self.visit(name)? {
            self.tell(&neighbour, Message::Displaced(retry_after))?;
            self.sweep(&name, &self.layout.ticket(&name))?;
        }
        Ok(())
    }

    /// After a release, or after a last waiter has left: if nobody waits and nobody holds, nothing is left behind.
    ///
    /// The directory goes only if it is empty (rmdir(2) sees to that), so who joins meanwhile is not lost: it finds its
    /// directory gone before it has put anything in, and makes it again, or it keeps the directory there.
    pub(crate) fn tidy(&self) -> Result<()> {
        let Some(queue) = self.queue()? else { return self.tidy_holders() };
        for ticket in queue {
            if self.visit(ticket)?.is_some() {
                return Ok(());
            }
        }
        if self.is_held()? {
            return Ok(());
        }
        for hidden in self.dir.list(&self.layout.queue)? {
            self.sweep_hidden(&hidden)?;
        }
        self.dir.unlink(&self.layout.stats())?;
        self.dir.remove_folder(&self.layout.queue)?;
        self.tidy_holders()
    }

    /// The same where nobody has waited: only names of records can be left. Mostly there are none, and one call says so.
    pub(crate) fn tidy_holders(&self) -> Result<()> {
        if self.dir.remove_folder(&self.layout.holders)? || self.is_held()? {
            return Ok(());
        }
        self.sweep_holders()?;
        self.dir.remove_folder(&self.layout.holders).map(drop)
    }

    /// Removes names of records whose owners have died.
    fn sweep_holders(&self) -> Result<()> {
        for id in self.dir.list(&self.layout.holders)? {
            let path = self.layout.holder(&id);
            let opened = match Opened::at(&self.dir, &path) {
                Ok(Some(opened)) => opened,
                Ok(None) => continue,
                // Not in anybody's way where it stands.
                Err(error) if error.kind() == crate::ErrorKind::Unreadable => continue,
                Err(error) => return Err(error),
            };
            if judge(&opened.record, std::os::fd::AsFd::as_fd(&opened), &self.me)? == Liveness::Dead {
                self.dir.unlink(&path)?;
            }
        }
        Ok(())
    }
}

/// How a waiter is looked for: ENXIO if it is gone.
fn knock() -> OFlags {
    OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_displacement_is_not_lost_among_wake_ups() {
        let mut bytes = vec![WAKE, DISPLACED];
        bytes.extend(7_u64.to_le_bytes());
        bytes.push(WAKE);
        assert_eq!(parse(&bytes), Some(Message::Displaced(7)));
        assert_eq!(parse(b"WW"), Some(Message::Wake));
        assert_eq!(parse(b""), None);
    }
}
