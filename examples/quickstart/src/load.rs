//! Many orders with everything that happens to orders.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oncemq::memory::MemoryBroker;
use oncemq::prelude::*;
use oncemq::{Broker, Shutdown};
use sqlx::{Sqlite, SqlitePool};

use crate::Error;
use crate::database::{self, USERS};
use crate::ledger;
use crate::orders::{OrderCompleted, TOPIC, add_points};

const CONSUMER: &str = "points";
const ORDERS: i64 = 10_000;

/// Runs the load, replays the dead letters, and checks the ledger in SQL. Returns whether
/// it is right.
pub(crate) async fn run(folder: &Path) -> Result<bool, Error> {
    let pool = database::open(&folder.join("load.db")).await?;
    let inbox = Inbox::open(pool.clone()).await?;
    let broker = MemoryBroker::queue();
    let shutdown = Shutdown::new();
    let consumer = service(&broker, &inbox).shutdown(shutdown.clone());
    consumer.plan().await?;
    let sent = publish(&broker, &pool).await?;
    let started = Instant::now();
    let run = tokio::spawn(consumer.run());
    progress(&broker, sent).await;
    let seconds = started.elapsed().as_secs_f64();
    ledger::note_dead_letters(&pool, &broker.dead_letters(CONSUMER, TOPIC)).await?;
    let before = ledger::effects(&pool).await?;
    let replayed = broker.replay(CONSUMER, TOPIC);
    progress(&broker, replayed).await;
    let after = ledger::effects(&pool).await?;
    shutdown.stop();
    let summary = run.await??;
    println!("   {sent} messages in {seconds:.1} s, {:.0} a second", sent as f64 / seconds);
    println!(
        "   handled {}, duplicates {}, retried {}, dead letters {}, replayed {replayed}",
        summary.handled, summary.duplicates, summary.retried, summary.rejected
    );
    ledger::check(&pool, after - before).await
}

fn service(broker: &MemoryBroker, inbox: &Inbox<Sqlite>) -> Consumer {
    // Every fiftieth order meets a partner that is away, once.
    let failed_before: Arc<Mutex<HashSet<String>>> = Arc::default();
    let handler = move |tx: Tx<Sqlite>, order: OrderCompleted| {
        let failed_before = failed_before.clone();
        async move {
            let number: i64 = order.order_id.parse().unwrap_or(0);
            let first = number % 50 == 7
                && failed_before
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(order.order_id.clone());
            add_points(tx, order).await?;
            // Fails after it has written: the rollback must take the points back.
            if first { Err(Failure::system("the partner is away")) } else { Ok(()) }
        }
    };
    Consumer::new(CONSUMER, broker.clone())
        .topic(TOPIC)
        .key(Key::json("/order_id"))
        .retry("20ms 50ms 100ms dead-letter".parse().unwrap_or_default())
        .handler(inbox.handler(handler))
}

/// Every order once, three of ten a second time, one of a hundred for an unknown user.
async fn publish(broker: &MemoryBroker, pool: &SqlitePool) -> Result<usize, Error> {
    let publisher = broker.publisher().await?;
    let mut tx = pool.begin().await?;
    let mut sent = 0;
    for number in 1..=ORDERS {
        let good = number % 100 != 0;
        let user_id = if good { 1 + number % USERS } else { USERS + number };
        let order = OrderCompleted { order_id: number.to_string(), user_id, points: number % 10 + 1 };
        let copies = if number % 10 < 3 { 2 } else { 1 };
        for _ in 0..copies {
            publisher.publish(TOPIC, &order.message()?).await?;
            sent += 1;
        }
        sqlx::query("INSERT INTO sent (order_id, good) VALUES ($1, $2)")
            .bind(&order.order_id)
            .bind(good)
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await?;
    Ok(sent)
}

/// Shows how much is left until nothing is.
async fn progress(broker: &MemoryBroker, of: usize) {
    loop {
        let left = broker.left(CONSUMER);
        let done = of.saturating_sub(left);
        let bar = "#".repeat(done * 40 / of.max(1));
        print!("\r   [{bar:<40}] {done:>6} of {of}");
        let _ = std::io::stdout().flush();
        if left == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!();
}
