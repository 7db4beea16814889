//! Connections that break, servers that hang, futures that are dropped.

use std::str::FromStr;
use std::time::{Duration, Instant};

use oncemq_core::{Claim, Ending, ErrorKind, Record, Unit};
use oncemq_idempotency::Inbox;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Executor, Postgres};

use crate::common::{LIMIT, Outcome, claimed, context, deliver, entry, once};
use crate::proxy::{Mode, Proxy};
use crate::server::Server;
use crate::support::{Fixture, cases, effect, until};

cases![
    a_cancelled_statement_breaks_the_unit_and_its_locks_go,
    a_statement_beyond_the_limit_is_ended_by_the_server,
    a_killed_backend_breaks_the_unit,
    a_backend_killed_between_statements_leaves_nothing,
    lost_commit_reply_is_unknown_and_the_redo_says_duplicate,
    lost_commit_is_unknown_and_the_redo_runs,
    a_dropped_commit_never_reaches_the_pool,
    a_dropped_unit_frees_its_key,
    a_unit_dropped_on_a_bare_thread_frees_its_key,
    a_dead_host_holds_its_key_no_longer_than_the_limit,
    cancelled_begins_leave_nothing_open,
    parked_connections_that_died_are_replaced,
    a_stalled_server_fails_every_call_in_time,
    a_paused_server_fails_the_probe_and_recovers,
    a_closed_port_is_the_cause_that_is_told,
    an_exhausted_pool_still_answers_the_probe,
    a_small_pool_has_no_units,
    a_closed_pool_closes,
    errors_show_no_password,
];

const AWAY: &str = "application_name = current_setting('application_name') AND pid <> pg_backend_pid()";

impl Fixture {
    async fn open_transactions(&self) -> i64 {
        self.int(&format!(
            "SELECT count(*) FROM pg_stat_activity WHERE {AWAY} AND xact_start IS NOT NULL \
             AND state <> 'active'"
        ))
        .await
    }

    async fn through_proxy(&self) -> (Proxy, Inbox<Postgres>) {
        let (proxy, options) = Proxy::before(&self.options).await;
        let pool = PgPoolOptions::new().max_connections(4).connect_with(options).await.unwrap();
        (proxy, Inbox::open(pool).await.unwrap())
    }
}

async fn a_cancelled_statement_breaks_the_unit_and_its_locks_go(f: Fixture) {
    let inbox = f.inbox(4).await;
    let (mut unit, _) = claimed(&inbox, &entry("a")).await;
    let mut tx = unit.lend(context(&entry("a")));
    let run = async {
        tx.db().execute("UPDATE account SET points = points + 1").await.unwrap();
        tx.db().execute("SELECT pg_sleep(60)").await
    };
    assert!(tokio::time::timeout(Duration::from_millis(300), run).await.is_err());
    // Nothing can follow a statement that was cancelled.
    assert!(tx.db().execute("SELECT 1").await.is_err());
    drop(tx);
    let ended = Instant::now();
    let ending = unit.rollback().await;
    assert!(matches!(ending, Ending::Broken(_)), "{ending:?}");
    f.execute("SET lock_timeout = '2s'; UPDATE account SET points = points + 1").await;
    assert!(ended.elapsed() < Duration::from_secs(2), "the lock stayed for {:?}", ended.elapsed());
    let (unit, verdict) = claimed(&inbox, &entry("a")).await;
    assert_eq!(verdict.claim, Claim::New);
    unit.rollback().await;
    assert_eq!(f.int("SELECT points FROM account").await, 1);
}

async fn a_statement_beyond_the_limit_is_ended_by_the_server(f: Fixture) {
    let inbox = f.inbox(4).await;
    let mut unit = inbox.begin(Duration::from_millis(400)).await.unwrap();
    unit.claim(&[entry("a")]).await.unwrap();
    let mut tx = unit.lend(context(&entry("a")));
    let error = tx.db().execute("SELECT pg_sleep(60)").await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("57014"));
    drop(tx);
    assert!(matches!(unit.rollback().await, Ending::RolledBack));
    // The limits are the transaction's own: the next one has others.
    let mut unit = inbox.begin(LIMIT).await.unwrap();
    let mut tx = unit.lend(context(&entry("a")));
    tx.db().execute("SELECT pg_sleep(0.6)").await.unwrap();
    drop(tx);
    assert!(matches!(unit.commit().await, Ending::Committed));
}

async fn a_killed_backend_breaks_the_unit(f: Fixture) {
    let inbox = f.inbox(4).await;
    let ending = once(&inbox, &entry("a"), |mut tx| async move {
        effect_named(&mut tx, "a").await?;
        let _ = tx.db().execute("SELECT pg_terminate_backend(pg_backend_pid())").await.unwrap_err();
        assert!(tx.db().execute("SELECT 1").await.is_err());
        Ok(())
    })
    .await;
    assert!(matches!(ending, Ending::Broken(_)), "{ending:?}");
    assert_eq!(f.effects().await, 0);
    assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Done);
}

async fn effect_named(
    tx: &mut oncemq_idempotency::Tx<Postgres>,
    name: &str,
) -> Result<(), oncemq_core::Failure> {
    sqlx::query("INSERT INTO effect VALUES ($1)").bind(name).execute(tx.db()).await?;
    Ok(())
}

async fn a_backend_killed_between_statements_leaves_nothing(f: Fixture) {
    let inbox = f.inbox(4).await;
    let ending = once(&inbox, &entry("a"), |mut tx| async {
        effect_named(&mut tx, "a").await?;
        drop(tx);
        let kill = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {AWAY}");
        f.execute(kill).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(())
    })
    .await;
    // The connection was lost with the commit on its way: only the redo can tell.
    assert!(matches!(ending, Ending::Unknown(_)), "{ending:?}");
    assert_eq!(f.effects().await, 0);
    assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Done);
}

async fn lost_commit_reply_is_unknown_and_the_redo_says_duplicate(f: Fixture) {
    let (proxy, inbox) = f.through_proxy().await;
    proxy.set(Mode::LoseCommitReply);
    let ending = once(&inbox, &entry("a"), effect).await;
    assert!(matches!(ending, Ending::Unknown(_)), "{ending:?}");
    assert_eq!(proxy.hits(), 1);
    assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Duplicate);
    assert_eq!(f.effects().await, 1);
}

async fn lost_commit_is_unknown_and_the_redo_runs(f: Fixture) {
    let (proxy, inbox) = f.through_proxy().await;
    proxy.set(Mode::LoseCommit);
    let ending = once(&inbox, &entry("a"), effect).await;
    assert!(matches!(ending, Ending::Unknown(_)), "{ending:?}");
    assert_eq!(proxy.hits(), 1);
    // Its half-open transaction was ended from beside, long before its own limit.
    let started = Instant::now();
    assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Done);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(f.effects().await, 1);
}

async fn a_dropped_commit_never_reaches_the_pool(f: Fixture) {
    let (proxy, inbox) = f.through_proxy().await;
    let (mut unit, _) = claimed(&inbox, &entry("a")).await;
    effect(unit.lend(context(&entry("a")))).await.unwrap();
    proxy.set(Mode::Stall);
    assert!(tokio::time::timeout(Duration::from_millis(100), unit.commit()).await.is_err());
    proxy.set(Mode::Pass);
    // Committed or not, both is right; the record and the effect agree, and it ends once.
    deliver(&inbox, &entry("a"), effect).await;
    assert_eq!((f.effects().await, f.done().await), (1, 1));
    until(Duration::from_secs(5), "no open transaction", async || f.open_transactions().await == 0).await;
}

async fn a_dropped_unit_frees_its_key(f: Fixture) {
    let inbox = f.inbox(4).await;
    let (mut unit, _) = claimed(&inbox, &entry("a")).await;
    effect(unit.lend(context(&entry("a")))).await.unwrap();
    drop(unit);
    assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Done);
}

async fn a_unit_dropped_on_a_bare_thread_frees_its_key(f: Fixture) {
    let inbox = f.inbox(4).await;
    let (mut unit, _) = claimed(&inbox, &entry("a")).await;
    let tx = unit.lend(context(&entry("a")));
    std::thread::spawn(move || {
        drop(unit);
        drop(tx);
    })
    .join()
    .unwrap();
    assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Done);
}

async fn a_dead_host_holds_its_key_no_longer_than_the_limit(f: Fixture) {
    let (proxy, dead) = f.through_proxy().await;
    let alive = f.inbox(4).await;
    let mut unit = dead.begin(Duration::from_secs(1)).await.unwrap();
    unit.claim(&[entry("a")]).await.unwrap();
    proxy.set(Mode::Stall);
    let started = Instant::now();
    let (twin, verdict) = claimed(&alive, &entry("a")).await;
    twin.rollback().await;
    assert_eq!(verdict.claim, Claim::Busy);
    assert_eq!(deliver(&alive, &entry("a"), effect).await, Outcome::Done);
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    proxy.set(Mode::Pass);
    let ending = unit.commit().await;
    assert!(matches!(ending, Ending::Unknown(_)), "{ending:?}");
    assert_eq!(f.effects().await, 1);
}

async fn cancelled_begins_leave_nothing_open(f: Fixture) {
    let pool = f.pool(4).await;
    let inbox = Inbox::open(pool.clone()).await.unwrap();
    let mut cancelled = 0;
    for i in 0..200 {
        let limit = Duration::from_micros(i * 20);
        match tokio::time::timeout(limit, inbox.begin(LIMIT)).await {
            Ok(unit) => drop(unit.unwrap()),
            Err(_) => cancelled += 1,
        }
    }
    assert!(cancelled > 20, "only {cancelled} were cancelled");
    // The pool is whole, and what is written through it is there.
    for i in 0..8 {
        let sql = "INSERT INTO effect VALUES ($1)";
        sqlx::query(sql).bind(format!("pool {i}")).execute(&pool).await.unwrap();
    }
    assert_eq!(f.effects().await, 8);
    until(Duration::from_secs(5), "no open transaction", async || f.open_transactions().await == 0).await;
}

async fn parked_connections_that_died_are_replaced(f: Fixture) {
    let inbox = f.inbox(4).await;
    let (one, _) = claimed(&inbox, &entry("a")).await;
    let (two, _) = claimed(&inbox, &entry("b")).await;
    one.rollback().await;
    two.rollback().await;
    f.execute(format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {AWAY}")).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    // The first unit after it already opens.
    let (one, _) = claimed(&inbox, &entry("a")).await;
    let (two, _) = claimed(&inbox, &entry("b")).await;
    assert!(matches!(one.commit().await, Ending::Committed));
    assert!(matches!(two.commit().await, Ending::Committed));
}

async fn a_stalled_server_fails_every_call_in_time(f: Fixture) {
    let (proxy, inbox) = f.through_proxy().await;
    deliver(&inbox, &entry("a"), effect).await;
    proxy.set(Mode::Stall);
    let id = entry("b").trail.id;
    let started = Instant::now();
    let (probe, begin, mark) = tokio::join!(
        async { (inbox.probe().await.unwrap_err(), started.elapsed()) },
        async { (inbox.begin(LIMIT).await.unwrap_err(), started.elapsed()) },
        async { (inbox.mark(&id, 1).await.unwrap_err(), started.elapsed()) },
    );
    for (error, took) in [&probe, &begin, &mark] {
        assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        assert!(*took < Duration::from_secs(12), "{error} after {took:?}");
    }
    assert!(probe.1 < Duration::from_secs(3), "{:?}", probe.1);
    proxy.set(Mode::Pass);
    inbox.probe().await.unwrap();
    assert_eq!(deliver(&inbox, &entry("b"), effect).await, Outcome::Done);
}

async fn a_paused_server_fails_the_probe_and_recovers(f: Fixture) {
    let server = tokio::task::spawn_blocking(|| Server::start("inbox-paused")).await.unwrap();
    let options = PgConnectOptions::from_str(&server.url).unwrap();
    let pool = PgPoolOptions::new().max_connections(4).connect_with(options).await.unwrap();
    let inbox = Inbox::open(pool).await.unwrap();
    let noop = |_| async { Ok(()) };
    deliver(&inbox, &entry("a"), noop).await;
    server.pause();
    let started = Instant::now();
    let error = inbox.probe().await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert_eq!(error.kind(), ErrorKind::Store);
    server.resume();
    inbox.probe().await.unwrap();
    assert_eq!(deliver(&inbox, &entry("a"), noop).await, Outcome::Duplicate);
    drop(f);
}

async fn a_closed_port_is_the_cause_that_is_told(f: Fixture) {
    let (proxy, inbox) = f.through_proxy().await;
    proxy.close_door().await;
    let started = Instant::now();
    // What is connected already goes on.
    let mut units = Vec::new();
    let begin = loop {
        match inbox.begin(LIMIT).await {
            Ok(unit) => units.push(unit),
            Err(error) => break error,
        }
    };
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    for error in [begin, inbox.probe().await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        let text = error.to_string();
        assert!(text.contains("refused") && !text.contains("no answer"), "{text}");
    }
}

async fn an_exhausted_pool_still_answers_the_probe(f: Fixture) {
    let pool = f.pool(3).await;
    let inbox = Inbox::open(pool.clone()).await.unwrap();
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(pool.acquire().await.unwrap());
    }
    inbox.probe().await.unwrap();
    let started = Instant::now();
    let error = inbox.begin(LIMIT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store);
    // The server is not to blame.
    assert!(error.to_string().contains("pool timed out"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(7), "{:?}", started.elapsed());
    drop(taken);
    assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Done);
}

async fn a_small_pool_has_no_units(f: Fixture) {
    // The consumer refuses such an inbox at start.
    assert_eq!(f.inbox(1).await.facts().units, 0);
    assert_eq!(f.inbox(2).await.facts().units, 1);
    let capped = Inbox::builder(f.pool(8).await).max_units(3).open().await.unwrap();
    assert_eq!(capped.facts().units, 3);
    let held: Vec<_> = [capped.begin(LIMIT).await, capped.begin(LIMIT).await, capped.begin(LIMIT).await]
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let fourth = tokio::time::timeout(Duration::from_millis(300), capped.begin(LIMIT)).await;
    assert!(fourth.is_err(), "a fourth unit was opened");
    drop(held);
    drop(capped.begin(LIMIT).await.unwrap());
}

async fn a_closed_pool_closes(f: Fixture) {
    let pool = f.pool(4).await;
    let inbox = Inbox::open(pool.clone()).await.unwrap();
    deliver(&inbox, &entry("a"), effect).await;
    // A connection is parked; closing must not wait for it.
    tokio::time::timeout(Duration::from_secs(5), pool.close()).await.unwrap();
    let error = inbox.begin(LIMIT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
}

async fn errors_show_no_password(f: Fixture) {
    let (proxy, options) = Proxy::before(&f.options).await;
    let wrong = options.clone().password("hunter2hunter2");
    let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(wrong);
    let refused = Inbox::open(pool).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Access, "{refused}");
    let inbox = Inbox::open(
        PgPoolOptions::new().max_connections(2).connect_with(options.password("oncemq")).await.unwrap(),
    )
    .await
    .unwrap();
    proxy.set(Mode::Stall);
    let down = inbox.probe().await.unwrap_err();
    proxy.set(Mode::Pass);
    for text in [format!("{refused} {refused:?}"), format!("{down} {down:?} {inbox:?}")] {
        assert!(!text.contains("hunter2") && !text.contains("oncemq:oncemq"), "{text}");
    }
}
