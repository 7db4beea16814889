//! The broker as the runtime sees it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncemq_core::plan::Rung;
use oncemq_core::{
    Broker, Capabilities, ConsumerSpec, Decision, Error, Ordering, Plan, Publisher, Source, Topology,
};

use crate::cluster::Cluster;
use crate::config::{Config, Start, config};
use crate::publisher::RocketmqPublisher;
use crate::source;
use crate::topology::{self, Levels, Names};
use crate::transactions::{Check, TransactionId, TransactionalPublisher};

/// A RocketMQ cluster, version 5, by its name servers.
///
/// `Debug` shows addresses and the access key, never the secret key.
#[derive(Debug, Clone)]
pub struct RocketmqBroker {
    config: Config,
}

impl RocketmqBroker {
    /// A cluster from a URL, `rocketmq://host:9876` or
    /// `rocketmq://key:secret@host1:9876,host2:9876`: the name servers, and with the feature
    /// `acl` an access key and its secret key. Special characters are percent-encoded.
    /// `rocketmqs://` needs the feature `tls`.
    ///
    /// Options follow a `?`, joined by `&`:
    ///
    /// | option | meaning |
    /// |---|---|
    /// | `queues` | see [`queues`](Self::queues) |
    /// | `start` | `earliest` or `latest`, see [`start`](Self::start) |
    /// | `publish_timeout` | see [`publish_timeout`](Self::publish_timeout) |
    /// | `connect_timeout` | how long a topic that was made may take to appear, and a producer group to be known, as `10s` |
    /// | `revoke_timeout` | see [`revoke_timeout`](Self::revoke_timeout) |
    /// | `commit_interval`, `commit_each` | see [`commit_interval`](Self::commit_interval) |
    /// | `delay_levels` | the broker's `messageDelayLevel`, as `1s+5s+10s`, for an account that may not read it; an error if what is read differs |
    /// | `tls_ca` | a file of certificates in PEM to trust instead of the system's |
    /// | `model` | `clustering`; `broadcasting` is refused |
    ///
    /// # Errors
    /// [`Config`](oncemq_core::ErrorKind::Config) for a malformed URL or an unknown option,
    /// [`Unsupported`](oncemq_core::ErrorKind::Unsupported) for broadcasting,
    /// [`Scheme`](oncemq_core::ErrorKind::Scheme) for another scheme, or `rocketmqs` without
    /// its feature. The error never contains the secret key.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        Ok(Self { config: Config::from_url(url)? })
    }

    /// Queues, on each broker, of a topic that a consumer or its [`Topology::Declare`] finds
    /// missing: 1 to 1,024, else the start is a
    /// [`Config`](oncemq_core::ErrorKind::Config) error. Without it a missing topic is an error.
    pub fn queues(mut self, queues: u16) -> Self {
        self.config.queues = Some(queues.into());
        self
    }

    /// Where a consumer begins that has never committed anything in a topic; the oldest message
    /// unless set. Queues that are added later begin at their first message.
    pub fn start(mut self, start: Start) -> Self {
        self.config.start = start;
        self
    }

    /// How long a published message may wait for its confirmation; 30 seconds unless set. Within
    /// it a message without an answer is sent again under the same `UNIQ_KEY`. It also bounds each
    /// try to send a message back. Zero is a [`Config`](oncemq_core::ErrorKind::Config) error.
    pub fn publish_timeout(mut self, timeout: Duration) -> Self {
        self.config.publish_timeout = timeout;
        self
    }

    /// How long handlers of an ordered topic may finish when their queue goes to another member;
    /// 10 seconds unless set. Queues of other topics leave at once: the other member begins
    /// without asking.
    pub fn revoke_timeout(mut self, timeout: Duration) -> Self {
        self.config.revoke_timeout = timeout;
        self
    }

    /// The time between two commits of offsets; half a second unless set. They are also
    /// committed after many messages, when a queue leaves, and at the end. A crash repeats what
    /// was not committed, which the record answers. Zero is a
    /// [`Config`](oncemq_core::ErrorKind::Config) error.
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.config.commit_interval = interval;
        self
    }

    /// Commits after every message that moves the lowest unfinished offset: one request each,
    /// and little to repeat after a crash.
    pub fn commit_each(mut self) -> Self {
        self.config.commit_each = true;
        self
    }

    /// Opens a publisher of messages that appear if and only if a local transaction commits.
    /// Returns when every broker that keeps one of the topics knows this process as a member of
    /// the producer group.
    ///
    /// `group` is permanent: after a crash the brokers ask a process of this group what became
    /// of its transactions. A group is for one database and for this library's publishers only,
    /// since any member may be asked. `topics` are all that are published to.
    ///
    /// `check` answers such questions, from the database: with `Decisions::decide` of
    /// `oncemq-idempotency`, say. It runs on the current runtime and is bounded to ten seconds.
    /// [`Open`](Decision::Open) and an error have the broker ask again. It must never call a
    /// transaction rolled back that can still commit.
    ///
    /// # Errors
    /// [`Config`](oncemq_core::ErrorKind::Config) for a name that does not fit or no topic,
    /// [`Topology`](oncemq_core::ErrorKind::Topology) for a topic that is missing,
    /// [`Access`](oncemq_core::ErrorKind::Access) for a wrong key,
    /// [`Connection`](oncemq_core::ErrorKind::Connection) if no name server answers, or if a broker
    /// does not know the group within the connect timeout.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub async fn transactions<C, Fut>(
        &self,
        group: &str,
        topics: &[&str],
        check: C,
    ) -> Result<TransactionalPublisher, Error>
    where
        C: Fn(TransactionId) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Decision, Error>> + Send + 'static,
    {
        self.config.check()?;
        let check: Check = Arc::new(move |id| Box::pin(check(id)));
        TransactionalPublisher::open(Arc::new(self.config.clone()), group, topics, check).await
    }

    fn names(&self, spec: &ConsumerSpec) -> Result<Names, Error> {
        self.config.check()?;
        if spec.in_flight == 0 {
            return Err(config("in_flight is 0; allow at least 1"));
        }
        Names::new(spec)
    }

    async fn prepare_with(
        &self,
        cluster: &Arc<Cluster>,
        spec: &ConsumerSpec,
        plan: &mut Plan,
    ) -> Result<(), Error> {
        let names = self.names(spec)?;
        let (levels, supposed) = Levels::find(cluster, &self.config).await?;
        if supposed {
            plan.warn(
                "this account may not read the broker's delay levels; the usual ones are supposed, so retries may come \
                 earlier than asked: say delay_levels=… in the URL",
            );
        }
        for (place, subscription) in spec.subscriptions.iter().enumerate() {
            let rungs = match subscription.ordering {
                Ordering::Free => levels.of_rungs(&subscription.topic, &subscription.rungs)?,
                // Waited for in this process.
                Ordering::Ordered => subscription.rungs.iter().map(|rung| (*rung, *rung)).collect(),
            };
            if let Some(topic) = plan.topics.get_mut(place) {
                topic.rungs = rungs.into_iter().map(|(asked, actual)| Rung::rounded(asked, actual)).collect();
                topic.dead_letters = Some(format!("topic {}", names.dead));
            }
        }
        let counts = match spec.topology {
            Topology::Declare => Some(topology::declare(cluster, &self.config, &names).await?),
            Topology::Verify => Some(topology::verify(cluster, &names).await?),
            Topology::Trust => None,
        };
        if counts.is_some() {
            topology::check_settings(cluster, spec, &names).await?;
            topology::check_members(cluster, &names).await?;
        }
        plan.topology(describe(spec.topology, &names, counts.as_deref()));
        plan.topology(
            "queues that are added later are consumed within seconds; message groups move to other queues then, and are \
             out of order until the old ones are empty",
        );
        Ok(())
    }
}

#[async_trait]
impl Broker for RocketmqBroker {
    fn capabilities(&self) -> Capabilities {
        Capabilities::log("rocketmq").redelivered_flag(true).durable_delay(true).key_order(true)
    }

    async fn prepare(&self, spec: &ConsumerSpec, plan: &mut Plan) -> Result<(), Error> {
        // Before anything is asked.
        self.names(spec)?;
        let cluster = Arc::new(Cluster::connect(Arc::new(self.config.clone()))?);
        let prepared = self.prepare_with(&cluster, spec, plan).await;
        cluster.close().await;
        prepared
    }

    async fn subscribe(&self, spec: &ConsumerSpec) -> Result<Box<dyn Source>, Error> {
        let names = self.names(spec)?;
        Ok(Box::new(source::start(Arc::new(self.config.clone()), spec, names).await?))
    }

    async fn publisher(&self) -> Result<Arc<dyn Publisher>, Error> {
        self.config.check()?;
        Ok(Arc::new(RocketmqPublisher::connect(Arc::new(self.config.clone())).await?))
    }
}

fn describe(topology: Topology, names: &Names, counts: Option<&[usize]>) -> String {
    let word = match topology {
        Topology::Declare => "declared",
        Topology::Verify => "verified",
        Topology::Trust => "trusted, not looked at",
    };
    let mut line = format!("{word}: consumer group {}", names.group);
    for (place, topic) in names.works.iter().enumerate() {
        line.push_str(&format!(", topic {topic}"));
        if let Some(count) = counts.and_then(|counts| counts.get(place)) {
            line.push_str(&format!(" with {count} queues"));
        }
    }
    line.push_str(&format!(", retries in topic {}, dead letters in topic {}", names.retry, names.dead));
    line
}
