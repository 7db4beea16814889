//! Who gets a key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use oncemq_core::{Claim, Class, Ending, Failed, Failure, KeyTag, KeyValue, Marks, Record, Unit};
use oncemq_idempotency::{Inbox, Tx};
use sqlx::Postgres;

use crate::common::{LIMIT, Outcome, claimed, context, deliver, entry, entry_of, is_done, once};
use crate::support::{Fixture, cases, effect};

cases![
    record_and_effect_commit_together,
    pg1_done_keys_in_a_batch_abort_nothing,
    pg2_twin_is_busy_at_once_whatever_becomes_of_it,
    pg4_nul_in_key_and_in_reason,
    pg5_key_larger_than_an_index_entry,
    kd2_same_key_other_fields,
    fifty_racers_one_winner,
    rollback_frees_the_key_at_once,
    a_key_twice_in_one_unit_is_done_the_second_time,
    a_done_row_younger_than_the_snapshot_is_read_again,
    claims_see_the_note_of_their_message,
    empty_notes_go_at_once,
    once_without_a_consumer,
    pg2_an_unannounced_twin_is_busy_after_a_moment,
    behind_a_pooler_nothing_stays_prepared,
];

async fn record_and_effect_commit_together(f: Fixture) {
    let inbox = f.inbox(4).await;
    assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Done);
    assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Duplicate);
    assert_eq!((f.effects().await, f.done().await), (1, 1));
    let ending = once(&inbox, &entry("b"), |tx| async {
        effect(tx).await?;
        Err(Failure::business("no"))
    })
    .await;
    assert!(matches!(ending, Ending::RolledBack), "{ending:?}");
    assert_eq!((f.effects().await, f.done().await), (1, 1));
}

async fn pg1_done_keys_in_a_batch_abort_nothing(f: Fixture) {
    let inbox = f.inbox(4).await;
    for done in ["k3", "k7"] {
        deliver(&inbox, &entry(done), effect).await;
    }
    let entries: Vec<_> = (0..10).map(|i| entry(format!("k{i}"))).collect();
    let mut unit = inbox.begin(LIMIT).await.unwrap();
    let verdicts = unit.claim(&entries).await.unwrap();
    let done: Vec<_> = (0..10).filter(|i| is_done(&verdicts[*i])).collect();
    assert_eq!(done, [3, 7]);
    for (entry, verdict) in entries.iter().zip(&verdicts) {
        if verdict.claim == Claim::New {
            effect(unit.lend(context(entry))).await.unwrap();
        }
    }
    let ending = unit.commit().await;
    assert!(matches!(ending, Ending::Committed), "{ending:?}");
    assert_eq!(f.effects().await, 10);
    // Round two, a handler that catches a unique violation and goes on, is
    // `pg1_swallowed_error_is_refused`.
}

async fn pg2_twin_is_busy_at_once_whatever_becomes_of_it(f: Fixture) {
    let (a, b) = (f.inbox(4).await, f.inbox(4).await);
    // Round 1: the first commits. Round 2: it rolls back. Round 3: it hangs.
    for round in 1..=3 {
        let key = entry(format!("k{round}"));
        let (mut unit, _) = claimed(&a, &key).await;
        effect(unit.lend(context(&key))).await.unwrap();
        let mut twin = b.begin(LIMIT).await.unwrap();
        let asked = Instant::now();
        let verdicts = twin.claim(std::slice::from_ref(&key)).await.unwrap();
        assert_eq!(verdicts[0].claim, Claim::Busy);
        // Less than the moment it gives a twin that did not announce itself.
        assert!(asked.elapsed() < Duration::from_millis(900), "it waited {:?}", asked.elapsed());
        twin.rollback().await;
        let expected = match round {
            1 => {
                assert!(matches!(unit.commit().await, Ending::Committed));
                Outcome::Duplicate
            }
            2 => {
                assert!(matches!(unit.rollback().await, Ending::RolledBack));
                Outcome::Done
            }
            _ => {
                // Other keys are unaffected while it hangs.
                assert_eq!(deliver(&b, &entry("other"), effect).await, Outcome::Done);
                drop(unit);
                Outcome::Done
            }
        };
        assert_eq!(deliver(&b, &key, effect).await, expected, "round {round}");
    }
    assert_eq!(f.effects().await, 4);
}

async fn pg4_nul_in_key_and_in_reason(f: Fixture) {
    let inbox = f.inbox(4).await;
    let nul = entry(b"a\0b");
    assert_eq!(deliver(&inbox, &nul, effect).await, Outcome::Done);
    assert_eq!(deliver(&inbox, &nul, effect).await, Outcome::Duplicate);
    assert_eq!(deliver(&inbox, &entry(b"a"), effect).await, Outcome::Done);
    let failing = entry("f");
    let written = inbox.fail(&failing, &Failed::now(Class::Business, "at \0 byte")).await.unwrap();
    assert!(written);
    let (unit, verdict) = claimed(&inbox, &failing).await;
    unit.rollback().await;
    assert_eq!(verdict.note.unwrap().failed.unwrap().reason, "at \u{fffd} byte");
    assert_eq!(f.effects().await, 2);
}

async fn pg5_key_larger_than_an_index_entry(f: Fixture) {
    let inbox = f.inbox(4).await;
    // Nothing that compresses: an index entry is measured after compression.
    let mut word = 0x2545_f491_4f6c_dd1d_u64;
    let key: Vec<u8> = (0..4000)
        .map(|_| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[(word >> 58) as usize]
        })
        .collect();
    let runs = AtomicU32::new(0);
    let run = |mut tx: Tx<Postgres>| {
        runs.fetch_add(1, Ordering::Relaxed);
        async move {
            sqlx::query("UPDATE account SET points = points + 1").execute(tx.db()).await?;
            Ok(())
        }
    };
    assert_eq!(deliver(&inbox, &entry(&key), run).await, Outcome::Done);
    assert_eq!(deliver(&inbox, &entry(&key), run).await, Outcome::Duplicate);
    let mut other = key.clone();
    *other.last_mut().unwrap() ^= 1;
    assert_eq!(deliver(&inbox, &entry(&other), run).await, Outcome::Done);
    assert_eq!(runs.load(Ordering::Relaxed), 2);
}

/// By the design a conflict is told by *declared* fields; another body alone is a duplicate
/// that is counted. While the first one runs the second is busy, and judged when it comes
/// again.
async fn kd2_same_key_other_fields(f: Fixture) {
    let inbox = f.inbox(4).await;
    let make = |body: &str, fields: Option<u8>| {
        let mut entry = entry_of(b"k", body);
        entry.conflict = fields.map(|byte| [byte; 32]);
        entry
    };
    let (unit, _) = claimed(&inbox, &make("A", Some(1))).await;
    let (twin, verdict) = claimed(&inbox, &make("B", Some(2))).await;
    assert_eq!(verdict.claim, Claim::Busy);
    twin.rollback().await;
    assert!(matches!(unit.commit().await, Ending::Committed));
    for (entry, same_body, conflict) in [
        (make("B", Some(2)), false, true),
        (make("A", Some(1)), true, false),
        (make("B", Some(1)), false, false),
        (make("B", None), false, false),
    ] {
        let (unit, verdict) = claimed(&inbox, &entry).await;
        unit.rollback().await;
        assert_eq!(verdict.claim, Claim::Done { same_body, conflict }, "{entry:?}");
    }
}

async fn fifty_racers_one_winner(f: Fixture) {
    let inbox = f.inbox(12).await;
    let runs = Arc::new(AtomicU32::new(0));
    let mut racers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (inbox, runs) = (inbox.clone(), runs.clone());
        racers.spawn(async move {
            let run = |tx| {
                runs.fetch_add(1, Ordering::Relaxed);
                async move {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    effect(tx).await
                }
            };
            deliver(&inbox, &entry("one"), run).await
        });
    }
    let outcomes = racers.join_all().await;
    assert_eq!(outcomes.iter().filter(|o| **o == Outcome::Done).count(), 1);
    assert_eq!((runs.load(Ordering::Relaxed), f.effects().await), (1, 1));
}

async fn rollback_frees_the_key_at_once(f: Fixture) {
    let inbox = f.inbox(4).await;
    for _ in 0..50 {
        let (mut unit, verdict) = claimed(&inbox, &entry("a")).await;
        assert_eq!(verdict.claim, Claim::New);
        effect(unit.lend(context(&entry("a")))).await.unwrap();
        assert!(matches!(unit.rollback().await, Ending::RolledBack));
    }
    assert_eq!(f.effects().await, 0);
}

async fn a_key_twice_in_one_unit_is_done_the_second_time(f: Fixture) {
    let inbox = f.inbox(4).await;
    let (a, b) = (entry_of(b"k", "A"), entry_of(b"k", "B"));
    let mut unit = inbox.begin(LIMIT).await.unwrap();
    let verdicts = unit.claim(&[a.clone(), b.clone()]).await.unwrap();
    assert_eq!(verdicts[0].claim, Claim::New);
    assert_eq!(verdicts[1].claim, Claim::Done { same_body: false, conflict: false });
    let again = unit.claim(std::slice::from_ref(&a)).await.unwrap();
    assert_eq!(again[0].claim, Claim::Done { same_body: true, conflict: false });
    unit.rollback().await;
    // Keys made in other ways stay apart.
    let mut tagged = a.clone();
    tagged.key = Some(KeyValue::tagged(KeyTag::MessageId, *b"k"));
    let mut unit = inbox.begin(LIMIT).await.unwrap();
    let verdicts = unit.claim(&[a, tagged]).await.unwrap();
    assert!(verdicts.iter().all(|v| v.claim == Claim::New), "{verdicts:?}");
    unit.rollback().await;
}

/// The twin commits between the claim's snapshot and its lock: the row is there, but this
/// statement cannot see what is stored with it.
async fn a_done_row_younger_than_the_snapshot_is_read_again(f: Fixture) {
    let inbox = f.inbox(4).await;
    let key = entry("k");
    let mut young = 0;
    for round in 0..200 {
        let entry = entry(format!("y{round}"));
        let first = async {
            let (unit, _) = claimed(&inbox, &entry).await;
            unit.commit().await
        };
        let second = async {
            loop {
                let (unit, verdict) = claimed(&inbox, &entry).await;
                unit.rollback().await;
                match verdict.claim {
                    Claim::Busy => {}
                    Claim::New => break None,
                    done => break Some(done),
                }
            }
        };
        // Both orders happen; whatever the moment, the answer tells the bodies apart.
        if let (_, Some(done)) = tokio::join!(first, second) {
            young += 1;
            assert_eq!(done, Claim::Done { same_body: true, conflict: false });
        }
    }
    assert!(young > 0, "never met a done key");
    let (unit, verdict) = claimed(&inbox, &key).await;
    unit.rollback().await;
    assert_eq!(verdict.claim, Claim::New);
}

async fn claims_see_the_note_of_their_message(f: Fixture) {
    let inbox = f.inbox(4).await;
    let (noted, other) = (entry_of(b"k", "A"), entry_of(b"k", "B"));
    assert!(inbox.fail(&noted, &Failed::now(Class::System, "gone")).await.unwrap());
    assert_eq!(inbox.mark(&noted.trail.id, 1).await.unwrap().unwrap().marks, 1);
    inbox.charge(&noted.trail.id, 4).await.unwrap();
    inbox.charge(&noted.trail.id, 3).await.unwrap();
    let (unit, verdict) = claimed(&inbox, &noted).await;
    unit.rollback().await;
    let note = verdict.note.unwrap();
    assert_eq!((note.marks, note.attempts), (1, 4));
    let failed = note.failed.unwrap();
    assert_eq!((failed.class, failed.reason.as_str()), (Class::System, "gone"));
    assert!(failed.at.elapsed().unwrap() < Duration::from_secs(60));
    // A note never judges another message of the key.
    let (unit, verdict) = claimed(&inbox, &other).await;
    assert_eq!((verdict.claim, verdict.note), (Claim::New, None));
    unit.commit().await;
    assert!(!inbox.fail(&noted, &Failed::now(Class::System, "again")).await.unwrap());
}

async fn empty_notes_go_at_once(f: Fixture) {
    let inbox = f.inbox(4).await;
    let id = entry("k").trail.id;
    inbox.mark(&id, 9).await.unwrap();
    inbox.mark(&id, 9).await.unwrap();
    inbox.unmark(&id, Marks::One).await.unwrap();
    assert_eq!(f.int("SELECT marks FROM oncemq_inbox_note").await, 1);
    inbox.unmark(&id, Marks::One).await.unwrap();
    assert_eq!(f.int("SELECT count(*) FROM oncemq_inbox_note").await, 0);
    inbox.unmark(&id, Marks::All).await.unwrap();
    inbox.charge(&id, 1).await.unwrap();
    inbox.unmark(&id, Marks::All).await.unwrap();
    assert_eq!(f.int("SELECT attempts FROM oncemq_inbox_note").await, 1);
}

async fn once_without_a_consumer(f: Fixture) {
    use oncemq_idempotency::Once;
    let pool = f.pool(4).await;
    let inbox = Inbox::open(pool.clone()).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let Once::New(first) = inbox.once(&mut tx, "pay", "refund", "17").await.unwrap() else {
        panic!("not new")
    };
    let mut twin = pool.begin().await.unwrap();
    assert!(matches!(inbox.once(&mut twin, "pay", "refund", "17").await.unwrap(), Once::Busy));
    twin.rollback().await.unwrap();
    first.finish(&mut tx, "{\"refund\":1}").await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    match inbox.once(&mut tx, "pay", "refund", "17").await.unwrap() {
        Once::Done(outcome) => assert_eq!(outcome.as_deref(), Some("{\"refund\":1}")),
        other => panic!("{other:?}"),
    }
    // Other names are other keys; a rollback leaves them free; an outcome is optional.
    for commit in [false, true] {
        let Once::New(first) = inbox.once(&mut tx, "pay", "charge", "17").await.unwrap() else {
            panic!("not new")
        };
        drop(first);
        match commit {
            true => tx.commit().await.unwrap(),
            false => tx.rollback().await.unwrap(),
        }
        tx = pool.begin().await.unwrap();
    }
    assert!(matches!(inbox.once(&mut tx, "pay", "charge", "17").await.unwrap(), Once::Done(None)));
    let Once::New(first) = inbox.once(&mut tx, "pay", "charge", "18").await.unwrap() else {
        panic!("not new")
    };
    let error = first.finish(&mut tx, &"x".repeat(5000)).await.unwrap_err();
    assert_eq!(error.kind(), oncemq_core::ErrorKind::TooLarge);
}

/// An insert without our lock, as by hand: nothing announces it, so the claim waits a
/// moment, and then the key is busy.
async fn pg2_an_unannounced_twin_is_busy_after_a_moment(f: Fixture) {
    let inbox = f.inbox(4).await;
    deliver(&inbox, &entry("seed"), effect).await;
    let copy = "INSERT INTO oncemq_inbox SELECT decode('72', 'hex') || substr(k, 2, 29) || 'k'::bytea, consumer, \
                kind, key_text, message_id, origin, body, conflict, outcome, done_at FROM oncemq_inbox";
    let mut foreign = f.admin.begin().await.unwrap();
    sqlx::query(copy).execute(&mut *foreign).await.unwrap();
    let started = Instant::now();
    let (unit, verdict) = claimed(&inbox, &entry("k")).await;
    assert_eq!(verdict.claim, Claim::Busy);
    assert!((800..3000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
    assert!(matches!(unit.rollback().await, Ending::RolledBack));
    foreign.rollback().await.unwrap();
    assert_eq!(deliver(&inbox, &entry("k"), effect).await, Outcome::Done);
    // Handlers wait for row locks longer than a claim does.
    let mut foreign = f.admin.begin().await.unwrap();
    sqlx::query("UPDATE account SET points = 5").execute(&mut *foreign).await.unwrap();
    let key = entry("w");
    let waits = deliver(&inbox, &key, |mut tx| async move {
        sqlx::query("UPDATE account SET points = points + 1").execute(tx.db()).await?;
        Ok(())
    });
    let frees = async {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        foreign.commit().await.unwrap();
    };
    let (outcome, ()) = tokio::join!(waits, frees);
    assert_eq!((outcome, f.int("SELECT points FROM account").await), (Outcome::Done, 6));
}

/// What a pooling proxy needs: no statement stays prepared on the server.
async fn behind_a_pooler_nothing_stays_prepared(f: Fixture) {
    let pool = f.pool(2).await;
    let inbox = Inbox::builder(pool).behind_pooler().open().await.unwrap();
    for key in ["a", "b"] {
        let outcome = deliver(&inbox, &entry(key), |mut tx| async move {
            let key = tx.key().unwrap().text();
            sqlx::query("INSERT INTO effect VALUES ($1)").bind(key).execute(tx.db()).await?;
            let sql = "SELECT count(*) FROM pg_prepared_statements WHERE NOT from_sql";
            let kept: i64 = sqlx::query_scalar(sql).fetch_one(tx.db()).await?;
            assert_eq!(kept, 0);
            Ok(())
        })
        .await;
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(deliver(&inbox, &entry(key), effect).await, Outcome::Duplicate);
    }
    let noted = entry("n");
    assert_eq!(inbox.mark(&noted.trail.id, 1).await.unwrap().unwrap().marks, 1);
    assert!(inbox.fail(&noted, &Failed::now(Class::System, "x")).await.unwrap());
    assert_eq!(inbox.purge().await.unwrap(), 0);
}
