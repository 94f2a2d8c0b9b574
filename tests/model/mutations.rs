//! The guards of the protocol, each of which can be taken away.

/// What is left out of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutation {
    /// Nothing: the protocol as it is.
    None,

    // reclaim
    /// A record is judged by the pid of `claim` alone.
    JudgeClaimOnly,
    /// The record is not read again under the lock.
    NoSecondReading,
    /// The slot is unlinked without a look whether it still names the inode that was judged.
    NoInodeCheck,
    /// The inode is not locked.
    NoReclaimLock,

    // register
    /// The child does not look whether the slot still names the record.
    RegisterUnchecked,
    /// The child looks and stores without the lock.
    RegisterUnlocked,

    // force and release
    /// A forcer goes ahead whatever the state word says.
    ForceWithoutCas,
    /// A forcer does not lock the inode.
    ForceUnlocked,
    /// A forcer does not look whether the slot still names the inode.
    ForceNoInodeCheck,
    /// A forcer does not look at the state word again under the lock.
    ForceWordUnchecked,
    /// A forcer wakes nobody.
    ForceWithoutWake,
    /// The releaser reads the state word and does not set RELEASING.
    ReleaseWithoutHandshake,
    /// The releaser unlinks the slot whatever was in the state word.
    ReleaseIgnoresRevoked,
    /// A releaser that finds REVOKED leaves the slot to the forcer.
    RevokedIsLeft,
    /// The claim is released while COMMAND runs.
    ReleaseBeforeReap,
    /// A releaser wakes nobody.
    ReleaseWithoutWake,
    /// A releaser wakes first and unlinks then.
    WakeBeforeUnlink,

    // fence
    /// The fence is drawn before the link.
    FenceBeforeLink,
    /// The new holder does not look at the state word after it has drawn its fence.
    FenceUnchecked,

    // enqueue and look
    /// The record gets its private name before the ticket gets its public one.
    LinkBeforePublish,
    /// The ticket gets its public name before its reader is there.
    PublishBeforeOpen,
    /// A waiter goes to sleep after it has published its ticket, without a look at the slots.
    NoLookAfterEnqueue,
    /// A newcomer does not look at the queue.
    NewcomerIgnoresQueue,
    /// A waiter that was woken goes to the slots without a look at the queue.
    TakeWithoutList,
    /// A waiter whose ticket is missing carries on without one.
    NoRepublish,
    /// A newcomer does not wake the one it stepped in front of.
    NoWakeBehind,
    /// The byte is read from the FIFO after the look, not before it.
    DrainAfterLook,
    /// A waiter whose predecessor has gone between list and open goes to sleep all the same.
    WatchUnchecked,
    /// A slot that was held when it was to be linked and is free when it is to be read counts as held.
    VanishedIsHeld,
    /// Stopped waiters are not passed over.
    NoPassingStopped,
    /// Waiters that do not respond are not passed over.
    NoPassingUnresponsive,
    /// A waiter that does not respond is passed over beside a free slot, not beside one whose holder is dead.
    UnresponsiveNeedsFree,
    /// A waiter remembers only one that does not respond.
    OneSuspect,
    /// Nobody looks by itself, only when woken.
    NoPeriodicLook,

    // leave, and the last one out
    /// Leaving does not wake the successor.
    LeaveSilently,
    /// A waiter that leaves unserved does not remove an idle queue.
    LeaveWithoutTidy,
    /// Slots of dead holders are left to those who need them.
    LeaveDeadSlots,
    /// Who sweeps hidden tickets lists the queue again after each.
    SweepUntilEmpty,
    /// The queue's directory is removed with all that is in it.
    RemoveQueueWithAll,
}
