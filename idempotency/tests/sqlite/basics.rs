use oncemq_core::{Claim, Class, Ending, Failed, Failure, Marks, Record, Unit};
use oncemq_idempotency::Tx;
use sqlx::Sqlite;

use crate::common::{Outcome, claimed, context, deliver, entry, is_done, once};
use crate::support::fixture;

/// The handler of most tests.
pub async fn effect(mut tx: Tx<Sqlite>) -> Result<(), Failure> {
    let key = tx.key().unwrap().text();
    sqlx::query("INSERT INTO effect VALUES ($1)").bind(key).execute(tx.db()).await?;
    Ok(())
}

#[tokio::test]
async fn record_and_effect_commit_together_and_a_second_delivery_is_a_duplicate() {
    let f = fixture().await;
    assert_eq!(deliver(&f.inbox, &entry("a"), effect).await, Outcome::Done);
    assert_eq!(deliver(&f.inbox, &entry("a"), effect).await, Outcome::Duplicate);
    assert_eq!((f.count("effect").await, f.count("oncemq_inbox").await), (1, 1));
}

#[tokio::test]
async fn a_failed_handler_leaves_neither_and_frees_the_key() {
    let f = fixture().await;
    let ending = once(&f.inbox, &entry("a"), |tx| async {
        effect(tx).await?;
        Err(Failure::business("no"))
    })
    .await;
    assert!(matches!(ending, Ending::RolledBack), "{ending:?}");
    assert_eq!((f.count("effect").await, f.count("oncemq_inbox").await), (0, 0));
    assert_eq!(deliver(&f.inbox, &entry("a"), effect).await, Outcome::Done);
}

#[tokio::test]
async fn a_dropped_unit_is_rolled_back() {
    let f = fixture().await;
    let (mut unit, _) = claimed(&f.inbox, &entry("a")).await;
    effect(unit.lend(context(&entry("a")))).await.unwrap();
    drop(unit);
    let (unit, verdict) = claimed(&f.inbox, &entry("a")).await;
    assert_eq!(verdict.claim, Claim::New);
    drop(unit);
    assert_eq!(f.count("effect").await, 0);
}

#[tokio::test]
async fn notes_are_kept_by_message() {
    let f = fixture().await;
    let e = entry("a");
    let id = &e.trail.id;
    assert_eq!(f.inbox.mark(id, 9).await.unwrap().unwrap().marks, 1);
    assert_eq!(f.inbox.mark(id, 9).await.unwrap().unwrap().marks, 2);
    f.inbox.unmark(id, Marks::One).await.unwrap();
    f.inbox.charge(id, 3).await.unwrap();
    f.inbox.charge(id, 2).await.unwrap();
    assert!(f.inbox.fail(&e, &Failed::now(Class::Business, "bad\0 thing")).await.unwrap());
    let (unit, verdict) = claimed(&f.inbox, &e).await;
    let note = verdict.note.unwrap();
    assert_eq!((note.marks, note.attempts), (1, 3));
    let failed = note.failed.unwrap();
    assert_eq!((failed.class, failed.reason.as_str()), (Class::Business, "bad\u{fffd} thing"));
    assert!(failed.at.elapsed().unwrap().as_secs() < 60);
    assert_eq!(verdict.claim, Claim::New, "a note never judges the key");
    unit.rollback().await;
    f.inbox.unmark(id, Marks::All).await.unwrap();
    f.inbox.unmark(id, Marks::One).await.unwrap();
    assert_eq!(f.inbox.mark(id, 9).await.unwrap().unwrap().marks, 1);
}

#[tokio::test]
async fn a_done_key_refuses_a_failed_note() {
    let f = fixture().await;
    deliver(&f.inbox, &entry("a"), effect).await;
    assert!(!f.inbox.fail(&entry("a"), &Failed::now(Class::System, "late")).await.unwrap());
    assert_eq!(f.count("oncemq_inbox_note").await, 0);
    let (unit, verdict) = claimed(&f.inbox, &entry("a")).await;
    assert!(is_done(&verdict) && verdict.note.is_none());
    unit.rollback().await;
}
