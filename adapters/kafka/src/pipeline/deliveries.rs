//! What became of the outputs of a transaction.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::Statistics;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::Message as _;
use rdkafka::producer::{DeliveryResult, ProducerContext};

use crate::client::Said;

/// Counts the outputs that have no answer yet, and keeps the failure that tells most.
#[derive(Debug, Clone, Default)]
pub(super) struct Deliveries {
    pub(super) said: Said,
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug, Default)]
struct State {
    open: usize,
    failed: Option<Failed>,
}

/// An output that was not stored.
#[derive(Debug, Clone)]
pub(super) struct Failed {
    pub(super) topic: String,
    pub(super) code: Code,
    /// It is the output's own fault, and not that of the transaction or the broker.
    pub(super) is_refusal: bool,
}

impl Deliveries {
    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new transaction begins.
    pub(super) fn forget(&self) {
        self.state().failed = None;
    }

    /// One more answer is to come.
    pub(super) fn expect(&self) {
        self.state().open += 1;
    }

    /// It is not to come after all.
    pub(super) fn unexpect(&self) {
        let mut state = self.state();
        state.open = state.open.saturating_sub(1);
    }

    /// Waits so long at most. Returns whether every answer has come.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        let waited = self.shared.1.wait_timeout_while(self.state(), limit, |state| state.open > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.open == 0
    }

    pub(super) fn has_failed(&self) -> bool {
        self.state().failed.is_some()
    }

    pub(super) fn failure(&self) -> Option<Failed> {
        self.state().failed.clone()
    }
}

/// What no repetition changes.
fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::MessageSizeTooLarge
            | Code::InvalidMessageSize
            | Code::InvalidMessage
            | Code::InvalidRecord
            | Code::InvalidTimestamp
            | Code::InvalidTopic
            | Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownPartition
            | Code::PolicyViolation
    )
}

impl ClientContext for Deliveries {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, _text: &str) {}

    fn stats(&self, _statistics: Statistics) {}

    fn error(&self, error: KafkaError, reason: &str) {
        self.said.note(&error, reason);
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let mut state = self.state();
        if let Err((failed, record)) = result {
            let code = failed.rdkafka_error_code().unwrap_or(Code::Fail);
            let is_refusal = is_refusal(code);
            if state.failed.as_ref().is_none_or(|known| is_refusal && !known.is_refusal) {
                state.failed = Some(Failed { topic: record.topic().to_owned(), code, is_refusal });
            }
        }
        state.open = state.open.saturating_sub(1);
        if state.open == 0 {
            self.shared.1.notify_all();
        }
    }
}
