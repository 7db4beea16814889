//! The service under test, in the words of its command line and as a consumer.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oncemq::prelude::*;
use serde::{Deserialize, Serialize};
use sqlx::{Postgres, Sqlite};

use crate::database::{Database, Store};
use crate::event::{Act, Event};

/// The variable that carries a [`Spec`] to the process.
pub const VARIABLE: &str = "ONCEMQ_TEST_SERVICE";

/// Everything that tells one service from another.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// URL of the broker.
    pub broker: String,
    /// Where effects and records go.
    pub store: Store,
    /// The consumer's name.
    pub name: String,
    /// The topic.
    pub topic: String,
    /// Prefetch.
    pub in_flight: usize,
    /// How long running handlers may take after SIGTERM.
    pub grace: Duration,
    /// The ladder.
    pub retry: String,
    /// The file that notes every start of a handler, written before anything else happens,
    /// so that it survives what kills the process.
    pub runs: PathBuf,
    /// Events to send. A producer sends what its position file does not have yet; a
    /// consumer sends all of them after its start, which is how a broker inside the process
    /// gets any.
    pub outbox: Option<PathBuf>,
}

impl Spec {
    /// The work queue on RabbitMQ.
    pub fn queue(&self) -> String {
        format!("{}.{}", self.name, self.topic)
    }

    /// Its dead letters.
    pub fn dead(&self) -> String {
        format!("{}.dead", self.queue())
    }

    /// Its delay queues.
    ///
    /// # Panics
    /// The ladder is not one.
    pub fn rungs(&self) -> BTreeSet<String> {
        let policy: RetryPolicy = self.retry.parse().expect("a ladder");
        policy.rungs().iter().map(|rung| format!("{}.retry.{}ms", self.queue(), rung.as_millis())).collect()
    }

    /// The consumer, ready to run.
    ///
    /// # Errors
    /// A setting or a server is not as it must be.
    pub async fn consumer(&self, database: &Database) -> Result<Consumer, oncemq::Error> {
        let topic = Consumer::connect(&self.name, &self.broker)
            .await?
            .in_flight(self.in_flight)
            .grace(self.grace)
            .topic(self.topic.as_str())
            .key(Key::json("/id"))
            .retry(self.retry.parse()?);
        let runs = Runs(self.runs.clone());
        Ok(match database {
            Database::Sqlite(pool) => {
                let inbox = Inbox::open(pool.clone()).await?;
                topic.handler(inbox.handler(move |tx, event| on_sqlite(tx, event, runs.clone())))
            }
            Database::Postgres(pool) => {
                let inbox = Inbox::open(pool.clone()).await?;
                topic.handler(inbox.handler(move |tx, event| on_postgres(tx, event, runs.clone())))
            }
        })
    }
}

/// The handler, once for each database: sqlx's types do not allow one for all.
macro_rules! handler {
    ($name:ident, $db:ty) => {
        async fn $name(mut tx: Tx<$db>, event: Event, runs: Runs) -> Result<(), Failure> {
            let first = runs.note(&event)?;
            sqlx::query("INSERT INTO effect (id, user_id, points) VALUES ($1, $2, $3)")
                .bind(&event.id)
                .bind(event.user)
                .bind(event.points)
                .execute(tx.db())
                .await?;
            sqlx::query("UPDATE account SET points = points + $1 WHERE user_id = $2")
                .bind(event.points)
                .bind(event.user)
                .execute(tx.db())
                .await?;
            act(event.act, first, tx.attempt()).await
        }
    };
}

handler!(on_sqlite, Sqlite);
handler!(on_postgres, Postgres);

/// Comes after the effect was written, so that a rollback has something to take back.
async fn act(act: Act, first: bool, attempt: u32) -> Result<(), Failure> {
    match act {
        Act::Slow(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
        Act::HangsOnce if first => std::future::pending().await,
        Act::Flaky(times) if attempt <= times => return Err(Failure::system("the partner is away")),
        Act::Business => return Err(Failure::business("the product is unknown")),
        Act::Kills => {
            let pid = std::process::id().to_string();
            let _ = std::process::Command::new("kill").args(["-9", &pid]).status();
            std::future::pending().await
        }
        Act::Quick | Act::HangsOnce | Act::Flaky(_) => {}
    }
    Ok(())
}

/// The file of starts.
#[derive(Debug, Clone)]
struct Runs(PathBuf);

impl Runs {
    /// Notes a start; whether it is the first one of this event, in any process. Only asked for
    /// an event that wants to know: the file is long when there are thousands.
    fn note(&self, event: &Event) -> std::io::Result<bool> {
        let id = &event.id;
        let first = event.act == Act::HangsOnce && !read_runs(&self.0).iter().any(|run| run.id == *id);
        let line = format!("{id}\t{}\n", micros_now());
        OpenOptions::new().append(true).create(true).open(&self.0)?.write_all(line.as_bytes())?;
        Ok(first)
    }
}

/// One start of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The event.
    pub id: String,
    /// Microseconds since 1970.
    pub at: u128,
}

/// The starts so far.
pub fn read_runs(file: &Path) -> Vec<Run> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let run = |line: &str| {
        let (id, at) = line.rsplit_once('\t')?;
        Some(Run { id: id.to_owned(), at: at.parse().ok()? })
    };
    text.lines().filter_map(run).collect()
}

/// The time, in the unit of [`Run::at`].
pub fn micros_now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros()
}
