//! Decisions of local transactions on files.

use std::time::Duration;

use oncemq_core::{Decision, Ending, ErrorKind};
use oncemq_idempotency::{Decisions, Purge};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{Sqlite, SqlitePool, Transaction};

use crate::common::{entry, once};
use crate::support::{fixture, options};

async fn open(pool: &SqlitePool) -> Decisions<Sqlite> {
    Decisions::builder(pool.clone()).purge(Purge::Off).open().await.unwrap()
}

async fn effect(pool: &SqlitePool, id: &str) -> Transaction<'static, Sqlite> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    sqlx::query("INSERT INTO effect VALUES ($1)").bind(id).execute(&mut *tx).await.unwrap();
    tx
}

#[tokio::test]
async fn what_is_committed_is_committed_and_the_rest_is_rolled_back_for_good() {
    let f = fixture().await;
    let decisions = open(&f.pool).await;
    decisions.commit(effect(&f.pool, "a").await, "a").await.unwrap();
    effect(&f.pool, "b").await.rollback().await.unwrap();
    for _ in 0..2 {
        assert_eq!(decisions.decide("a").await.unwrap(), Decision::Committed);
        assert_eq!(decisions.decide("b").await.unwrap(), Decision::RolledBack);
    }
    let error = decisions.commit(effect(&f.pool, "b").await, "b").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
    assert_eq!(f.count("effect").await, 1);
}

#[tokio::test]
async fn who_asks_before_the_decision_rolls_back_what_is_at_work() {
    let f = fixture().await;
    let decisions = open(&f.pool).await;
    // It has only read so far: a writer would keep the question waiting.
    let mut tx = f.pool.begin().await.unwrap();
    assert_eq!(decisions.decide("a").await.unwrap(), Decision::RolledBack);
    sqlx::query("INSERT INTO effect VALUES ('a')").execute(&mut *tx).await.unwrap();
    assert!(decisions.commit(tx, "a").await.is_err());
    assert_eq!(f.count("effect").await, 0);
}

#[tokio::test]
async fn who_asks_while_it_writes_waits_and_then_says_open() {
    let f = fixture().await;
    let impatient = options(&f.dir, SqliteJournalMode::Wal).busy_timeout(Duration::from_millis(300));
    let impatient = SqlitePoolOptions::new().max_connections(2).connect_with(impatient).await.unwrap();
    let (decisions, asks) = (open(&f.pool).await, open(&impatient).await);
    for (id, commits, decision) in [("a", true, Decision::Committed), ("b", false, Decision::RolledBack)] {
        let mut tx = effect(&f.pool, id).await;
        decisions.record(&mut tx, id).await.unwrap();
        assert_eq!(asks.decide(id).await.unwrap(), Decision::Open);
        let patient = decisions.clone();
        let asked = tokio::spawn(async move { patient.decide(id).await.unwrap() });
        tokio::time::sleep(Duration::from_millis(200)).await;
        match commits {
            true => tx.commit().await.unwrap(),
            false => tx.rollback().await.unwrap(),
        }
        assert_eq!(asked.await.unwrap(), decision);
        assert_eq!(asks.decide(id).await.unwrap(), decision);
    }
    assert_eq!(f.count("effect").await, 1);
}

#[tokio::test]
async fn answers_agree_with_the_database_however_they_race() {
    let f = fixture().await;
    let decisions = open(&f.pool).await;
    let (mut committed, mut rolled_back) = (0, 0);
    for round in 0..150_u64 {
        let id = format!("r{round}");
        let (asks, asked_id) = (decisions.clone(), id.clone());
        let ask = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_micros(round % 10 * 300)).await;
            asks.decide(&asked_id).await.unwrap()
        });
        tokio::time::sleep(Duration::from_micros(round % 7 * 400)).await;
        let tx = effect(&f.pool, &id).await;
        let done = decisions.commit(tx, &id).await.is_ok();
        let answer = ask.await.unwrap();
        assert_eq!(done, answer == Decision::Committed, "{id}: {answer:?}");
        assert_ne!(answer, Decision::Open, "{id}");
        if done {
            committed += 1;
        } else {
            rolled_back += 1;
        }
        assert_eq!(f.count("effect").await, committed, "{id}");
    }
    assert!(committed > 5 && rolled_back > 5, "no race: {committed} committed, {rolled_back} rolled back");
}

/// A statement that fails does not end a transaction here.
#[tokio::test]
async fn a_handler_that_ignores_a_refusal_commits_nothing() {
    let f = fixture().await;
    let decisions = open(&f.pool).await;
    assert_eq!(decisions.decide("refused").await.unwrap(), Decision::RolledBack);
    for (id, commits) in [("refused", false), ("free", true)] {
        let ending = once(&f.inbox, &entry(id), |mut tx| {
            let decisions = decisions.clone();
            async move {
                sqlx::query("INSERT INTO effect VALUES ($1)").bind(id).execute(tx.db()).await?;
                let _ = decisions.record(&mut tx, id).await;
                let _ = sqlx::query("INSERT INTO effect VALUES ('more')").execute(tx.db()).await;
                Ok(())
            }
        })
        .await;
        assert_eq!(matches!(ending, Ending::Committed), commits, "{ending:?}");
        assert_eq!(f.count("effect").await, if commits { 2 } else { 0 });
    }
    assert_eq!(decisions.decide("free").await.unwrap(), Decision::Committed);
}

#[tokio::test]
async fn expired_decisions_are_removed() {
    let f = fixture().await;
    let decisions = Decisions::builder(f.pool.clone())
        .retention(Duration::from_secs(2))
        .purge(Purge::Off)
        .open()
        .await
        .unwrap();
    decisions.decide("a").await.unwrap();
    assert_eq!(decisions.purge().await.unwrap(), 0);
    sqlx::query("UPDATE oncemq_decision SET decided_at = decided_at - 3000000")
        .execute(&f.pool)
        .await
        .unwrap();
    decisions.decide("b").await.unwrap();
    assert_eq!(decisions.purge().await.unwrap(), 1);
    assert_eq!(f.count("oncemq_decision").await, 1);
}

#[tokio::test]
async fn a_database_in_memory_is_refused() {
    let options = SqliteConnectOptions::new().in_memory(true).shared_cache(true);
    let pool = SqlitePoolOptions::new().connect_with(options).await.unwrap();
    let error = Decisions::open(pool).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("use a file"), "{error}");
}
