//! The suite for brokers: what every source and publisher must keep.
//!
//! An adapter's author writes a [`Harness`] and a test binary without the usual harness:
//!
//! ```text
//! fn main() -> std::process::ExitCode {
//!     oncemq_core::conformance::main(MyBroker::default())
//! }
//! ```

mod bench;
mod dropped;
mod end;
mod flow;
mod lacking;
mod outage;
mod publish;
mod retry;
mod settle;

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::sync::RwLock;

use self::bench::Bench;
use crate::{Broker, Capabilities, Error, Message};

/// What the suite needs to know about a broker. Names of consumers and topics are made by
/// the suite, other ones for each case and run; topics are declared by consumers.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// Why the suite cannot run here: a server that was left out by name. The cases are
    /// then listed as ignored.
    fn left_out(&self) -> Option<String> {
        None
    }

    /// The broker, connected. Cases share it or get their own, as the author likes.
    async fn broker(&self) -> Result<Arc<dyn Broker>, Error>;

    /// What the broker can do.
    fn capabilities(&self) -> Capabilities;

    /// The longest time until something given back is delivered again. The suite also waits
    /// as long to be sure that nothing comes.
    fn redelivery(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// The shortest delay that the broker keeps.
    fn shortest_delay(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// The size of a large payload that the broker takes, in bytes.
    fn large_payload(&self) -> u32 {
        1024 * 1024
    }

    /// The dead letters of a consumer and topic.
    async fn dead_letters(&self, consumer: &str, topic: &str) -> Result<Vec<Message>, Error>;

    /// What this harness can do to the broker. Nothing unless set.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    /// Stops the broker and starts it again, and returns when it is ready.
    async fn restart(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Cuts all connections and lets none through until [`reconnect`](Self::reconnect).
    async fn disconnect(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Ends [`disconnect`](Self::disconnect).
    async fn reconnect(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Publishes a message that carries every property of the broker's protocol that a copy
    /// must not have.
    async fn publish_loaded(&self, _topic: &str, _message: &Message) -> Result<(), Error> {
        Ok(())
    }

    /// The names of such properties that a copy has.
    fn copied_wrongly(&self, _copy: &Message) -> Vec<String> {
        Vec::new()
    }
}

/// What a harness can do to its broker.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Abilities {
    /// It has [`restart`](Harness::restart).
    pub restart: bool,
    /// It has [`disconnect`](Harness::disconnect) and [`reconnect`](Harness::reconnect).
    pub disconnect: bool,
    /// It has [`publish_loaded`](Harness::publish_loaded).
    pub publish_loaded: bool,
}

impl Abilities {
    /// Sets whether the broker can be restarted.
    pub const fn restart(self, value: bool) -> Self {
        Self { restart: value, ..self }
    }

    /// Sets whether connections can be cut.
    pub const fn disconnect(self, value: bool) -> Self {
        Self { disconnect: value, ..self }
    }

    /// Sets whether messages with all properties of the protocol can be published.
    pub const fn publish_loaded(self, value: bool) -> Self {
        Self { publish_loaded: value, ..self }
    }
}

/// What a case returns: nothing, or what was wrong.
type Outcome = Result<(), Failed>;

/// The longest a case may take.
const CASE_LIMIT: Duration = Duration::from_secs(120);

/// Runs the suite as a test binary: names, filters and closing line as of any other.
pub fn main<H: Harness>(harness: H) -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), trials(harness)).exit_code()
}

/// The cases of the suite, for a test binary that has others beside them.
pub fn trials<H: Harness>(harness: H) -> Vec<Trial> {
    let left_out = harness.left_out();
    if let Some(why) = &left_out {
        note(&format!("broker suite ignored: {why}"));
    }
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut cases = Cases {
        harness: Arc::new(harness),
        run: format!("{:x}-{:x}", since_1970.as_micros(), std::process::id()),
        calm: Arc::default(),
        left_out: left_out.is_some(),
        trials: Vec::new(),
    };
    publish::cases(&mut cases);
    settle::cases(&mut cases);
    retry::cases(&mut cases);
    dropped::cases(&mut cases);
    flow::cases(&mut cases);
    end::cases(&mut cases);
    outage::cases(&mut cases);
    lacking::cases(&mut cases);
    cases.trials
}

#[allow(clippy::print_stderr, reason = "a test binary tells its reader why it ignores")]
fn note(text: &str) {
    eprintln!("{text}");
}

/// The cases of a run.
struct Cases {
    harness: Arc<dyn Harness>,
    run: String,
    /// Cases that disturb the broker run alone.
    calm: Arc<RwLock<()>>,
    left_out: bool,
    trials: Vec<Trial>,
}

impl Cases {
    /// A case for every broker.
    fn add<F, Fut>(&mut self, name: &'static str, case: F)
    where
        F: FnOnce(Bench) -> Fut + Send + 'static,
        Fut: Future<Output = Outcome>,
    {
        self.push(name, true, false, case);
    }

    /// A case for brokers that can do something.
    fn add_if<F, Fut>(&mut self, can: fn(&Capabilities) -> bool, name: &'static str, case: F)
    where
        F: FnOnce(Bench) -> Fut + Send + 'static,
        Fut: Future<Output = Outcome>,
    {
        let applies = can(&self.harness.capabilities());
        self.push(name, applies, false, case);
    }

    /// A case that needs an ability of the harness and runs alone.
    fn add_alone<F, Fut>(&mut self, can: fn(&Abilities) -> bool, name: &'static str, case: F)
    where
        F: FnOnce(Bench) -> Fut + Send + 'static,
        Fut: Future<Output = Outcome>,
    {
        let applies = can(&self.harness.abilities());
        self.push(name, applies, true, case);
    }

    fn push<F, Fut>(&mut self, name: &'static str, applies: bool, alone: bool, case: F)
    where
        F: FnOnce(Bench) -> Fut + Send + 'static,
        Fut: Future<Output = Outcome>,
    {
        let (harness, calm) = (self.harness.clone(), self.calm.clone());
        let place = format!("{}-{}", self.run, self.trials.len());
        let trial = Trial::test(name, move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async {
                let (_beside, _alone);
                if alone {
                    _alone = calm.write().await;
                } else {
                    _beside = calm.read().await;
                }
                let limited = tokio::time::timeout(CASE_LIMIT, async {
                    case(Bench::open(harness, &place).await?).await
                });
                limited.await.map_err(|_| Failed::from(format!("not done after {CASE_LIMIT:?}")))?
            })
        });
        self.trials.push(trial.with_ignored_flag(self.left_out || !applies));
    }
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Failed::from(otherwise())) }
}
