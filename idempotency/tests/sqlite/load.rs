use std::sync::Arc;

use oncemq_core::Failure;
use oncemq_idempotency::{Inbox, Tx};
use sqlx::Sqlite;
use sqlx::sqlite::SqliteJournalMode;

use crate::common::{Outcome, deliver, entry};
use crate::support::pool_in;

/// Reads before it writes: the upgrade that fails at once in a transaction that began as a
/// reader.
async fn read_then_write(mut tx: Tx<Sqlite>) -> Result<(), Failure> {
    let key = tx.key().unwrap().text();
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM effect").fetch_one(tx.db()).await?;
    assert!(seen >= 0);
    sqlx::query("INSERT INTO effect VALUES ($1)").bind(key).execute(tx.db()).await?;
    Ok(())
}

async fn sl1(journal: SqliteJournalMode) {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_in(&dir, journal).await;
    // Two inboxes on one file are two processes, as far as SQLite can tell.
    let inboxes =
        [Inbox::open(pool.clone()).await.unwrap(), Inbox::open(pool_in(&dir, journal).await).await.unwrap()];
    let next = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..8 {
        let (inbox, next) = (inboxes[worker % 2].clone(), next.clone());
        workers.spawn(async move {
            let mut done = 0;
            loop {
                // 500 keys, each delivered twice.
                let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if i >= 1000 {
                    return done;
                }
                let outcome = deliver(&inbox, &entry(format!("k{}", i % 500)), read_then_write).await;
                done += u32::from(outcome == Outcome::Done);
            }
        });
    }
    assert_eq!(workers.join_all().await.into_iter().sum::<u32>(), 500);
    let effects: i64 = sqlx::query_scalar("SELECT count(*) FROM effect").fetch_one(&pool).await.unwrap();
    assert_eq!(effects, 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sl1_writers_of_a_write_ahead_log_never_see_a_locked_file() {
    sl1(SqliteJournalMode::Wal).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sl1_writers_of_a_rollback_journal_never_see_a_locked_file() {
    sl1(SqliteJournalMode::Delete).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_racers_one_winner() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = Inbox::open(pool_in(&dir, SqliteJournalMode::Wal).await).await.unwrap();
    let mut racers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let inbox = inbox.clone();
        racers.spawn(async move { deliver(&inbox, &entry("one"), read_then_write).await });
    }
    let winners = racers.join_all().await.into_iter().filter(|o| *o == Outcome::Done).count();
    assert_eq!(winners, 1);
}
