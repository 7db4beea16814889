//! A member of a producer group: whom a broker asks what became of a transaction.
//!
//! The broker's question comes over a connection that has announced the group, and the library
//! hands it to a producer of its own. So there is one, which sends nothing: half messages and how
//! they end go the way of all requests.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use oncemq_core::{Decision, Error};
use rocketmq_client_rust::{LocalTransactionState, TransactionListener, TransactionMQProducer};
use rocketmq_model::common::message::MessageTrait;
use rocketmq_model::common::message::message_ext::MessageExt;

use super::real::{client_config, client_hook, engine, fault, stored};
use super::{Fault, Judge};
use crate::config::Config;

/// Between two announcements: a broker that was started anew does not know the group before.
const HEARTBEAT_MILLIS: u32 = 10_000;
/// Questions that are answered at once; others wait.
const JUDGES: u32 = 4;

/// Dropped, it leaves the group a little later.
pub(crate) struct Member {
    producer: Option<TransactionMQProducer>,
    instance: String,
}

impl Member {
    /// Announces itself, within seconds, to every broker that keeps one of the topics.
    pub(crate) async fn join(
        settings: &Config,
        group: &str,
        topics: &[Arc<str>],
        judge: Arc<dyn Judge>,
    ) -> Result<Self, Fault> {
        let engine = engine().map_err(|why: Error| Fault::NotSent(why.to_string()))?;
        // Told from those of other machines, too, with the same process id.
        let word = RandomState::new().build_hasher().finish();
        let instance = format!("oncemq-{}-{word:016x}", std::process::id());
        let mut config = client_config(settings, &instance);
        config.heartbeat_broker_interval = HEARTBEAT_MILLIS;
        let mut builder = TransactionMQProducer::builder(engine.client.clone())
            .client_config(config)
            .producer_group(group)
            .topics(topics.iter().map(|topic| topic.to_string()).collect())
            .check_thread_pool_min_size(1)
            .check_thread_pool_max_size(JUDGES)
            .transaction_listener(Listener { judge });
        if let Some(hook) = client_hook(settings) {
            builder = builder.rpc_hook(hook);
        }
        let mut producer = builder.build();
        producer.start().await.map_err(fault)?;
        Ok(Self { producer: Some(producer), instance })
    }

    /// What its name at the broker ends with.
    pub(crate) fn instance(&self) -> &str {
        &self.instance
    }

    /// Leaves the group.
    pub(crate) async fn leave(mut self) {
        if let Some(mut producer) = self.producer.take() {
            producer.shutdown().await;
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let Some(mut producer) = self.producer.take() else { return };
        if let Ok(engine) = engine() {
            let group = engine.client.service_context().task_group().clone();
            // Refused only when the process ends, and then nobody misses it.
            let _ = group.spawn_service("oncemq-leave", async move { producer.shutdown().await });
        }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("instance", &self.instance).finish_non_exhaustive()
    }
}

struct Listener {
    judge: Arc<dyn Judge>,
}

impl TransactionListener for Listener {
    /// Called for what the library's producer sends, which is nothing.
    fn execute_local_transaction(
        &self,
        _: &dyn MessageTrait,
        _: Option<&(dyn std::any::Any + Send + Sync)>,
    ) -> LocalTransactionState {
        LocalTransactionState::Unknown
    }

    fn check_local_transaction(&self, half: &MessageExt) -> LocalTransactionState {
        match self.judge.decide(&stored(half.clone())) {
            Decision::Committed => LocalTransactionState::CommitMessage,
            Decision::RolledBack => LocalTransactionState::RollbackMessage,
            Decision::Open => LocalTransactionState::Unknown,
        }
    }
}
