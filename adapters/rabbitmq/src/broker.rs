//! The broker as the runtime sees it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncemq_core::url::Time;
use oncemq_core::{
    Broker, Capabilities, ConsumerSpec, Error, Ordering, Plan, Publisher, Source, Subscription, Topology,
};

use crate::config::{Config, QueueType, config};
use crate::connection::connect;
use crate::publisher::RabbitPublisher;
use crate::source::{self, LaneSpec};
use crate::topology::{self, Limit, Names};

/// A RabbitMQ broker, version 3.10 or later.
///
/// `Debug` shows address, user and virtual host, never the password.
#[derive(Debug, Clone)]
pub struct RabbitBroker {
    config: Config,
}

impl RabbitBroker {
    /// A broker from a URL, `amqp://user:password@host:port/vhost`. Special characters are
    /// percent-encoded; without a virtual host it is `/`. `amqps://` needs the feature `tls`.
    ///
    /// Options follow a `?`, joined by `&`:
    ///
    /// | option | meaning |
    /// |---|---|
    /// | `heartbeat` | seconds; 10 unless given, 0 for none |
    /// | `connection_timeout` | as `10s`, or milliseconds |
    /// | `publish_timeout` | see [`publish_timeout`](Self::publish_timeout) |
    /// | `consumer_timeout` | see [`consumer_timeout`](Self::consumer_timeout) |
    /// | `queue_type` | `quorum` or `classic`, see [`queue_type`](Self::queue_type) |
    /// | `single_active` | `true`, see [`assert_single_active`](Self::assert_single_active) |
    /// | `cacertfile` | see [`ca_file`](Self::ca_file) |
    ///
    /// # Errors
    /// [`Config`](oncemq_core::ErrorKind::Config) for a malformed URL or an unknown option,
    /// [`Scheme`](oncemq_core::ErrorKind::Scheme) for another scheme, or `amqps` without its
    /// feature. The error never contains the password.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        Ok(Self { config: Config::from_url(url)? })
    }

    /// The type of the work queues and dead-letter queues that are declared; quorum unless
    /// set. Delay queues are always quorum queues.
    pub fn queue_type(mut self, queue_type: QueueType) -> Self {
        self.config.queue_type = queue_type;
        self
    }

    /// How long the server lets a delivery out, its `consumer_timeout`; 30 minutes unless
    /// set, as on the server. A deferred delivery is given back at half of it.
    pub fn consumer_timeout(mut self, timeout: Duration) -> Self {
        self.config.consumer_timeout = timeout;
        self
    }

    /// How long a published message may wait for its confirmation; 30 seconds unless set.
    pub fn publish_timeout(mut self, timeout: Duration) -> Self {
        self.config.publish_timeout = timeout;
        self
    }

    /// Says that queues which are not declared here have `x-single-active-consumer`. Without
    /// it ordered consumption of such a queue is refused: the server does not tell.
    pub fn assert_single_active(mut self) -> Self {
        self.config.single_active = true;
        self
    }

    /// A PEM file with authorities to trust for `amqps` beside the system's.
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.config.ca_file = Some(file.into());
        self
    }

    fn lanes(&self, spec: &ConsumerSpec) -> Result<Vec<LaneSpec>, Error> {
        let shared = Arc::new(self.config.clone());
        let prefetch =
            u16::try_from(spec.in_flight).ok().filter(|prefetch| *prefetch > 0).ok_or_else(|| {
                config(format!("in_flight is {}; RabbitMQ takes a prefetch of 1 to 65535", spec.in_flight))
            })?;
        let lane = |subscription: &Subscription| {
            Ok(LaneSpec {
                config: shared.clone(),
                names: Names::new(spec, subscription)?,
                topology: spec.topology,
                prefetch,
                single_active: subscription.ordering == Ordering::Ordered,
            })
        };
        let lanes = spec.subscriptions.iter().map(lane).collect::<Result<Vec<_>, Error>>()?;
        topology::apart(lanes.iter().map(|lane| &lane.names))?;
        Ok(lanes)
    }

    /// Refuses what cannot work, warns of what can go wrong.
    fn check(&self, spec: &ConsumerSpec, plan: &mut Plan) -> Result<(), Error> {
        self.config.check()?;
        for subscription in &spec.subscriptions {
            let (topic, limit) = (&subscription.topic, self.config.consumer_timeout);
            if subscription.timeout > limit {
                plan.warn(format!(
                    "topic {topic}: a handler may run {}, but RabbitMQ takes a delivery back after {} \
                     and delivers it again; shorten the handler timeout or raise consumer_timeout on the \
                     server and here",
                    Time(subscription.timeout),
                    Time(limit)
                ));
            }
            if subscription.ordering == Ordering::Ordered {
                self.check_ordered(spec, subscription)?;
            }
        }
        Ok(())
    }

    fn check_ordered(&self, spec: &ConsumerSpec, subscription: &Subscription) -> Result<(), Error> {
        let topic = &subscription.topic;
        let declared = spec.topology == Topology::Declare && subscription.queue.is_none();
        if !declared && !self.config.single_active {
            return Err(config(format!(
                "topic {topic} is ordered, which needs a queue with x-single-active-consumer; RabbitMQ does \
                 not tell whether it has it: say so with assert_single_active(), or let the queue be declared"
            )));
        }
        let ladder = subscription.rungs.iter().fold(Duration::ZERO, |sum, rung| sum.saturating_add(*rung));
        if ladder >= self.config.hold_max() {
            return Err(config(format!(
                "topic {topic} is ordered and its retry ladder waits {} in place, but RabbitMQ takes a \
                 delivery back after {}; keep the ladder under half of it",
                Time(ladder),
                Time(self.config.consumer_timeout)
            )));
        }
        Ok(())
    }
}

#[async_trait]
impl Broker for RabbitBroker {
    fn capabilities(&self) -> Capabilities {
        Capabilities::queue("rabbitmq").redelivered_flag(true).durable_delay(true)
    }

    async fn prepare(&self, spec: &ConsumerSpec, plan: &mut Plan) -> Result<(), Error> {
        self.check(spec, plan)?;
        let lanes = self.lanes(spec)?;
        let connection = connect(&self.config, &format!("{} setup", spec.name)).await?;
        for (place, lane) in lanes.iter().enumerate() {
            let names = &lane.names;
            match spec.topology {
                Topology::Declare => {
                    let limit = lane.declare(&connection).await?;
                    describe_limit(names, limit, plan);
                }
                Topology::Verify => topology::verify(&connection, names).await?,
                Topology::Trust => {}
            }
            describe(lane, plan);
            plan.dead_letters(place, format!("queue {}", names.dead));
        }
        // Nothing depends on a clean end of a connection that did its work.
        let _ = tokio::time::timeout(self.config.connect_timeout, connection.close(200, "done".into())).await;
        Ok(())
    }

    async fn subscribe(&self, spec: &ConsumerSpec) -> Result<Box<dyn Source>, Error> {
        let lanes = self.lanes(spec)?;
        Ok(Box::new(source::start(Arc::new(self.config.clone()), spec.name.clone(), lanes).await?))
    }

    async fn publisher(&self) -> Result<Arc<dyn Publisher>, Error> {
        self.config.check()?;
        Ok(Arc::new(RabbitPublisher::connect(Arc::new(self.config.clone())).await?))
    }
}

fn describe(lane: &LaneSpec, plan: &mut Plan) {
    let names = &lane.names;
    let word = match lane.topology {
        Topology::Declare => "declared",
        Topology::Verify => "verified to exist (arguments are not seen without the right to configure)",
        Topology::Trust => "trusted, not looked at",
    };
    let own = match &names.exchange {
        Some(exchange) => format!("exchange {exchange} (fanout) bound to queue {}", names.work),
        None => format!("queue {}, which was there before", names.work),
    };
    let mut line = format!("{word}: {own}");
    for (_, rung) in &names.rungs {
        line.push_str(&format!(", delay queue {rung}"));
    }
    line.push_str(&format!(", dead letters in queue {}", names.dead));
    plan.topology(line);
}

fn describe_limit(names: &Names, limit: Limit, plan: &mut Plan) {
    let work = &names.work;
    match limit {
        Limit::None => {}
        Limit::Unseen => plan.topology(format!(
            "queue {work} is not looked into: a quorum queue without x-delivery-limit = -1 drops a message that \
             was returned 20 times"
        )),
        Limit::Default => plan.warn(format!(
            "queue {work} was made without x-delivery-limit = -1: RabbitMQ 4.0 and later drop a message that was \
             returned 20 times; delete the queue when it is empty, it is then made anew"
        )),
    }
}
