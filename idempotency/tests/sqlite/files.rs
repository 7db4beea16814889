use std::time::Duration;

use oncemq_core::{ErrorKind, Record, Topology};
use oncemq_idempotency::{Inbox, Once, Purge};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};

use crate::basics::effect;
use crate::common::{Outcome, deliver, entry};
use crate::support::{fixture, options, pool_in};

#[tokio::test]
async fn sl2_a_database_in_memory_is_refused() {
    for url in
        ["sqlite::memory:", "sqlite://?mode=memory", "sqlite://named?mode=memory&cache=shared", "sqlite://"]
    {
        let pool = SqlitePoolOptions::new()
            .max_connections(5)
            .idle_timeout(Duration::from_millis(50))
            .max_lifetime(Duration::from_millis(50))
            .connect(url)
            .await;
        // The last one is a temporary database, which some versions of the driver refuse.
        let Ok(pool) = pool else { continue };
        let error = Inbox::open(pool).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{url}: {error}");
        assert!(error.to_string().contains("use a file"), "{url}: {error}");
    }
    let options = SqliteConnectOptions::new().in_memory(true).shared_cache(true);
    let pool = SqlitePoolOptions::new().connect_with(options).await.unwrap();
    assert_eq!(Inbox::open(pool).await.unwrap_err().kind(), ErrorKind::Config);
}

#[tokio::test]
async fn a_pool_that_forgets_its_connections_forgets_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let pool = SqlitePoolOptions::new()
        .max_connections(5)
        .idle_timeout(Duration::from_millis(50))
        .max_lifetime(Duration::from_millis(50))
        .connect_with(options(&dir, SqliteJournalMode::Wal))
        .await
        .unwrap();
    let inbox = Inbox::open(pool).await.unwrap();
    let noop = |_| async { Ok(()) };
    assert_eq!(deliver(&inbox, &entry("k"), noop).await, Outcome::Done);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(deliver(&inbox, &entry("k"), noop).await, Outcome::Duplicate);
}

#[tokio::test]
async fn processes_race_on_creation() {
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let mut processes = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let options = options(&dir, SqliteJournalMode::Delete);
            processes.spawn(async move {
                let pool = SqlitePoolOptions::new().max_connections(2).connect_with(options).await.unwrap();
                let opened = Inbox::open(pool.clone()).await.map(drop);
                pool.close().await;
                opened
            });
        }
        for opened in processes.join_all().await {
            opened.unwrap();
        }
    }
}

#[tokio::test]
async fn tables_are_checked_and_versions_understood() {
    let f = fixture().await;
    let verify = || Inbox::builder(f.pool.clone()).topology(Topology::Verify);
    verify().open().await.unwrap();
    let text = verify().table_prefix("other_").open().await.unwrap_err().to_string();
    assert!(text.contains("other_inbox,") && text.contains("other_inbox_note"), "{text}");
    let run = |sql: &'static str| sqlx::raw_sql(sql).execute(&f.pool);
    run("UPDATE oncemq_inbox_schema SET version = 3, oldest_reader = 1").await.unwrap();
    verify().open().await.unwrap();
    run("UPDATE oncemq_inbox_schema SET oldest_reader = 3").await.unwrap();
    let error = Inbox::open(f.pool.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("update oncemq"), "{error}");
    run("UPDATE oncemq_inbox_schema SET oldest_reader = 1; ALTER TABLE oncemq_inbox DROP COLUMN outcome")
        .await
        .unwrap();
    let text = Inbox::open(f.pool.clone()).await.unwrap_err().to_string();
    assert!(text.contains("column outcome"), "{text}");
}

#[tokio::test]
async fn printed_statements_make_the_same_tables() {
    let f = fixture().await;
    let printed = f.inbox.schema().replace("oncemq_", "x_");
    for _ in 0..2 {
        sqlx::raw_sql(sqlx::AssertSqlSafe(printed.clone())).execute(&f.pool).await.unwrap();
    }
    let builder = Inbox::builder(f.pool.clone()).table_prefix("x_").topology(Topology::Verify);
    assert_eq!(deliver(&builder.open().await.unwrap(), &entry("a"), effect).await, Outcome::Done);
    assert_eq!((f.count("x_inbox").await, f.count("oncemq_inbox").await), (1, 0));
}

#[tokio::test]
async fn a_pool_of_one_has_no_units() {
    let dir = tempfile::tempdir().unwrap();
    drop(pool_in(&dir, SqliteJournalMode::Wal).await);
    for (size, units) in [(1, 0), (2, 1), (9, 1)] {
        let pool = SqlitePoolOptions::new()
            .max_connections(size)
            .connect_with(options(&dir, SqliteJournalMode::Wal))
            .await
            .unwrap();
        assert_eq!(Inbox::open(pool).await.unwrap().facts().units, units);
    }
}

#[tokio::test]
async fn once_without_a_consumer() {
    let f = fixture().await;
    for round in 0..2 {
        let mut tx = f.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
        match (round, f.inbox.once(&mut tx, "jobs", "close-month", "2024-05").await.unwrap()) {
            (0, Once::New(first)) => {
                sqlx::query("INSERT INTO effect VALUES ('closed')").execute(&mut *tx).await.unwrap();
                first.finish(&mut tx, "17 invoices").await.unwrap();
            }
            (1, Once::Done(outcome)) => assert_eq!(outcome.as_deref(), Some("17 invoices")),
            other => panic!("{other:?}"),
        }
        tx.commit().await.unwrap();
    }
    assert_eq!(f.count("effect").await, 1);
}

#[tokio::test]
async fn kd4_a_record_is_kept_for_its_retention() {
    let f = fixture().await;
    let day = Duration::from_secs(24 * 3600);
    let inbox = Inbox::builder(f.pool.clone()).retention(day).purge(Purge::Off).open().await.unwrap();
    assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Done);
    let age = |hours: i64| {
        let sql = format!("UPDATE oncemq_inbox SET done_at = done_at - {hours} * 3600000000");
        let pool = f.pool.clone();
        async move { sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap() }
    };
    for hours in [3, 20] {
        age(hours).await;
        assert_eq!(inbox.purge().await.unwrap(), 0, "removed early");
        assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Duplicate);
    }
    age(2).await;
    assert_eq!(inbox.purge().await.unwrap(), 1);
    assert_eq!(f.count("oncemq_inbox").await, 0);
}
