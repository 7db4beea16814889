use super::*;
use MessageFate as M;
use RecordFate as R;

fn policy() -> RetryPolicy {
    "1s 2s dead-letter".parse::<RetryPolicy>().unwrap().business_limit(1)
}

fn look(found: Findings) -> (MessageFate, RecordFate) {
    let fate = fate(&found, &policy());
    (fate.message, fate.record)
}

/// Every fact at once: earlier rows hide later ones.
fn everything() -> Findings {
    Findings {
        missing_key: Some(MissingKey::Reject),
        store_down: true,
        done: Some(Conflict::Fields),
        twin: true,
        failed_note: true,
        may_repeat: true,
        undecodable: true,
        run: Some(Run::Done),
        attempt: 1,
    }
}

#[test]
fn rows_are_tried_in_the_order_of_the_table() {
    let mut found = everything();
    assert_eq!(look(found), (M::Reject, R::Unchanged));
    found.missing_key = Some(MissingKey::Discard);
    assert_eq!(look(found), (M::Discard, R::Unchanged));
    found.missing_key = None;
    assert_eq!(look(found), (M::Hold, R::Unchanged));
    found.store_down = false;
    assert_eq!(look(found), (M::Reject, R::Unchanged));
    found.done = Some(Conflict::None);
    assert_eq!(look(found), (M::Accept, R::Unchanged));
    found.done = None;
    assert_eq!(look(found), (M::Defer, R::Unchanged));
    found.twin = false;
    assert_eq!(look(found), (M::Reject, R::Unchanged));
    found.failed_note = false;
    assert_eq!(look(found), (M::Reject, R::Failed));
    found.undecodable = false;
    assert_eq!(look(found), (M::Accept, R::Done));
    found.run = None;
    assert_eq!(look(found), (M::Proceed, R::Unchanged));
}

#[test]
fn a_failed_note_stops_only_what_may_be_the_same_delivery_again() {
    let replay = Findings { failed_note: true, may_repeat: false, ..Findings::default() };
    assert_eq!(look(replay).0, M::Proceed);
    let repeat = Findings { may_repeat: true, ..replay };
    assert_eq!(look(repeat), (M::Reject, R::Unchanged));
}

#[test]
fn the_class_of_a_failure_decides_both_fates() {
    let after = |run, attempt| look(Findings { run: Some(run), attempt, ..Findings::default() });
    let secs = |n| M::Retry(Duration::from_secs(n));
    assert_eq!(after(Run::Failed(Class::Business), 1), (M::Reject, R::Failed));
    assert_eq!(after(Run::Failed(Class::BusinessLimited), 1), (secs(1), R::Released));
    assert_eq!(after(Run::Failed(Class::BusinessLimited), 2), (M::Reject, R::Failed));
    assert_eq!(after(Run::Failed(Class::System), 1), (secs(1), R::Released));
    assert_eq!(after(Run::Failed(Class::System), 2), (secs(2), R::Released));
    assert_eq!(after(Run::Failed(Class::System), 3), (M::Reject, R::Failed));
    assert_eq!(after(Run::Failed(Class::System), u32::MAX), (M::Reject, R::Failed));
    assert_eq!(after(Run::Panicked, 1), (secs(1), R::Released));
    assert_eq!(after(Run::Panicked, 3), (M::Reject, R::Failed));
}

#[test]
fn nothing_is_acknowledged_without_a_done_record() {
    // Over every combination of facts: Accept happens only for a done key or a committed run.
    for bits in 0u32..(1 << 7) {
        for run in [None, Some(Run::Done), Some(Run::Failed(Class::System)), Some(Run::Panicked)] {
            let bit = |n: u32| bits & (1 << n) != 0;
            let found = Findings {
                missing_key: bit(0).then_some(MissingKey::Reject),
                store_down: bit(1),
                done: bit(2).then_some(if bit(3) { Conflict::Fields } else { Conflict::None }),
                twin: bit(4),
                failed_note: bit(5),
                may_repeat: bit(5),
                undecodable: bit(6),
                run,
                attempt: 1,
            };
            if look(found).0 == M::Accept {
                assert!(!found.store_down && found.missing_key.is_none(), "{found:?}");
                assert!(found.done.is_some() || found.run == Some(Run::Done), "{found:?}");
            }
        }
    }
}
