use std::sync::Mutex;

use oncemq_core::{Class, Ending, Failure, Unit};
use oncemq_idempotency::Tx;
use sqlx::{Connection, Executor, Sqlite};

use crate::basics::effect;
use crate::common::{Outcome, claimed, context, deliver, entry, once};
use crate::support::fixture;

#[tokio::test]
async fn nested_transactions_are_savepoints() {
    let f = fixture().await;
    for (key, commit, failed, effects) in
        [("a", true, true, 0), ("b", true, false, 1), ("c", false, false, 1)]
    {
        let ending = once(&f.inbox, &entry(key), |mut tx| async move {
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
        assert_eq!(f.count("effect").await, effects, "{key}");
    }
    assert_eq!(deliver(&f.inbox, &entry("d"), effect).await, Outcome::Done);
}

#[tokio::test]
async fn texts_that_end_the_transaction_are_refused() {
    let f = fixture().await;
    let ending = once(&f.inbox, &entry("a"), |mut tx| async move {
        for text in ["COMMIT", "ROLLBACK", "BEGIN", "END TRANSACTION", "SELECT 1; COMMIT"] {
            let error = tx.db().execute(text).await.unwrap_err();
            assert!(error.to_string().contains("not the handler's"), "{text}: {error}");
        }
        effect(tx).await
    })
    .await;
    assert!(matches!(ending, Ending::Committed), "{ending:?}");
    assert_eq!((f.count("effect").await, f.count("oncemq_inbox").await), (1, 1));
}

/// Nothing but the unit's own end commits on its connection, whatever is sent.
#[tokio::test]
async fn a_transaction_ended_on_the_bare_connection_leaves_nothing() {
    let f = fixture().await;
    for text in ["ROLLBACK", "ROLLBACK; BEGIN", "COMMIT", "COMMIT; BEGIN IMMEDIATE"] {
        for failed in [false, true] {
            let ending = once(&f.inbox, &entry("a"), |mut tx| async move {
                let mut conn = tx.conn()?;
                conn.execute("INSERT INTO effect VALUES ('early')").await?;
                let _ = conn.execute(text).await;
                let _ = conn.execute("INSERT INTO effect VALUES ('late')").await;
                if failed { Err(Failure::business("no")) } else { Ok(()) }
            })
            .await;
            match failed {
                false => assert!(matches!(ending, Ending::Refused(_)), "{text}: {ending:?}"),
                true => assert!(!matches!(ending, Ending::Committed), "{text}: {ending:?}"),
            }
            assert_eq!((f.count("effect").await, f.count("oncemq_inbox").await), (0, 0), "{text}");
        }
    }
    assert_eq!(deliver(&f.inbox, &entry("a"), effect).await, Outcome::Done);
}

#[tokio::test]
async fn a_statement_that_rolls_back_poisons_the_transaction() {
    let f = fixture().await;
    deliver(&f.inbox, &entry("a"), effect).await;
    let ending = once(&f.inbox, &entry("b"), |mut tx| async move {
        tx.db().execute("INSERT INTO effect VALUES ('b')").await?;
        assert!(tx.db().execute("INSERT OR ROLLBACK INTO effect VALUES ('a')").await.is_err());
        // Without the poison this one would commit by itself.
        assert!(tx.db().execute("INSERT INTO effect VALUES ('c')").await.is_err());
        Ok(())
    })
    .await;
    assert!(matches!(ending, Ending::Refused(_)), "{ending:?}");
    assert_eq!((f.count("effect").await, f.count("oncemq_inbox").await), (1, 1));
}

/// Unlike on PostgreSQL a failed statement takes back only itself.
#[tokio::test]
async fn a_caught_constraint_error_is_the_handlers_business() {
    let f = fixture().await;
    deliver(&f.inbox, &entry("a"), effect).await;
    let ending = once(&f.inbox, &entry("b"), |mut tx| async move {
        let error = tx.db().execute("INSERT INTO effect VALUES ('a')").await.unwrap_err();
        assert_eq!(Failure::from(error).class(), Class::Business);
        tx.db().execute("INSERT INTO effect VALUES ('c')").await?;
        Ok(())
    })
    .await;
    assert!(matches!(ending, Ending::Committed), "{ending:?}");
    assert_eq!((f.count("effect").await, f.count("oncemq_inbox").await), (2, 2));
}

#[tokio::test]
async fn savepoints_take_back_a_part() {
    let f = fixture().await;
    let ending = once(&f.inbox, &entry("a"), |mut tx| async move {
        tx.db().execute("INSERT INTO effect VALUES ('a')").await?;
        let mut kept = tx.savepoint().await?;
        kept.db().execute("INSERT INTO effect VALUES ('b')").await?;
        let mut inner = kept.savepoint().await?;
        inner.db().execute("INSERT INTO effect VALUES ('x')").await?;
        inner.rollback().await?;
        kept.release().await?;
        let mut dropped = tx.savepoint().await?;
        dropped.db().execute("INSERT INTO effect VALUES ('y')").await?;
        drop(dropped);
        Ok(())
    })
    .await;
    assert!(matches!(ending, Ending::Committed), "{ending:?}");
    assert_eq!(f.count("effect").await, 2);
}

#[tokio::test]
async fn a_kept_loan_is_not_returned_and_blocks_nobody() {
    let f = fixture().await;
    let kept: Mutex<Option<Tx<Sqlite>>> = Mutex::new(None);
    let ending = once(&f.inbox, &entry("a"), |mut tx| async {
        tx.db().execute("INSERT INTO effect VALUES ('x')").await?;
        *kept.lock().unwrap() = Some(tx);
        Ok(())
    })
    .await;
    assert!(matches!(ending, Ending::NotReturned), "{ending:?}");
    assert_eq!(deliver(&f.inbox, &entry("a"), effect).await, Outcome::Done);
    let mut tx = kept.lock().unwrap().take().unwrap();
    assert!(tx.db().execute("INSERT INTO effect VALUES ('y')").await.is_err());
    drop(tx);
    assert_eq!(f.count("effect").await, 1);
}

#[tokio::test]
async fn a_handler_sees_key_attempt_and_message() {
    let f = fixture().await;
    let (mut unit, _) = claimed(&f.inbox, &entry("a")).await;
    let tx = unit.lend(context(&entry("a")));
    assert_eq!(tx.key().unwrap().as_bytes(), b"a");
    assert_eq!((tx.attempt(), tx.message().body()), (1, b"{}".as_slice()));
    assert!(format!("{tx:?}").starts_with("Tx"));
    drop(tx);
    assert!(matches!(unit.commit().await, Ending::Committed));
}
