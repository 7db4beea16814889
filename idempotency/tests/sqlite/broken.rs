use std::time::{Duration, Instant};

use oncemq_core::{Claim, Ending, ErrorKind, Record, Unit};
use oncemq_idempotency::Inbox;
use sqlx::Executor;
use sqlx::sqlite::{SqliteJournalMode, SqlitePoolOptions};

use crate::basics::effect;
use crate::common::{LIMIT, Outcome, claimed, context, deliver, entry};
use crate::support::{fixture, options, pool_in};

/// Works for ever on one statement.
const ENDLESS: &str =
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";

#[tokio::test]
async fn a_cancelled_statement_breaks_the_unit_and_frees_the_file() {
    let f = fixture().await;
    let (mut unit, _) = claimed(&f.inbox, &entry("a")).await;
    let mut tx = unit.lend(context(&entry("a")));
    tx.db().execute("INSERT INTO effect VALUES ('a')").await.unwrap();
    let run = tokio::time::timeout(Duration::from_millis(200), tx.db().execute(ENDLESS));
    assert!(run.await.is_err());
    assert!(tx.db().execute("SELECT 1").await.is_err());
    drop(tx);
    let ended = Instant::now();
    let ending = unit.rollback().await;
    assert!(matches!(ending, Ending::Broken(_)), "{ending:?}");
    assert_eq!(deliver(&f.inbox, &entry("a"), effect).await, Outcome::Done);
    assert!(ended.elapsed() < Duration::from_secs(1), "the file was locked for {:?}", ended.elapsed());
    assert_eq!(f.count("effect").await, 1);
}

#[tokio::test]
async fn a_statement_beyond_the_limit_is_stopped() {
    let f = fixture().await;
    let mut unit = f.inbox.begin(Duration::from_millis(300)).await.unwrap();
    unit.claim(&[entry("a")]).await.unwrap();
    let mut tx = unit.lend(context(&entry("a")));
    let started = Instant::now();
    let error = tx.db().execute(ENDLESS).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("9"));
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    drop(tx);
    assert!(matches!(unit.commit().await, Ending::Refused(_)));
    assert_eq!(deliver(&f.inbox, &entry("a"), effect).await, Outcome::Done);
}

#[tokio::test]
async fn a_unit_dropped_on_a_bare_thread_frees_the_file() {
    let f = fixture().await;
    let (mut unit, _) = claimed(&f.inbox, &entry("a")).await;
    let tx = unit.lend(context(&entry("a")));
    std::thread::spawn(move || {
        drop(unit);
        drop(tx);
    })
    .join()
    .unwrap();
    assert_eq!(deliver(&f.inbox, &entry("a"), effect).await, Outcome::Done);
}

#[tokio::test]
async fn cancelled_begins_leave_nothing_open() {
    let f = fixture().await;
    let mut cancelled = 0;
    for i in 0..200 {
        match tokio::time::timeout(Duration::from_micros(i * 10), f.inbox.begin(LIMIT)).await {
            Ok(unit) => drop(unit.unwrap()),
            Err(_) => cancelled += 1,
        }
    }
    assert!(cancelled > 20, "only {cancelled} were cancelled");
    for i in 0..8 {
        sqlx::query("INSERT INTO effect VALUES ($1)").bind(i).execute(&f.pool).await.unwrap();
    }
    assert_eq!(f.count("effect").await, 8);
}

#[tokio::test]
async fn er1_a_busy_or_read_only_file_is_the_stores_fault() {
    let dir = tempfile::tempdir().unwrap();
    let writer = pool_in(&dir, SqliteJournalMode::Wal).await;
    drop(Inbox::open(writer.clone()).await.unwrap());
    let hasty = options(&dir, SqliteJournalMode::Wal).busy_timeout(Duration::from_millis(50));
    let pool = SqlitePoolOptions::new().max_connections(3).connect_with(hasty).await.unwrap();
    let inbox = Inbox::open(pool).await.unwrap();
    let foreign = writer.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let error = inbox.begin(LIMIT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
    let id = entry("a").trail.id;
    assert_eq!(inbox.mark(&id, 1).await.unwrap_err().kind(), ErrorKind::Store);
    inbox.probe().await.unwrap();
    foreign.rollback().await.unwrap();
    assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Done);
    let read_only = options(&dir, SqliteJournalMode::Wal).read_only(true);
    let pool = SqlitePoolOptions::new().max_connections(3).connect_with(read_only).await.unwrap();
    let inbox = Inbox::open(pool).await.unwrap();
    let error = match inbox.begin(LIMIT).await {
        Err(error) => error,
        Ok(mut unit) => unit.claim(&[entry("b")]).await.unwrap_err(),
    };
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
}

#[tokio::test]
async fn a_waiting_writer_of_another_process_is_waited_for() {
    let f = fixture().await;
    let foreign = f.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let begun = async {
        let (unit, verdict) = claimed(&f.inbox, &entry("a")).await;
        unit.rollback().await;
        verdict.claim
    };
    let frees = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        foreign.rollback().await.unwrap();
    };
    let (claim, ()) = tokio::join!(begun, frees);
    assert_eq!(claim, Claim::New);
}

/// The lock is taken when a unit begins, so nothing in it can find the file locked.
#[tokio::test]
async fn sl1_a_unit_is_a_writer_from_its_begin() {
    let f = fixture().await;
    let unit = f.inbox.begin(LIMIT).await.unwrap();
    let hasty = options(&f.dir, SqliteJournalMode::Wal).busy_timeout(Duration::from_millis(50));
    let other = SqlitePoolOptions::new().connect_with(hasty).await.unwrap();
    let error = other.begin_with("BEGIN IMMEDIATE").await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("5"));
    unit.rollback().await;
    other.begin_with("BEGIN IMMEDIATE").await.unwrap();
}

#[tokio::test]
async fn a_lost_file_fails_the_probe() {
    let f = fixture().await;
    f.inbox.probe().await.unwrap();
    for name in ["test.db", "test.db-wal", "test.db-shm"] {
        let _ = std::fs::remove_file(f.dir.path().join(name));
    }
    assert_eq!(f.inbox.probe().await.unwrap_err().kind(), ErrorKind::Store);
}

#[tokio::test]
async fn a_closed_pool_closes() {
    let f = fixture().await;
    deliver(&f.inbox, &entry("a"), effect).await;
    tokio::time::timeout(Duration::from_secs(5), f.pool.close()).await.unwrap();
    assert!(f.inbox.begin(LIMIT).await.is_err());
}
