//! The transactions that claims are made of. Each bears being carried out twice, since an answer may be lost.

use super::keys::Range;
use super::rule::Seen;
use super::wire::{
    Compare, DeleteRequest, KeyValue, Op, OpAnswer, PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseOp,
    SortOrder, SortTarget, Target, TxnRequest, TxnResponse,
};

/// What a listing showed, and as of which revision.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Listing {
    pub revision: i64,
    /// By create revision.
    pub kvs: Vec<KeyValue>,
}

impl Listing {
    pub(super) fn new(answer: RangeResponse) -> Listing {
        Listing { revision: answer.header.map_or(0, |header| header.revision), kvs: answer.kvs }
    }

    pub(super) fn seen(&self) -> impl Iterator<Item = Seen<'_>> {
        self.kvs.iter().map(|kv| Seen { key: &kv.key, created: kv.create_revision })
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&KeyValue> {
        self.kvs.iter().find(|kv| kv.key == key)
    }
}

/// Everything that begins with `prefix`, by create revision.
pub(crate) fn list(prefix: &Range) -> RangeRequest {
    RangeRequest {
        key: prefix.start.clone(),
        range_end: prefix.end(),
        sort_order: SortOrder::Ascend as i32,
        sort_target: SortTarget::Create as i32,
        count_only: false,
    }
}

/// One key.
pub(crate) fn get(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), ..RangeRequest::default() }
}

/// Makes `key` if it is not there, lists the contenders either way, and counts those for `name` with any capacity.
pub(crate) fn enter(key: &[u8], value: Vec<u8>, lease: i64, contenders: &Range, name: &Range) -> TxnRequest {
    let count = RangeRequest { count_only: true, ..list(name) };
    let look = [op(Op::Range(count)), op(Op::Range(list(contenders)))];
    TxnRequest {
        compare: vec![created(key, 0)],
        success: [vec![op(Op::Put(put(key, value, lease)))], look.to_vec()].concat(),
        failure: look.to_vec(),
    }
}

/// Reads the answer to [`enter`]: the contenders, mine among them or somebody else under my key; and whether the name is in
/// use with another capacity as well.
pub(crate) fn entered(answer: TxnResponse) -> (Listing, bool) {
    let revision = revision(&answer);
    let count = answer.responses.iter().find_map(|answer| match &answer.op {
        Some(OpAnswer::Range(range)) => Some(range.count),
        _ => None,
    });
    let listing = ranges(answer.responses, revision).pop().unwrap_or_default();
    let known = i64::try_from(listing.kvs.len()).unwrap_or(i64::MAX);
    (listing, count.is_some_and(|count| count > known))
}

/// A slot that may be free, and the modification that was seen last (0: it was not there).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub slot: u32,
    pub modified: i64,
}

/// Where a holder's key and slots are.
pub(crate) struct Places<'a> {
    pub key: &'a [u8],
    pub created: i64,
    pub lease: i64,
    pub slots: &'a Range,
    pub contenders: &'a Range,
}

/// Takes the first candidate that is free and writes the holder's record, if the holder's key is still its own; else
/// lists slots and contenders. One round trip, however many candidates.
pub(crate) fn settle(
    places: &Places<'_>,
    candidates: &[Candidate],
    slot_key: impl Fn(u32) -> Vec<u8>,
    record: impl Fn(u32) -> Vec<u8>,
) -> TxnRequest {
    let lists = || vec![op(Op::Range(list(places.slots))), op(Op::Range(list(places.contenders)))];
    let mut failure = lists();
    for candidate in candidates.iter().rev() {
        let slot = slot_key(candidate.slot);
        let taken = TxnRequest {
            compare: vec![created(places.key, places.created), modified(&slot, candidate.modified)],
            success: vec![
                op(Op::Put(put(places.key, record(candidate.slot), places.lease))),
                op(Op::Put(put(&slot, Vec::new(), places.lease))),
            ],
            failure,
        };
        failure = vec![op(Op::Txn(taken))];
    }
    // The outermost transaction compares nothing, so what it does is its success.
    TxnRequest { compare: Vec::new(), success: failure, failure: Vec::new() }
}

/// What became of [`settle`].
#[derive(Debug, PartialEq)]
pub(crate) enum Settled {
    /// The candidate of that index was free.
    Taken(usize),
    /// None was: the slots and the contenders as they are.
    Not { slots: Listing, contenders: Listing },
}

/// Reads the answer to [`settle`].
pub(crate) fn settled(answer: TxnResponse) -> Settled {
    let revision = revision(&answer);
    let mut answers = answer.responses;
    let mut index = 0;
    loop {
        match answers.first().and_then(|answer| answer.op.clone()) {
            Some(OpAnswer::Txn(inner)) if inner.succeeded => return Settled::Taken(index),
            Some(OpAnswer::Txn(inner)) => {
                answers = inner.responses;
                index += 1;
            }
            _ => {
                let mut lists = ranges(answers, revision);
                let contenders = lists.pop().unwrap_or_default();
                return Settled::Not { slots: lists.pop().unwrap_or_default(), contenders };
            }
        }
    }
}

/// Writes the record of a key that is still its owner's; `lease` moves it to another lease, with its create revision.
/// `slot` goes with it.
pub(crate) fn rewrite(key: &[u8], made: i64, value: Vec<u8>, lease: Option<i64>, slot: Option<&[u8]>) -> TxnRequest {
    let write = |key: &[u8], value: Vec<u8>| {
        let ignore_lease = lease.is_none();
        op(Op::Put(PutRequest { key: key.to_vec(), value, lease: lease.unwrap_or(0), ignore_lease }))
    };
    let mut success = vec![write(key, value)];
    success.extend(slot.filter(|_| lease.is_some()).map(|slot| write(slot, Vec::new())));
    TxnRequest { compare: vec![created(key, made)], success, failure: Vec::new() }
}

/// Deletes a holder's key if it is still the one that was seen, and its slot.
pub(crate) fn force(holder: &KeyValue, slot: Option<&KeyValue>) -> TxnRequest {
    let delete = |key: &[u8]| op(Op::Delete(DeleteRequest { key: key.to_vec() }));
    let mut compare = vec![created(&holder.key, holder.create_revision)];
    let mut success = vec![delete(&holder.key)];
    if let Some(slot) = slot {
        compare.push(modified(&slot.key, slot.mod_revision));
        success.push(delete(&slot.key));
    }
    TxnRequest { compare, success, failure: Vec::new() }
}

pub(crate) fn revision(answer: &TxnResponse) -> i64 {
    answer.header.as_ref().map_or(0, |header| header.revision)
}

/// The listings among the answers. The header of an inner answer carries no revision, the outer one's is theirs.
pub(crate) fn ranges(answers: Vec<ResponseOp>, revision: i64) -> Vec<Listing> {
    let range = |answer: ResponseOp| match answer.op {
        Some(OpAnswer::Range(range)) => Some(Listing { revision, ..Listing::new(range) }),
        _ => None,
    };
    answers.into_iter().filter_map(range).collect()
}

fn op(op: Op) -> RequestOp {
    RequestOp { op: Some(op) }
}

fn put(key: &[u8], value: Vec<u8>, lease: i64) -> PutRequest {
    PutRequest { key: key.to_vec(), value, lease, ignore_lease: false }
}

fn created(key: &[u8], revision: i64) -> Compare {
    Compare { result: 0, target: 1, key: key.to_vec(), value: Some(Target::CreateRevision(revision)) }
}

fn modified(key: &[u8], revision: i64) -> Compare {
    Compare { result: 0, target: 2, key: key.to_vec(), value: Some(Target::ModRevision(revision)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::wire::Header;

    fn answer(succeeded: bool, responses: Vec<OpAnswer>) -> TxnResponse {
        let responses = responses.into_iter().map(|op| ResponseOp { op: Some(op) }).collect();
        TxnResponse { header: Some(Header { revision: 7 }), succeeded, responses }
    }

    fn range(key: &[u8]) -> OpAnswer {
        let kvs = vec![KeyValue { key: key.to_vec(), ..KeyValue::default() }];
        OpAnswer::Range(RangeResponse { header: None, kvs, count: 0 })
    }

    #[test]
    fn the_first_free_candidate_is_found_at_its_depth() {
        let taken = answer(true, vec![]);
        let second = answer(false, vec![OpAnswer::Txn(taken.clone())]);
        assert_eq!(settled(answer(true, vec![OpAnswer::Txn(taken)])), Settled::Taken(0));
        assert_eq!(settled(answer(true, vec![OpAnswer::Txn(second)])), Settled::Taken(1));
    }

    #[test]
    fn without_one_both_listings_are_read_as_of_the_transaction() {
        let none = answer(false, vec![range(b"slot"), range(b"sema")]);
        let listing =
            |key: &[u8]| Listing { revision: 7, kvs: vec![KeyValue { key: key.to_vec(), ..KeyValue::default() }] };
        let not = Settled::Not { slots: listing(b"slot"), contenders: listing(b"sema") };
        assert_eq!(settled(answer(true, vec![OpAnswer::Txn(none)])), not);
        assert_eq!(settled(answer(true, vec![range(b"slot"), range(b"sema")])), not);
    }

    #[test]
    fn candidates_are_tried_one_inside_the_other() {
        let prefix = Range::new(b"p/".to_vec());
        let places = Places { key: b"k", created: 3, lease: 9, slots: &prefix, contenders: &prefix };
        let candidates = [0, 1].map(|slot| Candidate { slot, modified: 0 });
        let request = settle(&places, &candidates, |slot| vec![slot as u8], |_| Vec::new());
        let Some(Op::Txn(first)) = &request.success[0].op else { panic!("{request:?}") };
        assert_eq!(first.compare.len(), 2);
        let Some(Op::Txn(second)) = &first.failure[0].op else { panic!("{first:?}") };
        assert_eq!(second.failure.len(), 2);
    }
}
