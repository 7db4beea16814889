//! Several consumers in one process.

use tokio::task::JoinSet;

use super::{Consumer, Shutdown, joined};
use crate::Error;
use crate::runtime::Summary;

impl Consumer {
    /// Runs several consumers, also of different brokers, until SIGINT, SIGTERM or their
    /// [`Shutdown`], and returns their summaries in the same order.
    ///
    /// Those that were given no shutdown get the one that another was given. When one of them
    /// ends with an error, the others are stopped in order: a service that consumes half of its
    /// topics looks healthy and is not. What they share, such as a pool, must do for all of
    /// them together. Dropping the future abandons running handlers, as with [`run`](Self::run).
    ///
    /// # Errors
    /// The first error that any of them ends with, as for [`run`](Self::run), once all have
    /// ended; its text names the consumer and the broker.
    pub async fn run_all(consumers: impl IntoIterator<Item = Consumer>) -> Result<Vec<Summary>, Error> {
        let consumers: Vec<Consumer> = consumers.into_iter().collect();
        let given = consumers.iter().find_map(|consumer| consumer.shutdown.clone());
        let shared = match given {
            Some(shutdown) => shutdown,
            None => Shutdown::on_signals()?,
        };
        let mut shutdowns = Vec::with_capacity(consumers.len());
        let mut tasks = JoinSet::new();
        for (place, consumer) in consumers.into_iter().enumerate() {
            let shutdown = consumer.shutdown.clone().unwrap_or_else(|| shared.clone());
            shutdowns.push(shutdown.clone());
            tasks.spawn(
                async move { consumer.shutdown(shutdown).run_named().await.map(|done| (place, done)) },
            );
        }
        let mut summaries = vec![Summary::default(); shutdowns.len()];
        let mut first = None;
        while let Some(ended) = tasks.join_next().await {
            match joined(ended).and_then(|ended| ended) {
                Ok((place, summary)) => summaries[place] = summary,
                Err(error) => {
                    first.get_or_insert(error);
                    // A second stop would not wait for running handlers.
                    shutdowns.iter().filter(|one| !one.is_stopping()).for_each(Shutdown::stop);
                }
            }
        }
        first.map_or(Ok(summaries), Err)
    }

    async fn run_named(self) -> Result<Summary, Error> {
        let name = format!("consumer {} on {}", self.name, self.broker.capabilities().broker);
        self.run().await.map_err(|error| Error::with_source(error.kind(), name, error))
    }
}
