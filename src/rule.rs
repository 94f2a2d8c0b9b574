//! Who is next: the only place that knows the order. Pure; what is seen goes in, what follows comes out.
//!
//! It holds for any capacity and class. Nobody decides for others: each contender applies it to what it sees, and the
//! slot itself (one link, one winner) settles what two of them saw differently.

use crate::class::Class;

/// A place in the queue. Smaller is served earlier: by class, then by arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) class: Class,
    /// The number drawn on arrival.
    pub(crate) rev: u64,
}

/// How a waiter looks from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Able to take a slot.
    Ready,
    /// Stopped, or beside a free slot for long without taking it: keeps its place and is passed over meanwhile.
    Absent,
}

/// What a contender does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nobody is before it: try the slots.
    Mine,
    /// Behind a waiter that can be expected to move, that many steps before it (0: the next).
    Behind(usize),
}

/// Whose turn it is, seen from a contender: `before` are those before it, the nearest first. Only as many are asked for as
/// it takes to find one that can be expected to move, so a waiter far back looks at its neighbour alone.
pub(crate) fn turn<E>(before: impl IntoIterator<Item = Result<Standing, E>>) -> Result<Turn, E> {
    Ok(first_ready(before)?.map_or(Turn::Mine, Turn::Behind))
}

/// The first that can take a slot: of the whole queue, whom a release wakes.
pub(crate) fn first_ready<E>(queue: impl IntoIterator<Item = Result<Standing, E>>) -> Result<Option<usize>, E> {
    for (index, standing) in queue.into_iter().enumerate() {
        if standing? == Standing::Ready {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    Waiter(Position),
    Newcomer(Class),
}

impl Contender {
    pub(crate) fn is_behind(self, other: Position) -> bool {
        match self {
            Self::Waiter(me) => other < me,
            Self::Newcomer(class) => other.class <= class,
        }
    }
}

/// What a bounded queue says to a newcomer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Join,
    /// Join, in place of the waiter with that index.
    Displace(usize),
    Refuse,
}

/// Admission to a queue of at most `bound` waiters, which is as it is in `queue`, in the order of service.
///
/// A full queue makes room for a higher class at the cost of the newest waiter of the lowest class below: never of an
/// interactive one, never of a peer. Where the bound is nought nobody waits, so nobody is displaced for it either.
pub(crate) fn admit(class: Class, queue: &[Position], bound: Option<u32>) -> Admission {
    let Some(bound) = bound else { return Admission::Join };
    if queue.len() < usize::try_from(bound).unwrap_or(usize::MAX) {
        return Admission::Join;
    }
    match queue.last() {
        // The last in the order of service is the newest of the lowest class.
        Some(last) if bound > 0 && last.class > class && last.class != Class::Interactive => {
            Admission::Displace(queue.len() - 1)
        }
        _ => Admission::Refuse,
    }
}

/// When to come back, in whole seconds: the mean of the last hold times, for each of those who wait and once more, over
/// the number that are served at a time.
pub(crate) fn retry_after(mean_hold_ns: Option<u64>, waiters: usize, max: u32) -> u64 {
    const WHERE_NOTHING_IS_KNOWN_NS: u64 = 2_000_000_000;
    let mean = u128::from(mean_hold_ns.unwrap_or(WHERE_NOTHING_IS_KNOWN_NS));
    let nanoseconds = mean * (waiters as u128 + 1);
    let seconds = nanoseconds.div_ceil(u128::from(max) * 1_000_000_000);
    u64::try_from(seconds).unwrap_or(u64::MAX).max(1)
}

/// How long a waiter sleeps before it looks by itself, though nothing has woken it. The first in the queue looks often
/// enough that nothing that is lost (a wake-up, the death of a holder whom nobody can watch) costs more than that; the
/// others at most once a second, and ever more rarely, so that many of them cost nothing.
pub(crate) fn look_again_after(waiters_before: usize) -> std::time::Duration {
    use std::time::Duration;
    match waiters_before {
        0 => Duration::from_millis(20),
        before => Duration::from_secs((before as u64).min(10)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn classes() -> impl Strategy<Value = Class> {
        prop::sample::select(Class::ALL.to_vec())
    }

    fn sorted(mut queue: Vec<Position>) -> Vec<Position> {
        queue.sort();
        queue
    }

    prop_compose! {
        fn queues()(classes in prop::collection::vec(classes(), 0..9)) -> Vec<Position> {
            sorted(classes.into_iter().zip(1..).map(|(class, rev)| Position { class, rev }).collect())
        }
    }

    fn standing(absent: u16, index: usize) -> Standing {
        if absent >> index & 1 == 1 { Standing::Absent } else { Standing::Ready }
    }

    /// The turn of a contender, with everybody ready but those whose bit is set.
    fn turn_of(who: Contender, queue: &[Position], absent: u16) -> Turn {
        let before = queue.iter().enumerate().filter(|(_, p)| who.is_behind(**p));
        let before: Vec<_> = before.map(|(index, _)| Ok::<_, ()>(standing(absent, index))).collect();
        turn(before.into_iter().rev()).unwrap()
    }

    proptest! {
        /// The rule against a plain model: a list per class, served from the front of the highest that has one.
        #[test]
        fn service_is_by_class_then_arrival(arrivals in prop::collection::vec((classes(), any::<bool>()), 1..12)) {
            let mut lists: [Vec<u64>; 4] = Default::default();
            let mut queue: Vec<Position> = Vec::new();
            for (rev, (class, serve)) in (1..).zip(arrivals) {
                lists[usize::from(class.rank())].push(rev);
                queue.push(Position { class, rev });
                queue.sort();
                if serve {
                    let expected = lists.iter_mut().find(|list| !list.is_empty()).unwrap().remove(0);
                    let served: Vec<u64> = queue
                        .iter()
                        .filter(|p| turn_of(Contender::Waiter(**p), &queue, 0) == Turn::Mine)
                        .map(|p| p.rev)
                        .collect();
                    prop_assert_eq!(&served, &vec![expected]);
                    queue.retain(|p| p.rev != expected);
                }
            }
        }

        #[test]
        fn exactly_the_first_that_is_ready_has_its_turn(queue in queues(), absent: u16) {
            let first = first_ready((0..queue.len()).map(|index| Ok::<_, ()>(standing(absent, index)))).unwrap();
            for (index, position) in queue.iter().enumerate() {
                let mine = turn_of(Contender::Waiter(*position), &queue, absent) == Turn::Mine;
                if standing(absent, index) == Standing::Ready {
                    prop_assert_eq!(mine, Some(index) == first);
                }
            }
        }

        #[test]
        fn a_newcomer_overtakes_lower_classes_only(queue in queues(), class in classes()) {
            let mine = turn_of(Contender::Newcomer(class), &queue, 0) == Turn::Mine;
            prop_assert_eq!(mine, queue.iter().all(|p| p.class > class));
        }

        #[test]
        fn a_bound_holds_and_only_lower_classes_pay(arrivals in prop::collection::vec(classes(), 1..30), bound in 0_u32..5) {
            let mut queue: Vec<Position> = Vec::new();
            for (rev, class) in (1..).zip(arrivals) {
                let room = queue.len() < bound as usize;
                let victim = queue.iter().filter(|p| p.class > class).max_by_key(|p| (p.class, p.rev)).copied();
                match admit(class, &queue, Some(bound)) {
                    Admission::Join => prop_assert!(room),
                    Admission::Displace(index) => {
                        prop_assert!(!room);
                        prop_assert_eq!(Some(queue.remove(index)), victim);
                    }
                    Admission::Refuse => {
                        prop_assert!(!room && (victim.is_none() || bound == 0));
                        continue;
                    }
                }
                queue.push(Position { class, rev });
                queue.sort();
                prop_assert!(queue.len() <= bound as usize);
            }
        }

        #[test]
        fn retry_after_is_whole_seconds_and_grows_with_the_queue(mean in 0_u64.., waiters in 0_usize..9999, max in 1_u32..) {
            let here = retry_after(Some(mean), waiters, max);
            prop_assert!(here >= 1 && here <= retry_after(Some(mean), waiters + 1, max));
        }
    }

    #[test]
    fn retry_after_is_the_contracts_formula() {
        assert_eq!(retry_after(None, 0, 1), 2);
        assert_eq!(retry_after(None, 3, 2), 4);
        assert_eq!(retry_after(Some(1_500_000_000), 2, 1), 5);
        assert_eq!(retry_after(Some(1), 0, 3), 1);
    }

    #[test]
    fn without_a_bound_everybody_joins() {
        let full = [Position { class: Class::Low, rev: 1 }; 1000];
        assert_eq!(admit(Class::Low, &full, None), Admission::Join);
    }
}
