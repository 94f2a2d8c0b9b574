//! Who holds: the first N contenders by create revision. Pure; the only place in here that knows the order.
//!
//! "Wait for the key N places ahead" is wrong for N > 1: when another key ahead goes first, a slot is free and the
//! waiter sleeps on. What is right is to count: a contender with `ahead` keys before it holds as soon as fewer than N
//! of them are left, whichever they are.
//!
//! Nor is it necessary to watch all of them. As long as some N of those ahead are there, it does not hold; so it watches
//! the N next to it, and looks again when one of these has gone. One deletion then wakes at most N contenders, and the
//! one that it promotes is among them.

/// A contender as a listing shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen<'a> {
    pub key: &'a [u8],
    /// The key's create revision: its place in the order, and its fence once it holds.
    pub created: i64,
}

/// One contender's place, from a listing and the deletions after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    mine: Vec<u8>,
    max: usize,
    /// The keys before mine that may still be there, the nearest last. Delete events carry no create revision, hence
    /// the names.
    ahead: Vec<Vec<u8>>,
    gone: bool,
}

impl Place {
    /// My place in a listing. My key counts as gone where it is missing, or has another create revision than mine (it
    /// was deleted and made again by somebody else).
    pub(super) fn new<'a>(listing: impl IntoIterator<Item = Seen<'a>>, mine: &[u8], created: i64, max: u32) -> Place {
        let mut ahead = Vec::new();
        let mut gone = true;
        for seen in listing {
            if seen.key == mine {
                gone = seen.created != created;
            } else if seen.created < created {
                ahead.push((seen.created, seen.key.to_vec()));
            }
        }
        ahead.sort_unstable();
        let ahead = ahead.into_iter().map(|(_, key)| key).collect();
        Place { mine: mine.to_vec(), max: usize::try_from(max).unwrap_or(usize::MAX), ahead, gone }
    }

    /// A key was deleted. One that is made again later stands behind mine, so only its first deletion counts.
    pub(super) fn deleted(&mut self, key: &[u8]) {
        if key == self.mine {
            self.gone = true;
        } else {
            self.ahead.retain(|ahead| ahead != key);
        }
    }

    /// My key is not there any more: the place is lost, whoever is ahead.
    pub(super) fn gone(&self) -> bool {
        self.gone
    }

    /// Fewer than N are ahead: I hold.
    pub(super) fn holds(&self) -> bool {
        !self.gone && self.ahead.len() < self.max
    }

    /// The N nearest of those before me. While all of them are there, I do not hold.
    pub(super) fn nearest(&self) -> &[Vec<u8>] {
        &self.ahead[self.ahead.len().saturating_sub(self.max)..]
    }

    /// How many are before me, as far as is known.
    pub(super) fn ahead(&self) -> usize {
        self.ahead.len()
    }

    /// Whether `key` is one of those before me.
    #[cfg(test)]
    pub(super) fn is_ahead(&self, key: &[u8]) -> bool {
        self.ahead.iter().any(|ahead| ahead == key)
    }

    /// How many of those before me have to end until I hold.
    #[cfg(test)]
    pub(super) fn ends_needed(&self) -> usize {
        (self.ahead.len() + 1).saturating_sub(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Keys by number with their create revisions, in order of creation.
    type Cluster = Vec<(u8, i64)>;

    fn place(cluster: &Cluster, mine: u8, created: i64, max: u32) -> Place {
        let keys: Vec<[u8; 1]> = cluster.iter().map(|(key, _)| [*key]).collect();
        let seen = keys.iter().zip(cluster).map(|(key, (_, created))| Seen { key, created: *created });
        Place::new(seen, &[mine], created, max)
    }

    #[test]
    fn the_second_holder_leaves_first() {
        let mut third = place(&vec![(1, 10), (2, 11), (3, 12)], 3, 12, 2);
        assert!(!third.holds());
        assert_eq!(third.ends_needed(), 1);
        third.deleted(&[2]);
        assert!(third.holds());
    }

    #[test]
    fn a_waiter_in_the_middle_promotes_nobody() {
        let mut last = place(&vec![(1, 10), (2, 11), (3, 12)], 3, 12, 1);
        last.deleted(&[2]);
        assert!(!last.holds());
        assert_eq!(last.ahead(), 1);
    }

    #[test]
    fn a_key_of_another_life_is_not_mine() {
        assert!(place(&vec![(1, 20)], 1, 10, 1).gone());
        assert!(place(&vec![], 1, 10, 1).gone());
    }

    proptest! {
        /// Whatever comes and goes after the listing, what was counted is what a new listing says.
        #[test]
        fn counting_agrees_with_listing(
            first in proptest::collection::hash_set(0u8..12, 1..10),
            pick in any::<prop::sample::Index>(),
            max in 1u32..5,
            toggles in proptest::collection::vec(0u8..12, 0..40),
        ) {
            let mut revision = 100;
            let mut cluster: Cluster = first.into_iter().map(|key| { revision += 1; (key, revision) }).collect();
            let (mine, created) = cluster[pick.index(cluster.len())];
            let mut counted = place(&cluster, mine, created, max);
            let mut needed = counted.ends_needed();
            for key in toggles {
                if let Some(at) = cluster.iter().position(|(there, _)| *there == key) {
                    if counted.is_ahead(&[key]) {
                        needed = needed.saturating_sub(1);
                    }
                    cluster.remove(at);
                    counted.deleted(&[key]);
                } else {
                    revision += 1;
                    cluster.push((key, revision));
                }
                let listed = place(&cluster, mine, created, max);
                prop_assert_eq!(counted.gone(), listed.gone());
                prop_assert_eq!(counted.holds(), listed.holds());
                prop_assert_eq!(counted.ends_needed(), needed);
                if counted.gone() {
                    break;
                }
            }
        }

        /// Who is promoted by a deletion has watched that key, and no key is watched by more than N.
        #[test]
        fn watching_the_nearest_is_enough(
            count in 2u8..14,
            max in 1u32..5,
            ends in proptest::collection::vec(any::<prop::sample::Index>(), 0..14),
        ) {
            let mut cluster: Cluster = (0..count).zip(1..).collect();
            let mut waiting: Vec<(u8, i64, Place)> =
                cluster.iter().map(|(key, created)| (*key, *created, place(&cluster, *key, *created, max))).collect();
            for end in ends {
                if cluster.is_empty() {
                    break;
                }
                let (gone, _) = cluster.remove(end.index(cluster.len()));
                waiting.retain(|(key, ..)| *key != gone);
                let mut woken = 0;
                for (key, created, known) in &mut waiting {
                    if known.holds() {
                        continue;
                    }
                    let now = place(&cluster, *key, *created, max);
                    if known.nearest().contains(&vec![gone]) {
                        woken += 1;
                        *known = now;
                    } else {
                        prop_assert!(!now.holds());
                    }
                }
                prop_assert!(woken <= max);
            }
        }

        /// At most N hold, and exactly min(N, contenders) do.
        #[test]
        fn as_many_hold_as_may(keys in proptest::collection::hash_set(0u8.., 0..20), max in 1u32..6) {
            let cluster: Cluster = keys.into_iter().zip(1..).collect();
            let holders = cluster.iter().filter(|(key, created)| place(&cluster, *key, *created, max).holds()).count();
            prop_assert_eq!(holders, cluster.len().min(max as usize));
        }
    }
}
