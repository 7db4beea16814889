//! Clients of librdkafka, and what they say about their connections.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use oncemq_core::{Error, ErrorKind};
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{ClientConfig, Statistics};
use tokio::sync::oneshot;

use crate::config::Config;
use crate::error;

/// The last thing a client said about its connections.
#[derive(Debug, Clone, Default)]
pub(crate) struct Said(Arc<Mutex<Option<Trouble>>>);

type Trouble = (Option<Code>, String);

/// Between two looks at what a client says while it is asked something.
const LOOK: Duration = Duration::from_millis(20);

impl Said {
    pub(crate) fn note(&self, error: &KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        // It comes right after the reason, and says less.
        if code == Some(Code::AllBrokersDown) && self.lock().is_some() {
            return;
        }
        *self.lock() = Some((code, plain(reason)));
    }

    pub(crate) fn take(&self) -> Option<Trouble> {
        self.lock().take()
    }

    /// Returns when a broker has refused the login.
    async fn refused(&self) {
        while !self.lock().as_ref().is_some_and(is_refusal) {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Why a broker does not answer: what the client said of it, or that it said nothing.
    pub(crate) fn explain(&self, config: &Config, limit: Duration) -> Error {
        let address = config.address();
        match self.take() {
            Some(trouble) if is_refusal(&trouble) => Error::new(
                ErrorKind::Access,
                format!(
                    "Kafka at {address} refused the login; check user, password and sasl.mechanisms: {}",
                    trouble.1
                ),
            ),
            Some((Some(Code::SSL), why)) => {
                Error::new(ErrorKind::Connection, format!("no TLS connection to Kafka at {address}: {why}"))
            }
            Some((_, why)) => Error::new(
                ErrorKind::Connection,
                format!("Kafka at {address} cannot be reached; check address and port: {why}"),
            ),
            None => Error::new(
                ErrorKind::Connection,
                format!("Kafka at {address} did not answer within {limit:?}; check address and port"),
            ),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Trouble>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the broker does not want this login. The client calls it an authentication failure
/// too when the connection breaks meanwhile, as it does when a broker restarts.
fn is_refusal((code, why): &Trouble) -> bool {
    matches!(code, Some(Code::Authentication | Code::SaslAuthenticationFailed))
        && !why.contains("transport failure")
}

/// `127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms
/// in state CONNECT)` without what only the client's authors need.
fn plain(reason: &str) -> String {
    let reason = reason.split_once("/bootstrap: ").map_or(reason, |(_, rest)| rest);
    reason.split(" (after ").next().unwrap_or(reason).to_owned()
}

/// A client that only notes what it has to say.
#[derive(Debug, Clone, Default)]
pub(crate) struct Quiet {
    pub(crate) said: Said,
}

impl ClientContext for Quiet {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, _text: &str) {}

    fn stats(&self, _statistics: Statistics) {}

    fn error(&self, error: KafkaError, reason: &str) {
        self.said.note(&error, reason);
    }
}

/// Makes a client. The error names the property that librdkafka refuses.
pub(crate) fn create<C, T>(client: &ClientConfig, context: C) -> Result<T, Error>
where
    C: ClientContext,
    T: FromClientConfigAndContext<C>,
{
    client
        .create_with_context(context)
        .map_err(|refused| error::from_client("the Kafka client refuses its settings", &refused))
        .map_err(|refused| Error::new(ErrorKind::Config, refused.to_string()))
}

/// Asks the cluster something, with a call that blocks for `limit` at most. A broker that is
/// not there is waited for so long; a login that is refused is an error at once.
pub(crate) async fn ask<T: Send + 'static>(
    said: &Said,
    config: &Config,
    limit: Duration,
    call: impl FnOnce() -> Option<T> + Send + 'static,
) -> Result<T, Error> {
    let (answer, answered) = oneshot::channel();
    // Not on a thread of the runtime, which would wait for its end after such an error.
    thread("asks", move || answer.send(call()))?;
    let found = tokio::select! {
        biased;
        found = answered => found.ok().flatten(),
        () = said.refused() => None,
    };
    found.ok_or_else(|| said.explain(config, limit))
}

/// Starts a thread of the adapter.
pub(crate) fn thread<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    Builder::new()
        .name(format!("oncemq-kafka {what}"))
        .spawn(work)
        .map_err(|failed| Error::with_source(ErrorKind::Internal, "a thread cannot be started", failed))
}

/// Runs a call of the client that blocks.
pub(crate) async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(call)
        .await
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "the runtime is shutting down")))
}
