//! The settings of one topic.

use std::sync::Arc;
use std::time::Duration;

use super::Consumer;
use crate::plan::{Rung, TopicPlan};
use crate::retry::End;
use crate::route::{Guarded, Route};
use crate::runtime::{Shared, TopicEnv, Unguarded};
use crate::url::Time;
use crate::{Codec, Context, Error, Handler, Json, Key, MissingKey, Ordering, RetryPolicy, Subscription};

/// The settings of a topic; [`handler`](Self::handler) ends them.
#[derive(Debug)]
pub struct TopicBuilder {
    consumer: Consumer,
    settings: Settings,
}

#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) topic: Arc<str>,
    pub(super) other_names: Vec<(String, Arc<str>)>,
    pub(super) kind: Option<Arc<str>>,
    pub(super) queue: Option<Arc<str>>,
    pub(super) key: Option<Key>,
    pub(super) order_by: Option<Key>,
    pub(super) conflict: Option<Key>,
    pub(super) missing_key: MissingKey,
    pub(super) policy: RetryPolicy,
    pub(super) ordering: Ordering,
    pub(super) timeout: Duration,
    pub(super) crash_ceiling: u32,
}

/// A topic with its handler.
pub(super) struct Topic {
    pub(super) settings: Settings,
    pub(super) route: Arc<dyn Route>,
}

impl std::fmt::Debug for Topic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.settings.fmt(f)
    }
}

impl TopicBuilder {
    pub(super) fn new(consumer: Consumer, topic: Arc<str>) -> Self {
        let settings = Settings {
            topic,
            other_names: Vec::new(),
            kind: None,
            queue: None,
            key: None,
            order_by: None,
            conflict: None,
            missing_key: MissingKey::default(),
            policy: RetryPolicy::default(),
            ordering: Ordering::default(),
            timeout: Duration::from_secs(30),
            crash_ceiling: 3,
        };
        Self { consumer, settings }
    }

    /// What says that two deliveries mean the same business event.
    pub fn key(mut self, key: Key) -> Self {
        self.settings.key = Some(key);
        self
    }

    /// What becomes of a message without a key: a dead letter unless set.
    pub fn missing_key(mut self, policy: MissingKey) -> Self {
        self.settings.missing_key = policy;
        self
    }

    /// Fields that must be the same when a key comes again; a [`Key::fingerprint`]. A done
    /// key that comes with other values is a key conflict and becomes a dead letter.
    pub fn conflict_on(mut self, fields: Key) -> Self {
        self.settings.conflict = Some(fields);
        self
    }

    /// The kind under which the records of this topic are kept; the topic's name unless
    /// set. Two topics that carry the same events share one kind.
    pub fn kind(mut self, kind: impl Into<Arc<str>>) -> Self {
        self.settings.kind = Some(kind.into());
        self
    }

    /// The name of the topic on one broker, where it must be another.
    pub fn topic_on(mut self, broker: impl Into<String>, topic: impl Into<Arc<str>>) -> Self {
        self.settings.other_names.push((broker.into(), topic.into()));
        self
    }

    /// Takes an existing queue instead of `<consumer>.<topic>`, on queue brokers.
    pub fn queue(mut self, queue: impl Into<Arc<str>>) -> Self {
        self.settings.queue = Some(queue.into());
        self
    }

    /// When failed messages are tried again; `"5s 1m 10m dead-letter"` unless set.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.settings.policy = policy;
        self
    }

    /// What keeps messages in order: the record key where there is one, or else the
    /// idempotency key, unless set.
    pub fn order_by(mut self, key: Key) -> Self {
        self.settings.order_by = Some(key);
        self
    }

    /// Whether later messages of a key may overtake a failing one; they may unless set.
    pub fn ordering(mut self, ordering: Ordering) -> Self {
        self.settings.ordering = ordering;
        self
    }

    /// The longest a handler may run; 30 seconds unless set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// How many marked runs may end the process before the message is dead-lettered; 3
    /// unless set, and at least 1.
    pub fn crash_ceiling(mut self, runs: u32) -> Self {
        self.settings.crash_ceiling = runs;
        self
    }

    /// Ends the topic with a guarded handler, as an inbox makes it.
    pub fn handler(self, handler: impl Guarded) -> Consumer {
        self.with_route(handler.into_route())
    }

    /// Ends the topic with a handler that runs for every delivery, duplicates included.
    pub fn unguarded<H, M>(self, handler: H) -> Consumer
    where
        H: Handler<Context, M>,
        M: Send + 'static,
        Json: Codec<M>,
    {
        self.unguarded_with(Json, handler)
    }

    /// As [`unguarded`](Self::unguarded), with another codec.
    pub fn unguarded_with<C, H, M>(self, codec: C, handler: H) -> Consumer
    where
        H: Handler<Context, M>,
        M: Send + 'static,
        C: Codec<M>,
    {
        self.with_route(Arc::new(Unguarded::new(handler, codec)))
    }

    fn with_route(mut self, route: Arc<dyn Route>) -> Consumer {
        self.consumer.topics.push(Topic { settings: self.settings, route });
        self.consumer
    }
}

impl Settings {
    pub(super) fn kind(&self) -> Arc<str> {
        self.kind.clone().unwrap_or_else(|| self.topic.clone())
    }

    fn name_on(&self, broker: &str) -> Arc<str> {
        let other = self.other_names.iter().find(|(name, _)| name == broker);
        other.map_or_else(|| self.topic.clone(), |(_, topic)| topic.clone())
    }
}

impl Topic {
    pub(super) fn subscription(&self, broker: &str) -> Subscription {
        let settings = &self.settings;
        let mut subscription = Subscription::new(settings.name_on(broker));
        subscription.queue = settings.queue.clone();
        subscription.rungs = settings.policy.rungs().to_vec();
        subscription.ordering = settings.ordering;
        subscription.timeout = settings.timeout;
        subscription
    }

    pub(super) fn plan(&self, broker: &str) -> TopicPlan {
        let settings = &self.settings;
        let guarantee = match self.route.record() {
            Some(record) => {
                format!("each key at most once within {} ({})", Time(record.retention), record.store)
            }
            None => "unguarded: at least once".to_owned(),
        };
        TopicPlan {
            topic: settings.name_on(broker).to_string(),
            rungs: settings.policy.rungs().iter().copied().map(Rung::exact).collect(),
            end: match settings.policy.end() {
                End::DeadLetter => "then dead letter".to_owned(),
                End::KeepTrying => "then the last delay for ever".to_owned(),
            },
            ordering: match settings.ordering {
                Ordering::Free => "free".to_owned(),
                Ordering::Ordered => "ordered".to_owned(),
            },
            guarantee,
            dead_letters: None,
        }
    }

    pub(super) async fn check_store(&self) -> Result<(), Error> {
        self.route.check().await
    }

    pub(super) fn into_env(self, shared: &Arc<Shared>) -> (Arc<TopicEnv>, Arc<dyn Route>) {
        let kind = self.settings.kind();
        let settings = self.settings;
        let env = TopicEnv {
            shared: shared.clone(),
            kind,
            key: settings.key,
            order_by: settings.order_by,
            conflict: settings.conflict,
            missing_key: settings.missing_key,
            policy: settings.policy,
            ordering: settings.ordering,
            timeout: settings.timeout,
            crash_ceiling: settings.crash_ceiling,
        };
        (Arc::new(env), self.route)
    }
}
