//! One order and what a healthy system does to it: a crash, a lost ack, a resend.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use oncemq::memory::MemoryBroker;
use oncemq::prelude::*;
use oncemq::{Broker, Context, Shutdown, Summary};
use sqlx::{Sqlite, SqlitePool};
use tokio::task::JoinHandle;

use crate::orders::{OrderCompleted, TOPIC, add_points, add_points_usually};
use crate::{Error, database};

const CONSUMER: &str = "points";
const USER: i64 = 7;

/// Plays the incident against both consumers and prints the points after each step.
/// Returns whether the order counted once with oncemq, and three times without.
pub(crate) async fn replay(folder: &Path) -> Result<bool, Error> {
    let usual = play(&folder.join("usual.db"), Kind::Usual).await?;
    let ours = play(&folder.join("oncemq.db"), Kind::Guarded).await?;
    println!("   {:<58} {:>8} {:>8}", "what happens", "usual", "oncemq");
    println!("   {}", "-".repeat(76));
    let steps = [
        "the order arrives, and the consumer crashes in the middle",
        "it arrives again; its ack is lost, so it arrives once more",
        "the producer never saw its confirm and resends",
    ];
    for (step, (usual, ours)) in steps.iter().zip(usual.iter().zip(&ours)) {
        println!("   {step:<58} {usual:>8} {ours:>8}");
    }
    Ok(usual.last() == Some(&300) && ours.last() == Some(&100))
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Usual,
    Guarded,
}

/// One consumer's world.
struct World {
    broker: MemoryBroker,
    pool: SqlitePool,
    inbox: Inbox<Sqlite>,
    kind: Kind,
    /// While set, a handler hangs before it writes.
    hang: Arc<AtomicBool>,
}

async fn play(file: &Path, kind: Kind) -> Result<Vec<i64>, Error> {
    let pool = database::open(file).await?;
    let inbox = Inbox::open(pool.clone()).await?;
    let hang = Arc::new(AtomicBool::new(true));
    let world = World { broker: MemoryBroker::queue(), pool, inbox, kind, hang };
    let order = OrderCompleted { order_id: "2026-0001".into(), user_id: USER, points: 100 };
    let mut points = Vec::new();

    // The consumer crashes while its handler is at work.
    let (run, _) = world.start();
    world.publish(&order).await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    world.broker.crash(CONSUMER);
    run.abort();
    let _ = run.await;
    points.push(world.points().await?);

    // It starts again. The order is handled, and the ack is lost on its way.
    world.hang.store(false, SeqCst);
    world.broker.lose_acks(1);
    let (run, shutdown) = world.start();
    world.nothing_left().await?;
    points.push(world.points().await?);

    // The producer's confirm was lost too, so it sends the same event again.
    world.publish(&order).await?;
    world.nothing_left().await?;
    points.push(world.points().await?);
    shutdown.stop();
    run.await??;
    Ok(points)
}

impl World {
    fn start(&self) -> (JoinHandle<Result<Summary, oncemq::Error>>, Shutdown) {
        let shutdown = Shutdown::new();
        let topic = Consumer::new(CONSUMER, self.broker.clone())
            .shutdown(shutdown.clone())
            .topic(TOPIC)
            .key(Key::json("/order_id"));
        let hang = self.hang.clone();
        let consumer = match self.kind {
            Kind::Guarded => {
                topic.handler(self.inbox.handler(move |tx: Tx<Sqlite>, order: OrderCompleted| {
                    let hang = hang.clone();
                    async move {
                        hang_if(&hang).await;
                        add_points(tx, order).await
                    }
                }))
            }
            Kind::Usual => {
                let pool = self.pool.clone();
                topic.unguarded(move |_cx: Context, order: OrderCompleted| {
                    let (hang, pool) = (hang.clone(), pool.clone());
                    async move {
                        hang_if(&hang).await;
                        add_points_usually(&mut *pool.acquire().await?, &order).await?;
                        Ok(())
                    }
                })
            }
        };
        (tokio::spawn(consumer.run()), shutdown)
    }

    /// Sends the event, as soon as the consumer has declared its queue.
    async fn publish(&self, order: &OrderCompleted) -> Result<(), Error> {
        let publisher = self.broker.publisher().await?;
        let message = order.message()?;
        for _ in 0..100 {
            match publisher.publish(TOPIC, &message).await {
                Err(error) if error.kind() == oncemq::ErrorKind::Unroutable => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                sent => return Ok(sent?),
            }
        }
        Err("the consumer did not declare its queue".into())
    }

    async fn nothing_left(&self) -> Result<(), Error> {
        for _ in 0..1000 {
            if self.broker.left(CONSUMER) == 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err("the broker still owes messages after 10 s".into())
    }

    async fn points(&self) -> Result<i64, Error> {
        let query = sqlx::query_scalar("SELECT points FROM account WHERE user_id = $1");
        Ok(query.bind(USER).fetch_one(&self.pool).await?)
    }
}

async fn hang_if(hang: &AtomicBool) {
    if hang.load(SeqCst) {
        std::future::pending::<()>().await;
    }
}
