//! Decisions of local transactions, and the races between a transaction and who asks for it.

use std::time::{Duration, Instant};

use oncemq_core::{Decision, Ending, ErrorKind, Failure, Topology};
use oncemq_idempotency::{Decisions, Inbox, Purge};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Postgres, Transaction};

use crate::common::{entry, once};
use crate::support::{Fixture, cases};

cases![
    what_is_committed_is_committed_and_the_rest_is_rolled_back_for_good,
    who_asks_before_the_decision_rolls_back_what_is_at_work,
    who_asks_after_the_decision_waits_and_then_says_open,
    answers_agree_with_the_database_however_they_race,
    answers_agree_where_transactions_are_serializable,
    an_error_that_was_swallowed_is_no_commit,
    a_handler_writes_a_decision_with_its_effect,
    a_handler_that_ignores_a_refusal_commits_nothing,
    expired_decisions_are_removed,
    tables_of_decisions_are_apart_from_the_inbox,
    a_database_that_cannot_answer_is_no_answer,
    ids_of_no_use_are_refused,
    decisions_work_behind_a_pooling_proxy,
];

async fn open(pool: &PgPool) -> Decisions<Postgres> {
    Decisions::builder(pool.clone()).purge(Purge::Off).open().await.unwrap()
}

async fn effect(pool: &PgPool, id: &str) -> Transaction<'static, Postgres> {
    let mut tx = pool.begin().await.unwrap();
    sqlx::query("INSERT INTO effect VALUES ($1)").bind(id).execute(&mut *tx).await.unwrap();
    tx
}

async fn is_there(pool: &PgPool, id: &str) -> bool {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM effect WHERE k = $1")
        .bind(id)
        .fetch_one(pool)
        .await
        .unwrap();
    count == 1
}

async fn what_is_committed_is_committed_and_the_rest_is_rolled_back_for_good(f: Fixture) {
    let pool = f.pool(3).await;
    let decisions = open(&pool).await;
    decisions.commit(effect(&pool, "a").await, "a").await.unwrap();
    effect(&pool, "b").await.rollback().await.unwrap();
    for _ in 0..2 {
        assert_eq!(decisions.decide("a").await.unwrap(), Decision::Committed);
        assert_eq!(decisions.decide("b").await.unwrap(), Decision::RolledBack);
    }
    // The same id again is another transaction's.
    let error = decisions.commit(effect(&pool, "c").await, "a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
    assert!(decisions.commit(effect(&pool, "b").await, "b").await.is_err());
    assert_eq!(f.effects().await, 1);
}

async fn who_asks_before_the_decision_rolls_back_what_is_at_work(f: Fixture) {
    let pool = f.pool(3).await;
    let decisions = open(&pool).await;
    let tx = effect(&pool, "a").await;
    assert_eq!(decisions.decide("a").await.unwrap(), Decision::RolledBack);
    let error = decisions.commit(tx, "a").await.unwrap_err();
    assert!(error.to_string().contains("rolled back"), "{error}");
    assert_eq!(f.effects().await, 0);
    assert_eq!(decisions.decide("a").await.unwrap(), Decision::RolledBack);
}

async fn who_asks_after_the_decision_waits_and_then_says_open(f: Fixture) {
    let pool = f.pool(4).await;
    let decisions = open(&pool).await;
    for (id, commits, decision) in [("a", true, Decision::Committed), ("b", false, Decision::RolledBack)] {
        let mut tx = effect(&pool, id).await;
        decisions.record(&mut tx, id).await.unwrap();
        let begin = Instant::now();
        assert_eq!(decisions.decide(id).await.unwrap(), Decision::Open);
        let waited = begin.elapsed();
        assert!(waited >= Duration::from_millis(900) && waited < Duration::from_secs(4), "{waited:?}");
        // It waits no longer than it has to.
        let asks = decisions.clone();
        let asked = tokio::spawn(async move { asks.decide(id).await.unwrap() });
        tokio::time::sleep(Duration::from_millis(200)).await;
        match commits {
            true => tx.commit().await.unwrap(),
            false => tx.rollback().await.unwrap(),
        }
        assert_eq!(asked.await.unwrap(), decision);
        assert_eq!(decisions.decide(id).await.unwrap(), decision);
    }
    assert_eq!(f.effects().await, 1);
}

/// A question that only looks would say "rolled back" of a transaction that commits a moment
/// later.
async fn race(f: &Fixture, pool: &PgPool) {
    let decisions = open(pool).await;
    let (mut committed, mut rolled_back) = (0, 0);
    for round in 0..150_u64 {
        let id = format!("r{round}");
        let (asks, asked_id) = (decisions.clone(), id.clone());
        let tx = effect(pool, &id).await;
        let ask = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_micros(round % 10 * 300)).await;
            asks.decide(&asked_id).await.unwrap()
        });
        tokio::time::sleep(Duration::from_micros(round % 7 * 400)).await;
        let done = decisions.commit(tx, &id).await.is_ok();
        let answer = ask.await.unwrap();
        assert_eq!(done, is_there(pool, &id).await, "{id}");
        assert_eq!(done, answer == Decision::Committed, "{id}: {answer:?}");
        assert_ne!(answer, Decision::Open, "{id}");
        assert_eq!(decisions.decide(&id).await.unwrap(), answer);
        if done {
            committed += 1;
        } else {
            rolled_back += 1;
        }
    }
    assert!(committed > 5 && rolled_back > 5, "no race: {committed} committed, {rolled_back} rolled back");
    assert_eq!(f.effects().await, committed);
}

async fn answers_agree_with_the_database_however_they_race(f: Fixture) {
    race(&f, &f.pool(4).await).await;
}

async fn answers_agree_where_transactions_are_serializable(f: Fixture) {
    let options = f.options.clone().options([("default_transaction_isolation", "serializable")]);
    let pool = PgPoolOptions::new().max_connections(4).connect_with(options).await.unwrap();
    race(&f, &pool).await;
}

/// PostgreSQL answers the commit of a failed transaction as if it had done it.
async fn an_error_that_was_swallowed_is_no_commit(f: Fixture) {
    let pool = f.pool(3).await;
    let decisions = open(&pool).await;
    let mut late = effect(&pool, "late").await;
    let _ = sqlx::query("SELECT 1/0").execute(&mut *late).await;
    assert!(decisions.commit(late, "late").await.is_err());

    let mut early = effect(&pool, "early").await;
    decisions.record(&mut early, "early").await.unwrap();
    let _ = sqlx::query("SELECT 1/0").execute(&mut *early).await;
    early.commit().await.unwrap();

    for id in ["late", "early"] {
        assert_eq!(decisions.decide(id).await.unwrap(), Decision::RolledBack);
    }
    assert_eq!(f.effects().await, 0);
}

async fn a_handler_writes_a_decision_with_its_effect(f: Fixture) {
    let inbox = f.inbox(4).await;
    let decisions = open(inbox.pool()).await;
    for (key, commits) in [("a", true), ("b", false)] {
        let ending = once(&inbox, &entry(key), |mut tx| {
            let decisions = decisions.clone();
            async move {
                sqlx::query("INSERT INTO effect VALUES ($1)").bind(key).execute(tx.db()).await?;
                decisions.record(&mut tx, key).await.map_err(|e| Failure::system(e.to_string()))?;
                if commits { Ok(()) } else { Err(Failure::business("no")) }
            }
        })
        .await;
        assert_eq!(matches!(ending, Ending::Committed), commits, "{ending:?}");
    }
    assert_eq!(decisions.decide("a").await.unwrap(), Decision::Committed);
    assert_eq!(decisions.decide("b").await.unwrap(), Decision::RolledBack);
    assert_eq!((f.effects().await, f.done().await), (1, 1));
}

async fn a_handler_that_ignores_a_refusal_commits_nothing(f: Fixture) {
    let inbox = f.inbox(4).await;
    let decisions = open(inbox.pool()).await;
    assert_eq!(decisions.decide("a").await.unwrap(), Decision::RolledBack);
    let ending = once(&inbox, &entry("a"), |mut tx| {
        let decisions = decisions.clone();
        async move {
            sqlx::query("INSERT INTO effect VALUES ('a')").execute(tx.db()).await?;
            let _ = decisions.record(&mut tx, "a").await;
            Ok(())
        }
    })
    .await;
    assert!(matches!(ending, Ending::Refused(_)), "{ending:?}");
    assert_eq!((f.effects().await, f.done().await), (0, 0));
}

async fn expired_decisions_are_removed(f: Fixture) {
    let pool = f.pool(3).await;
    let decisions = Decisions::builder(pool.clone())
        .retention(Duration::from_secs(2))
        .purge(Purge::Off)
        .open()
        .await
        .unwrap();
    decisions.commit(effect(&pool, "a").await, "a").await.unwrap();
    decisions.decide("b").await.unwrap();
    assert_eq!(decisions.purge().await.unwrap(), 0);
    f.execute("UPDATE oncemq_decision SET decided_at = decided_at - 3000000").await;
    decisions.decide("c").await.unwrap();
    assert_eq!(decisions.purge().await.unwrap(), 2);
    assert_eq!(f.int("SELECT count(*) FROM oncemq_decision").await, 1);
    // By itself, too.
    f.execute("UPDATE oncemq_decision SET decided_at = 0").await;
    let _keeps = Decisions::builder(pool.clone()).purge(Purge::Batch(10)).open().await.unwrap();
    crate::support::until(Duration::from_secs(10), "the purge", || async {
        f.int("SELECT count(*) FROM oncemq_decision").await == 0
    })
    .await;
}

async fn tables_of_decisions_are_apart_from_the_inbox(f: Fixture) {
    let pool = f.pool(3).await;
    let verify = || Decisions::builder(pool.clone()).topology(Topology::Verify).purge(Purge::Off);
    f.inbox(2).await;
    let error = verify().open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("table oncemq_decision"), "{error}");
    let text = open(&pool).await.schema();
    f.execute("DROP TABLE oncemq_decision, oncemq_decision_schema").await;
    let inbox = || Inbox::builder(pool.clone()).topology(Topology::Verify).purge(Purge::Off);
    inbox().open().await.unwrap();
    f.execute(text).await;
    assert_eq!(verify().open().await.unwrap().decide("a").await.unwrap(), Decision::RolledBack);
    f.execute("UPDATE oncemq_decision_schema SET version = 9, oldest_reader = 9").await;
    let error = verify().open().await.unwrap_err();
    assert!(error.to_string().contains("version 9"), "{error}");
    inbox().open().await.unwrap();
    f.execute("UPDATE oncemq_decision_schema SET oldest_reader = 1").await;
    verify().open().await.unwrap();
}

async fn a_database_that_cannot_answer_is_no_answer(f: Fixture) {
    let decisions = open(&f.pool(2).await).await;
    // A standby knows nothing of what is going on, and can decide nothing.
    let options = f.options.clone().options([("default_transaction_read_only", "on")]);
    let standby = PgPoolOptions::new().max_connections(2).connect_with(options).await.unwrap();
    let reads = open(&standby).await;
    assert_eq!(reads.decide("a").await.unwrap_err().kind(), ErrorKind::Store);
    decisions.decide("a").await.unwrap();
    assert_eq!(reads.decide("a").await.unwrap(), Decision::RolledBack);
    standby.close().await;
    assert_eq!(reads.decide("a").await.unwrap_err().kind(), ErrorKind::Store);
}

async fn ids_of_no_use_are_refused(f: Fixture) {
    let pool = f.pool(3).await;
    let decisions = open(&pool).await;
    for id in ["", &"x".repeat(513)] {
        assert_eq!(decisions.decide(id).await.unwrap_err().kind(), ErrorKind::Config);
        let tx = effect(&pool, "a").await;
        assert_eq!(decisions.commit(tx, id).await.unwrap_err().kind(), ErrorKind::Config);
    }
    let longest = "ä\0".repeat(170);
    assert_eq!(decisions.decide(&longest).await.unwrap(), Decision::RolledBack);
    assert_eq!(f.effects().await, 0);
}

async fn decisions_work_behind_a_pooling_proxy(f: Fixture) {
    let pool = f.pool(3).await;
    let decisions = Decisions::builder(pool.clone()).behind_pooler().purge(Purge::Off).open().await.unwrap();
    decisions.commit(effect(&pool, "a").await, "a").await.unwrap();
    assert_eq!(decisions.decide("a").await.unwrap(), Decision::Committed);
    assert_eq!(decisions.decide("b").await.unwrap(), Decision::RolledBack);
    // The question itself must not match.
    let kept = sqlx::query_scalar("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE $1");
    let mut conn = pool.acquire().await.unwrap();
    let kept: i64 = kept.bind("%oncemq_decision%").fetch_one(&mut *conn).await.unwrap();
    assert_eq!(kept, 0, "statements are kept by name");
}
