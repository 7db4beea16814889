//! Stores, on a file.

use std::time::Duration;

use libtest_mimic::Trial;
use oncemq::ErrorKind::{Config, Schema, Store};
use oncemq::memory::MemoryBroker;
use oncemq::{Consumer, Failure, Inbox, Key, Message, Tx};
use sqlx::Sqlite;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

use crate::{refused_soon, test};

pub(crate) fn tests(list: &mut Vec<Trial>) {
    list.push(test("a_guarded_handler_without_a_key_is_refused", key));
    list.push(test("a_retention_shorter_than_the_ladder_is_refused", retention));
    list.push(test("a_pool_that_is_too_small_is_refused", pool));
    list.push(test("tables_of_a_newer_version_are_refused_and_kept", newer));
    list.push(test("a_store_that_cannot_be_opened_says_so", unopened));
}

async fn guarded(_tx: Tx<Sqlite>, _message: Message) -> Result<(), Failure> {
    Ok(())
}

fn points() -> Consumer {
    Consumer::new("points", MemoryBroker::queue())
}

async fn pool_of(folder: &tempfile::TempDir, most: u32) -> sqlx::SqlitePool {
    let options = SqliteConnectOptions::new().filename(folder.path().join("x.db")).create_if_missing(true);
    SqlitePoolOptions::new().max_connections(most).connect_with(options).await.unwrap()
}

async fn key() {
    let folder = tempfile::tempdir().unwrap();
    let inbox = Inbox::open(pool_of(&folder, 4).await).await.unwrap();
    let consumer = points().topic("orders").handler(inbox.handler(guarded));
    refused_soon(consumer.plan(), Config, &["orders", "no key", ".key("]).await;
}

async fn retention() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool_of(&folder, 4).await;
    for (retention, words) in [
        (Duration::ZERO, ["retention", "one second"]),
        (Duration::from_millis(1), ["retention", "one second"]),
        (Duration::MAX, ["retention", "thousand years"]),
    ] {
        let opened = Inbox::builder(pool.clone()).retention(retention).open();
        refused_soon(opened, Config, &words).await;
    }
    let inbox = Inbox::builder(pool).retention(Duration::from_secs(3600)).open().await.unwrap();
    let with = |ladder: &str| {
        let topic = points().topic("orders").key(Key::json("/id")).retry(ladder.parse().unwrap());
        topic.handler(inbox.handler(guarded))
    };
    for ladder in ["61m dead-letter", "30m 30m dead-letter"] {
        let words = ["orders", "ladder", "keep them longer or shorten the ladder"];
        refused_soon(with(ladder).plan(), Config, &words).await;
    }
    assert!(with("59m dead-letter").plan().await.unwrap().warnings.is_empty());
    // Without an end it is a warning, and refused where warnings are.
    assert_eq!(with("5s keep-trying").plan().await.unwrap().warnings.len(), 1);
    let strict = with("5s keep-trying").strict();
    refused_soon(strict.plan(), Config, &["strict", "orders", "no end"]).await;
}

async fn pool() {
    let folder = tempfile::tempdir().unwrap();
    // Refused when it is opened or when it is put on a topic, never a wait for ever.
    let opened = async {
        let inbox = Inbox::open(pool_of(&folder, 1).await).await?;
        let topic = points().topic("orders").key(Key::json("/id"));
        topic.handler(inbox.handler(guarded)).run().await
    };
    refused_soon(opened, Config, &["pool", "too small", "2 connections"]).await;
    let opened = Inbox::builder(pool_of(&folder, 4).await).max_units(0).open();
    refused_soon(opened, Config, &["at least one unit"]).await;
}

async fn newer() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool_of(&folder, 4).await;
    drop(Inbox::open(pool.clone()).await.unwrap());
    let change = "UPDATE oncemq_inbox_schema SET version = 9, oldest_reader = 8";
    sqlx::query(change).execute(&pool).await.unwrap();
    refused_soon(Inbox::open(pool.clone()), Schema, &["version 9", "update oncemq"]).await;
    let version: i64 =
        sqlx::query_scalar("SELECT version FROM oncemq_inbox_schema").fetch_one(&pool).await.unwrap();
    assert_eq!(version, 9, "tables that cannot be read must not be written");
}

async fn unopened() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no such folder").join("x.db");
    refused_soon(Inbox::sqlite_file(missing), Store, &["database file"]).await;
    std::fs::write(folder.path().join("text.db"), "this is no database, whatever its name is".repeat(50))
        .unwrap();
    let text = folder.path().join("text.db");
    refused_soon(Inbox::sqlite_file(text), Store, &["not a database"]).await;
    let pool = SqlitePoolOptions::new().connect("sqlite::memory:").await.unwrap();
    refused_soon(Inbox::open(pool), Config, &["in memory", "use a file"]).await;
}
