//! From settings to a thread at work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Instant;

use oncemq_core::{Error, ErrorKind, Health, Shutdown};
use rdkafka::consumer::Consumer;
use tokio::sync::{oneshot, watch};

use super::driver::Driver;
use super::lane::{Step, Work};
use super::settings::Settings;
use super::writer::Writer;
use super::{Pipeline, PipelineSummary};
use crate::records::Reader;
use crate::source::context;
use crate::{client, error};

impl Pipeline {
    /// Checks everything, then runs until the end.
    pub(super) async fn start(mut self, step: Arc<Step>) -> Result<PipelineSummary, Error> {
        let settings = Arc::new(self.settings()?);
        settings.prepare(self.topology, &self.outputs).await?;
        let shutdown = match self.shutdown.take() {
            Some(shutdown) => shutdown,
            None => Shutdown::on_signals()?,
        };
        let gone = Gone::default();
        let end = End { shutdown, gone: gone.0.clone() };
        let work = Work { name: self.name.clone(), step, policy: self.policy, timeout: self.timeout };
        let driver = driver(settings, Arc::new(work), end, self.health)?;
        let (tell, ended) = oneshot::channel();
        Builder::new()
            .name("oncemq-kafka pipeline".to_owned())
            .spawn(move || tell.send(driver.run()))
            .map_err(|failed| {
                Error::with_source(ErrorKind::Internal, "a thread cannot be started", failed)
            })?;
        ended.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the pipeline's thread is gone")))
    }
}

/// Tells the thread when nobody waits for it any more.
#[derive(Debug, Default)]
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// When the thread is to end, and how.
#[derive(Debug, Clone)]
pub(super) struct End {
    shutdown: Shutdown,
    gone: Arc<AtomicBool>,
}

impl End {
    /// Nothing is begun any more.
    pub(super) fn is_near(&self) -> bool {
        self.shutdown.is_stopping()
    }

    /// Nothing is waited for any more.
    pub(super) fn is_here(&self) -> bool {
        self.gone.load(SeqCst) || self.shutdown.is_ending()
    }
}

/// Makes the clients and joins the group.
fn driver(
    settings: Arc<Settings>,
    work: Arc<Work>,
    end: End,
    health: watch::Sender<Health>,
) -> Result<Driver, Error> {
    let client: context::Client = client::create(&settings.consumer(), context::Context::default())?;
    let (config, id) = (settings.config.clone(), settings.transactional_id());
    let writer = Writer::new(config, id, settings.transaction_timeout, end.clone())?;
    let topics: Vec<&str> = settings.topics.iter().map(|names| &*names.work).collect();
    client.subscribe(&topics).map_err(|refused| error::from_client("subscribing", &refused))?;
    let (reporter, reports) = channel();
    Ok(Driver {
        client: Arc::new(client),
        settings,
        runtime: tokio::runtime::Handle::current(),
        work,
        writer,
        end,
        health,
        reports,
        reporter,
        arrived: Arc::default(),
        reader: Reader::default(),
        parts: Vec::new(),
        tenures: 0,
        unit: None,
        singly: 0,
        aborts: 0,
        retry_at: Instant::now(),
        joined: false,
        broken: false,
        assigning: None,
        leaving: None,
        stopping: None,
        ill_since: None,
        summary: PipelineSummary::default(),
    })
}
