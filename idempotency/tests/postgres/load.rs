//! The purge, and claims while it works.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oncemq_core::{Claim, Class, Failed, Record, Unit};
use oncemq_idempotency::{Inbox, Purge};

use crate::common::{Outcome, claimed, deliver, entry, is_done};
use crate::support::{Fixture, cases, effect, until};

cases![
    pg6_cleanup_does_not_block_consuming,
    kd4_a_record_is_kept_for_its_retention,
    the_purge_ends_with_the_last_clone,
    purges_of_several_instances_take_turns,
];

const DAY: Duration = Duration::from_secs(24 * 3600);

impl Fixture {
    /// Makes what is there older.
    async fn age(&self, hours: i64) {
        let micros = hours * 3600 * 1_000_000;
        self.execute(format!(
            "UPDATE oncemq_inbox SET done_at = done_at - {micros};
             UPDATE oncemq_inbox_note SET touched_at = touched_at - {micros}"
        ))
        .await;
    }
}

async fn pg6_cleanup_does_not_block_consuming(f: Fixture) {
    const EXPIRED: i64 = 300_000;
    f.inbox(2).await;
    // One that is in progress and one that is young, to be left alone.
    f.execute(format!(
        "INSERT INTO oncemq_inbox (k, consumer, kind, key_text, origin, body, done_at)
         SELECT decode(md5(i::text), 'hex'), 'c', 'k', i::text, 'o', '', 1000 + i
         FROM generate_series(1, {EXPIRED}) i"
    ))
    .await;
    let inbox = Inbox::builder(f.pool(8).await).retention(DAY).open().await.unwrap();
    assert_eq!(deliver(&inbox, &entry("young"), effect).await, Outcome::Done);
    let over = Arc::new(AtomicBool::new(false));
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..4 {
        let (inbox, over) = (inbox.clone(), over.clone());
        workers.spawn(async move {
            let mut waits = Vec::new();
            for i in 0.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let key = entry(format!("{worker}-{i}"));
                let mut unit = inbox.begin(Duration::from_secs(10)).await.unwrap();
                let started = Instant::now();
                let verdicts = unit.claim(&[key]).await.unwrap();
                waits.push(started.elapsed());
                assert_eq!(verdicts[0].claim, Claim::New);
                unit.commit().await;
                // Not a benchmark of how much fits beside the purge.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            waits
        });
    }
    until(Duration::from_secs(150), "the expired rows are gone", async || {
        f.int("SELECT count(*) FROM (SELECT 1 FROM oncemq_inbox WHERE done_at < 1000000 LIMIT 1) x").await
            == 0
    })
    .await;
    over.store(true, Ordering::Relaxed);
    let mut waits: Vec<Duration> = workers.join_all().await.concat();
    waits.sort();
    let p99 = waits[waits.len() * 99 / 100];
    eprintln!("{} claims, p99 {p99:?}, longest {:?}", waits.len(), waits.last().unwrap());
    assert!(p99 < Duration::from_millis(250), "claims waited {p99:?}");
    assert!(waits.len() > 200, "only {} claims", waits.len());
    // None of the young ones went.
    assert_eq!(f.done().await, waits.len() as i64 + 1);
    let (unit, verdict) = claimed(&inbox, &entry("young")).await;
    unit.rollback().await;
    assert!(is_done(&verdict));
}

/// The database's clock says how old a record is; the rows are aged instead of the clock.
async fn kd4_a_record_is_kept_for_its_retention(f: Fixture) {
    let inbox = Inbox::builder(f.pool(4).await).retention(DAY).purge(Purge::Off).open().await.unwrap();
    assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Done);
    assert!(inbox.fail(&entry("n"), &Failed::now(Class::System, "x")).await.unwrap());
    for hours in [3, 20] {
        f.age(hours).await;
        assert_eq!(inbox.purge().await.unwrap(), 0, "removed early");
        assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Duplicate);
    }
    f.age(2).await;
    assert_eq!(inbox.purge().await.unwrap(), 2);
    assert_eq!(inbox.purge().await.unwrap(), 0);
    // After 25 hours it may run again, as the documentation says.
    let (unit, verdict) = claimed(&inbox, &entry("a")).await;
    unit.rollback().await;
    assert_eq!(verdict.claim, Claim::New);
    assert_eq!(inbox.facts().retention, DAY);
}

async fn the_purge_ends_with_the_last_clone(f: Fixture) {
    let pool = f.pool(4).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let inbox = Inbox::open(pool.clone()).await.unwrap();
    let clone = inbox.clone();
    until(Duration::from_secs(5), "the purge runs", async || tasks() > before).await;
    drop(inbox);
    deliver(&clone, &entry("a"), effect).await;
    drop(clone);
    until(Duration::from_secs(5), "the purge ends", async || tasks() <= before).await;
    pool.close().await;
}

async fn purges_of_several_instances_take_turns(f: Fixture) {
    let inbox = Inbox::builder(f.pool(4).await).retention(DAY).purge(Purge::Off).open().await.unwrap();
    deliver(&inbox, &entry("a"), effect).await;
    f.age(48).await;
    // Another instance is at it: its transaction holds the lock.
    let mut other = f.admin.begin().await.unwrap();
    let lock = format!(
        "SELECT pg_advisory_xact_lock(hashtextextended('oncemq:purge:\"{}\".\"oncemq_inbox\"', 0))",
        f.schema
    );
    sqlx::query(sqlx::AssertSqlSafe(lock)).execute(&mut *other).await.unwrap();
    let started = Instant::now();
    assert_eq!(inbox.purge().await.unwrap(), 0);
    assert!(started.elapsed() < Duration::from_secs(2));
    other.rollback().await.unwrap();
    assert_eq!(inbox.purge().await.unwrap(), 1);
}
