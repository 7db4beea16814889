//! What handlers do with their transaction, and what becomes of it.

use std::sync::Mutex;
use std::time::Duration;

use oncemq_core::{Class, Ending, Failure, Record, Unit};
use oncemq_idempotency::{Inbox, Tx};
use sqlx::{Connection, Executor, Postgres};

use crate::common::{Outcome, claimed, context, deliver, entry, once};
use crate::support::{Fixture, cases, effect};

cases![
    pg1_swallowed_error_is_refused,
    pg3_serialization_failures_are_redone,
    pg3_deadlocks_are_redone_whatever_the_handler_says,
    nested_transactions_are_savepoints,
    texts_that_end_the_transaction_are_refused,
    a_transaction_ended_on_the_bare_connection_is_refused,
    savepoints_heal_what_can_be_healed,
    a_dropped_savepoint_is_taken_back,
    a_kept_loan_is_not_returned,
    a_reader_that_stops_early_breaks_nothing,
    deferred_constraint_at_commit_is_refused,
    database_errors_are_classed,
];

async fn pg1_swallowed_error_is_refused(f: Fixture) {
    let inbox = f.inbox(4).await;
    deliver(&inbox, &entry("a"), effect).await;
    let ending = once(&inbox, &entry("b"), |mut tx| async move {
        sqlx::query("INSERT INTO effect VALUES ('b')").execute(tx.db()).await?;
        let error = sqlx::query("INSERT INTO effect VALUES ('a')").execute(tx.db()).await.unwrap_err();
        assert!(error.as_database_error().unwrap().is_unique_violation());
        // Nothing can follow, and it is said before the server has to say 25P02.
        let error = sqlx::query("INSERT INTO effect VALUES ('c')").execute(tx.db()).await.unwrap_err();
        assert!(matches!(error, sqlx::Error::InvalidArgument(_)), "{error}");
        Ok(())
    })
    .await;
    assert!(
        matches!(&ending, Ending::Refused(why) if why.to_string().contains("effect_k_key")),
        "{ending:?}"
    );
    assert_eq!((f.effects().await, f.done().await), (1, 1));
    // The same through the bare connection, which nobody watches: the server refuses.
    let ending = once(&inbox, &entry("b"), |mut tx| async move {
        let mut conn = tx.conn()?;
        let _ = conn.execute("INSERT INTO effect VALUES ('a')").await.unwrap_err();
        Ok(())
    })
    .await;
    let Ending::Refused(why) = ending else { panic!("{ending:?}") };
    assert!(why.reason().contains("aborted"), "{why}");
    assert_eq!(why.class(), Class::System, "{why}");
    assert_eq!((f.effects().await, f.done().await), (1, 1));
    assert_eq!(deliver(&inbox, &entry("b"), effect).await, Outcome::Done);
}

async fn pg3_serialization_failures_are_redone(f: Fixture) {
    for (round, level) in ["serializable", "repeatable read"].into_iter().enumerate() {
        let inbox = f.inbox_at(21, level).await;
        let mut workers = tokio::task::JoinSet::new();
        for worker in 0..20 {
            let inbox = inbox.clone();
            workers.spawn(async move {
                for i in 0..10 {
                    let key = entry(format!("{round}-{worker}-{i}"));
                    let outcome = deliver(&inbox, &key, |mut tx| async move {
                        let points: i64 = sqlx::query_scalar("SELECT points FROM account WHERE user_id = 1")
                            .fetch_one(tx.db())
                            .await?;
                        sqlx::query("UPDATE account SET points = $1 WHERE user_id = 1")
                            .bind(points + 1)
                            .execute(tx.db())
                            .await?;
                        Ok(())
                    })
                    .await;
                    assert_eq!(outcome, Outcome::Done);
                }
            });
        }
        workers.join_all().await;
        assert_eq!(f.int("SELECT points FROM account").await, 200 * (round as i64 + 1), "{level}");
    }
}

async fn pg3_deadlocks_are_redone_whatever_the_handler_says(f: Fixture) {
    f.execute("INSERT INTO account VALUES (2, 0)").await;
    let inbox = f.inbox(4).await;
    let (mut one, _) = claimed(&inbox, &entry("one")).await;
    let (mut two, _) = claimed(&inbox, &entry("two")).await;
    let lock = |mut tx: Tx<Postgres>, first: i64| async move {
        let sql = "UPDATE account SET points = points + 1 WHERE user_id = $1";
        sqlx::query(sql).bind(first).execute(tx.db()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        let result = sqlx::query(sql).bind(3 - first).execute(tx.db()).await;
        if let Err(error) = &result {
            assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("40P01"));
            assert!(tx.db().execute("SELECT 1").await.is_err(), "a deadlocked transaction goes on");
        }
        result.is_err()
    };
    let (a, b) = (one.lend(context(&entry("one"))), two.lend(context(&entry("two"))));
    let (a, b) = tokio::join!(lock(a, 1), lock(b, 2));
    assert!(a != b, "one of them is the victim");
    let (victim, winner) = if a { (one, two) } else { (two, one) };
    // The handler may swallow it and say that all went well.
    let ending = victim.commit().await;
    assert!(matches!(ending, Ending::Redo(_)), "{ending:?}");
    let ending = winner.commit().await;
    assert!(matches!(ending, Ending::Committed), "{ending:?}");
    assert_eq!((f.done().await, f.int("SELECT sum(points)::bigint FROM account").await), (1, 2));
}

async fn nested_transactions_are_savepoints(f: Fixture) {
    let inbox = f.inbox(4).await;
    for (key, commit, failed, effects) in
        [("a", true, true, 0), ("b", true, false, 1), ("c", false, false, 1)]
    {
        let ending = once(&inbox, &entry(key), |mut tx| async move {
            {
                let mut conn = tx.conn()?;
                let mut nested = conn.begin().await?;
                sqlx::query("INSERT INTO effect VALUES ($1)").bind(key).execute(&mut *nested).await?;
                match commit {
                    true => nested.commit().await?,
                    false => nested.rollback().await?,
                }
            }
            if failed { Err(Failure::business("no")) } else { Ok(()) }
        })
        .await;
        match failed {
            true => assert!(matches!(ending, Ending::RolledBack), "{ending:?}"),
            false => assert!(matches!(ending, Ending::Committed), "{ending:?}"),
        }
        assert_eq!(f.effects().await, effects, "{key}");
    }
    // The lane that was used stays fit for further units.
    for i in 0..3 {
        assert_eq!(deliver(&inbox, &entry(format!("d{i}")), effect).await, Outcome::Done);
    }
}

async fn texts_that_end_the_transaction_are_refused(f: Fixture) {
    let inbox = f.inbox(4).await;
    let ending = once(&inbox, &entry("a"), |mut tx| async move {
        for text in ["COMMIT", "ROLLBACK", "BEGIN", "END", "SELECT 1; COMMIT", "/**/ commit and chain"] {
            let error = tx.db().execute(text).await.unwrap_err();
            assert!(error.to_string().contains("not the handler's"), "{text}: {error}");
        }
        sqlx::query("INSERT INTO effect VALUES ('a')").execute(tx.db()).await?;
        Ok(())
    })
    .await;
    assert!(matches!(ending, Ending::Committed), "{ending:?}");
    assert_eq!((f.effects().await, f.done().await), (1, 1));
}

async fn a_transaction_ended_on_the_bare_connection_is_refused(f: Fixture) {
    let inbox = f.inbox(4).await;
    for (key, text) in [
        ("a", "ROLLBACK"),
        ("b", "ROLLBACK; BEGIN"),
        ("c", "COMMIT; BEGIN"),
        ("d", "COMMIT AND CHAIN"),
        ("e", "COMMIT"),
    ] {
        let ending = once(&inbox, &entry(key), |mut tx| async move {
            let mut conn = tx.conn()?;
            conn.execute(text).await?;
            sqlx::query("INSERT INTO effect VALUES ($1)").bind(key).execute(&mut *conn).await?;
            Ok(())
        })
        .await;
        assert!(
            matches!(&ending, Ending::Refused(why) if why.class() == Class::System),
            "{text}: {ending:?}"
        );
        let rolled_back = text.starts_with("ROLLBACK");
        // What the handler committed by itself is there, the record with it; the next
        // delivery is told so.
        let outcome = deliver(&inbox, &entry(key), |_| async { Ok(()) }).await;
        assert_eq!(outcome == Outcome::Done, rolled_back, "{text}");
    }
    // A failed handler that ended its transaction is told apart too.
    let ending = once(&inbox, &entry("f"), |mut tx| async move {
        tx.conn()?.execute("COMMIT").await?;
        Err(Failure::business("no"))
    })
    .await;
    assert!(matches!(ending, Ending::Refused(_)), "{ending:?}");
}

async fn savepoints_heal_what_can_be_healed(f: Fixture) {
    let inbox = f.inbox(4).await;
    deliver(&inbox, &entry("a"), effect).await;
    let ending = once(&inbox, &entry("b"), |mut tx| async move {
        let mut savepoint = tx.savepoint().await?;
        assert!(savepoint.db().execute("INSERT INTO effect VALUES ('a')").await.is_err());
        savepoint.rollback().await?;
        let mut savepoint = tx.savepoint().await?;
        savepoint.db().execute("INSERT INTO effect VALUES ('b')").await?;
        let mut inner = savepoint.savepoint().await?;
        inner.db().execute("INSERT INTO effect VALUES ('x')").await?;
        inner.rollback().await?;
        savepoint.release().await?;
        // By text it is the same.
        tx.db().execute("SAVEPOINT mine").await?;
        assert!(tx.db().execute("INSERT INTO effect VALUES ('a')").await.is_err());
        tx.db().execute("ROLLBACK TO mine").await?;
        tx.db().execute("INSERT INTO effect VALUES ('c')").await?;
        Ok(())
    })
    .await;
    assert!(matches!(ending, Ending::Committed), "{ending:?}");
    assert_eq!(f.effects().await, 3);
    assert_eq!(f.int("SELECT count(*) FROM effect WHERE k = 'x'").await, 0);
}

async fn a_dropped_savepoint_is_taken_back(f: Fixture) {
    let inbox = f.inbox(4).await;
    for (key, follow) in [("a", true), ("b", false)] {
        let ending = once(&inbox, &entry(key), |mut tx| async move {
            sqlx::query("INSERT INTO effect VALUES ($1)").bind(key).execute(tx.db()).await?;
            let mut savepoint = tx.savepoint().await?;
            savepoint.db().execute("INSERT INTO effect VALUES ('x')").await?;
            assert!(savepoint.db().execute("nonsense").await.is_err());
            drop(savepoint);
            if follow {
                tx.db().execute("SELECT 1").await?;
            }
            Ok(())
        })
        .await;
        assert!(matches!(ending, Ending::Committed), "{ending:?}");
    }
    assert_eq!(f.int("SELECT count(*) FROM effect WHERE k = 'x'").await, 0);
    assert_eq!(f.effects().await, 2);
}

async fn a_kept_loan_is_not_returned(f: Fixture) {
    let inbox = f.inbox(4).await;
    let kept: Mutex<Option<Tx<Postgres>>> = Mutex::new(None);
    let ending = once(&inbox, &entry("a"), |mut tx| async {
        tx.db().execute("INSERT INTO effect VALUES ('a')").await?;
        *kept.lock().unwrap() = Some(tx);
        Ok(())
    })
    .await;
    assert!(matches!(ending, Ending::NotReturned), "{ending:?}");
    // The key is free although the loan still lives, and the loan is worth nothing.
    assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Done);
    let mut tx = kept.lock().unwrap().take().unwrap();
    let error = tx.db().execute("INSERT INTO effect VALUES ('x')").await.unwrap_err();
    assert!(error.to_string().contains("over"), "{error}");
    drop(tx);
    assert_eq!(f.effects().await, 1);
}

async fn a_reader_that_stops_early_breaks_nothing(f: Fixture) {
    use futures_util::StreamExt;
    let inbox = f.inbox(4).await;
    let ending = once(&inbox, &entry("a"), |mut tx| async move {
        for _ in 0..2 {
            let sql = "SELECT i FROM generate_series(1, 5000) i";
            let mut rows = sqlx::query(sql).fetch(tx.db());
            rows.next().await.unwrap()?;
        }
        Ok(())
    })
    .await;
    assert!(matches!(ending, Ending::Committed), "{ending:?}");
}

async fn deferred_constraint_at_commit_is_refused(f: Fixture) {
    f.execute("CREATE TABLE late (k text UNIQUE DEFERRABLE INITIALLY DEFERRED)").await;
    let inbox = f.inbox(4).await;
    let ending = once(&inbox, &entry("a"), |mut tx| async move {
        tx.db().execute("INSERT INTO late VALUES ('x'), ('x')").await?;
        Ok(())
    })
    .await;
    // By its SQLSTATE, as if the statement itself had been refused.
    let Ending::Refused(why) = ending else { panic!("{ending:?}") };
    assert!(why.reason().contains("late_k_key"), "{why}");
    assert_eq!(why.class(), Class::Business, "{why}");
    assert_eq!(f.done().await, 0);
}

async fn database_errors_are_classed(f: Fixture) {
    let inbox: Inbox<Postgres> = f.inbox(4).await;
    f.execute("CREATE TABLE narrow (k varchar(2))").await;
    f.execute("INSERT INTO effect VALUES ('there')").await;
    for (text, class) in [
        ("INSERT INTO narrow VALUES ('too long')", Class::Business),
        ("INSERT INTO effect VALUES (NULL)", Class::Business),
        ("INSERT INTO effect VALUES ('there')", Class::Business),
        ("SELECT 1 / 0", Class::Business),
        ("SELECT * FROM missing", Class::System),
        ("SELECT missing FROM effect", Class::System),
        ("SELECT nonsense nonsense nonsense", Class::System),
    ] {
        let (mut unit, _) = claimed(&inbox, &entry("a")).await;
        let mut tx = unit.lend(context(&entry("a")));
        let failure: Failure = tx.db().execute(text).await.unwrap_err().into();
        drop(tx);
        assert_eq!(failure.class(), class, "{text}: {failure}");
        let ending = unit.rollback().await;
        assert!(matches!(ending, Ending::RolledBack), "{text}: {ending:?}");
    }
    inbox.probe().await.unwrap();
}
