//! One test's stage: a store of its own, queues of its own, and the processes on it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oncemq::Message;
use tempfile::TempDir;

use crate::database::{Database, Store};
use crate::event::Event;
use crate::ledger::Ledger;
use crate::outside::Outside;
use crate::process::{Counters, Process};
use crate::service::{Run, Spec, read_runs};
use crate::suite::{BrokerKind, StoreKind, unique, until, url_of};

/// How long anything may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A stage.
#[derive(Debug)]
pub struct Scene {
    /// The service's settings, to be changed before the first start.
    pub spec: Spec,
    /// Its database.
    pub database: Database,
    program: &'static str,
    folder: TempDir,
    starts: AtomicU32,
}

impl Scene {
    /// Sets a stage on the servers that the environment names. `program` is the path of the
    /// service.
    ///
    /// # Panics
    /// A server is missing.
    pub async fn new(program: &'static str, broker: BrokerKind, store: StoreKind) -> Self {
        let broker = match broker {
            BrokerKind::Memory => "memory://".to_owned() + &unique("scene"),
            server => server.service_url(&url_of(server.name())),
        };
        let postgres = match store {
            StoreKind::Sqlite => None,
            StoreKind::Postgres => Some(url_of("postgres")),
        };
        Self::on(program, broker, postgres).await
    }

    /// Sets a stage on this broker and this PostgreSQL, or on SQLite.
    ///
    /// # Panics
    /// A server does not answer.
    pub async fn on(program: &'static str, broker: String, postgres: Option<String>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = match postgres {
            None => Store::Sqlite { file: folder.path().join("service.db") },
            Some(url) => Store::Postgres { url, schema: unique("scene").replace('-', "_") },
        };
        let database = Database::create(&store).await.unwrap();
        let spec = Spec {
            broker,
            store,
            name: unique("points"),
            topic: unique("orders"),
            in_flight: 8,
            grace: Duration::from_secs(5),
            retry: "200ms 200ms dead-letter".into(),
            runs: folder.path().join("runs"),
            outbox: None,
        };
        Self { spec, database, program, folder, starts: AtomicU32::new(0) }
    }

    /// A file of this test.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Declares the queues, without consuming.
    ///
    /// # Panics
    /// They cannot be declared.
    pub async fn declare(&self) {
        let consumer = self.spec.consumer(&self.database).await.unwrap();
        consumer.plan().await.unwrap();
    }

    /// Writes down which effects are to come, then sends the events.
    ///
    /// # Panics
    /// One of them is not confirmed.
    pub async fn send(&self, events: &[Event]) {
        self.database.expect(events).await.unwrap();
        let messages: Vec<_> = events.iter().map(Event::message).collect();
        self.send_raw(&messages).await;
    }

    /// Sends messages that need not be events.
    ///
    /// # Panics
    /// One of them is not confirmed.
    pub async fn send_raw(&self, messages: &[Message]) {
        let publisher = oncemq::broker(&self.spec.broker).unwrap().publisher().await.unwrap();
        for message in messages {
            publisher.publish(&self.spec.topic, message).await.unwrap();
        }
        publisher.close().await.unwrap();
    }

    /// Puts events into the outbox of `produce`, or of a consumer whose broker is inside.
    ///
    /// # Panics
    /// The file cannot be written.
    pub async fn fill_outbox(&mut self, events: &[Event]) {
        self.database.expect(events).await.unwrap();
        let lines: Vec<_> = events.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
        let file = self.file("outbox");
        std::fs::write(&file, lines.join("\n")).unwrap();
        self.spec.outbox = Some(file);
    }

    /// Starts a consumer.
    pub fn consume(&self, failpoint: Option<&str>) -> Process {
        self.start("consume", failpoint)
    }

    /// Starts a producer.
    pub fn produce(&self, failpoint: Option<&str>) -> Process {
        self.start("produce", failpoint)
    }

    fn start(&self, role: &str, failpoint: Option<&str>) -> Process {
        let number = self.starts.fetch_add(1, Ordering::Relaxed);
        let output = self.file(&format!("{role}-{number}"));
        Process::start(self.program, role, &self.spec, failpoint, &output)
    }

    /// The starts of handlers so far.
    pub fn runs(&self) -> Vec<Run> {
        read_runs(&self.spec.runs)
    }

    /// The starts of one event's handler so far.
    pub fn runs_of(&self, id: &str) -> usize {
        self.runs().iter().filter(|run| run.id == id).count()
    }

    /// Waits until a handler of this event started.
    ///
    /// # Panics
    /// None does.
    pub async fn until_runs(&self, id: &str, count: usize) {
        until(&format!("{count} runs of {id}"), PATIENCE, async || self.runs_of(id) >= count).await;
    }

    /// Waits until nothing that is expected is missing.
    ///
    /// # Panics
    /// Something stays missing.
    pub async fn until_complete(&self) {
        let mut last = String::new();
        for _ in 0..PATIENCE.as_millis() / 50 {
            match Ledger::read(&self.database).await {
                Ok(ledger) if ledger.is_complete() => return,
                Ok(ledger) => last = ledger.to_string(),
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("not complete within {PATIENCE:?}: {last}");
    }

    /// Runs consumers until everything that is expected is there, `dead` messages ended in
    /// the dead letters, and the broker owes nothing. Returns their counters, summed.
    ///
    /// # Panics
    /// It does not come to that.
    pub async fn settle(&self, dead: u32) -> Counters {
        let outside = Outside::of(&self.spec).await;
        let mut sum = Counters::new();
        // What is out of a queue is not seen from outside; it goes back when the consumer stops,
        // and is met in the next round.
        for _ in 0..5 {
            let consumer = self.consume(None);
            consumer.until_said("health up", PATIENCE).await;
            self.until_complete().await;
            until("dead letters", PATIENCE, async || outside.dead().await >= dead).await;
            until("nothing owed", PATIENCE, async || outside.owes_nothing().await).await;
            for (name, count) in consumer.stop(PATIENCE).await {
                *sum.entry(name).or_default() += count;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            if outside.owes_nothing().await {
                return sum;
            }
        }
        panic!("messages keep coming back");
    }

    /// Checks the books.
    ///
    /// # Panics
    /// They are wrong.
    pub async fn check_ledger(&self) {
        let ledger = Ledger::read(&self.database).await.unwrap();
        assert!(ledger.is_right(), "{ledger}");
    }

    /// Checks the books and that the broker owes nothing, then removes everything. No process
    /// may be at work any more.
    ///
    /// # Panics
    /// Something is wrong.
    pub async fn close(self) {
        self.check_ledger().await;
        if !self.spec.broker.starts_with("memory") {
            let outside = Outside::of(&self.spec).await;
            until("no message left", Duration::from_secs(5), async || outside.owes_nothing().await).await;
            outside.remove().await;
        }
        self.database.remove(&self.spec.store).await.unwrap();
    }
}
