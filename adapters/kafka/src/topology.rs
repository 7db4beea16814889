//! Topics: their names, and making or checking them.

use std::sync::Arc;
use std::time::Duration;

use oncemq_core::{ConsumerSpec, Error, ErrorKind, Ordering, Subscription, Topology};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::metadata::MetadataTopic;

use crate::client::{self, Quiet};
use crate::config::{Config, config};
use crate::error;
use crate::publisher::Producer;

/// What a copy may be longer than its original: our headers and the diagnostic text.
const COPY_EXTRA: usize = 64 * 1024;

/// The topics of one subscription.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) work: Arc<str>,
    pub(crate) dead: Arc<str>,
    /// One topic a rung, with its delay.
    pub(crate) rungs: Vec<(Duration, Arc<str>)>,
}

impl Names {
    pub(crate) fn new(spec: &ConsumerSpec, subscription: &Subscription) -> Result<Self, Error> {
        if let Some(queue) = &subscription.queue {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("queue {queue}: Kafka has no queues; name the topic alone"),
            ));
        }
        check_name("consumer", &spec.name)?;
        let work = &subscription.topic;
        check_name("topic", work)?;
        let own = format!("{}.{work}", spec.name);
        let mut rungs: Vec<(Duration, Arc<str>)> = Vec::new();
        if subscription.ordering == Ordering::Free {
            for rung in &subscription.rungs {
                // Two rungs of one delay share a topic.
                if rungs.iter().all(|(delay, _)| delay != rung) {
                    rungs.push((*rung, format!("{own}.retry.{}ms", millis(*rung)).into()));
                }
            }
        }
        let names = Self { work: work.clone(), dead: format!("{own}.dead").into(), rungs };
        for name in names.rungs.iter().map(|(_, name)| name).chain([&names.dead]) {
            check_name("topic", name)?;
        }
        Ok(names)
    }

    /// The topic of the smallest rung that waits at least so long.
    pub(crate) fn rung(&self, after: Duration) -> Option<&Arc<str>> {
        let fits = self.rungs.iter().filter(|(delay, _)| *delay >= after);
        fits.min_by_key(|(delay, _)| *delay).map(|(_, name)| name)
    }

    fn own(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rungs.iter().map(|(_, name)| name).chain([&self.dead])
    }
}

/// A delay in milliseconds, rounded up: it is a floor.
pub(crate) fn millis(delay: Duration) -> u128 {
    delay.as_nanos().div_ceil(1_000_000)
}

/// Kafka's own rule, which the broker applies to topics only: a group of another name would
/// have topics that cannot be made.
fn check_name(what: &str, name: &str) -> Result<(), Error> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > 249 || name == "." || name == ".." || !name.chars().all(fits) {
        return Err(config(format!(
            "the {what} name {name:?} does not fit Kafka; use up to 249 of a-z, A-Z, 0-9, '.', '_' and '-'"
        )));
    }
    Ok(())
}

/// What a topic is like.
#[derive(Debug, Clone, Copy)]
struct Seen {
    partitions: i32,
}

/// A connection to make and check topics with.
pub(crate) struct Topics {
    /// Asks, since an administrator never hears why nobody answers.
    asker: Producer,
    config: Arc<Config>,
}

type Admin = AdminClient<Quiet>;

impl Topics {
    pub(crate) fn connect(config: Arc<Config>) -> Result<Self, Error> {
        Ok(Self { asker: Producer::new(config.clone())?, config })
    }

    /// Makes what is missing. Returns the number of partitions.
    pub(crate) async fn declare(&self, names: &Names) -> Result<i32, Error> {
        let found = self.look(&names.work).await?;
        let admin: Admin = client::create(&self.config.client(), Quiet::default())?;
        let seen = match (found, self.config.partitions) {
            (Some(seen), _) => seen,
            (None, Some(partitions)) => {
                self.create(&admin, &names.work, partitions, &[]).await?;
                Seen { partitions }
            }
            (None, None) => return Err(missing(&names.work, true)),
        };
        let limit = self.limit_of(&admin, &names.work).await?;
        let room = limit.map(|limit| limit.saturating_add(COPY_EXTRA).to_string());
        for name in names.own() {
            if self.look(name).await?.is_none() {
                let settings: Vec<_> = room.iter().map(|room| ("max.message.bytes", room.as_str())).collect();
                self.create(&admin, name, seen.partitions, &settings).await?;
            }
        }
        Ok(seen.partitions)
    }

    /// Checks that everything is there. Returns the number of partitions.
    pub(crate) async fn verify(&self, names: &Names) -> Result<i32, Error> {
        let seen = self.look(&names.work).await?.ok_or_else(|| missing(&names.work, false))?;
        for name in names.own() {
            self.look(name).await?.ok_or_else(|| missing(name, false))?;
        }
        Ok(seen.partitions)
    }

    /// Makes or checks a topic that nothing else belongs to.
    pub(crate) async fn plain(&self, topic: &str, topology: Topology) -> Result<(), Error> {
        check_name("topic", topic)?;
        let declared = topology == Topology::Declare;
        if topology == Topology::Trust || self.look(topic).await?.is_some() {
            return Ok(());
        }
        match self.config.partitions.filter(|_| declared) {
            Some(partitions) => {
                let admin: Admin = client::create(&self.config.client(), Quiet::default())?;
                self.create(&admin, topic, partitions, &[]).await
            }
            None => Err(missing(topic, declared)),
        }
    }

    /// The topic, if there is one.
    async fn look(&self, topic: &str) -> Result<Option<Seen>, Error> {
        let name = topic.to_owned();
        self.asker
            .metadata(Some(topic), move |found| found.map_or(Ok(None), |found| seen(&name, found)))
            .await
    }

    async fn create(
        &self,
        admin: &Admin,
        topic: &str,
        partitions: i32,
        settings: &[(&str, &str)],
    ) -> Result<(), Error> {
        let replication = TopicReplication::Fixed(self.config.replication.unwrap_or(-1));
        let mut new = NewTopic::new(topic, partitions, replication);
        for (name, value) in settings {
            new = new.set(name, value);
        }
        let options = AdminOptions::new()
            .request_timeout(Some(self.config.connect_timeout))
            .operation_timeout(Some(self.config.connect_timeout));
        let what = format!("creating topic {topic}");
        let answers = admin.create_topics([&new], &options).await;
        let answers = answers.map_err(|refused| error::from_client(&what, &refused))?;
        for answer in answers {
            match answer {
                // Another instance was faster.
                Ok(_) | Err((_, Code::TopicAlreadyExists)) => {}
                Err((_, code @ (Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed))) => {
                    let text = format!(
                        "this account may not create topic {topic} in Kafka ({code}); grant it CREATE, or create the \
                         topic and use Topology::Verify"
                    );
                    return Err(Error::new(ErrorKind::Access, text));
                }
                Err((_, code)) => {
                    let refused = KafkaError::AdminOp(code);
                    return Err(error::from_client(&what, &refused));
                }
            }
        }
        self.await_topic(topic).await
    }

    /// A topic is known to every broker a moment after it was made.
    async fn await_topic(&self, topic: &str) -> Result<(), Error> {
        let end = tokio::time::Instant::now() + self.config.connect_timeout;
        while self.look(topic).await?.is_none() {
            if tokio::time::Instant::now() >= end {
                let text = format!("topic {topic} was created but does not appear in Kafka");
                return Err(Error::new(ErrorKind::Topology, text));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// The topic's `max.message.bytes`, if this account may know it.
    async fn limit_of(&self, admin: &Admin, topic: &str) -> Result<Option<usize>, Error> {
        let options = AdminOptions::new().request_timeout(Some(self.config.connect_timeout));
        let asked = admin.describe_configs([&ResourceSpecifier::Topic(topic)], &options).await;
        let resources =
            asked.map_err(|refused| error::from_client(&format!("describing topic {topic}"), &refused))?;
        let resource = resources.into_iter().next().and_then(Result::ok);
        let entry = resource.as_ref().and_then(|resource| resource.get("max.message.bytes"));
        Ok(entry.and_then(|entry| entry.value.as_ref()?.parse().ok()))
    }
}

fn seen(topic: &str, found: &MetadataTopic) -> Result<Option<Seen>, Error> {
    let partitions = i32::try_from(found.partitions().len()).unwrap_or(i32::MAX);
    match found.error().map(Code::from) {
        None => Ok(Some(Seen { partitions })),
        // Its leader is being chosen: it is there.
        Some(Code::LeaderNotAvailable) => Ok(Some(Seen { partitions: partitions.max(1) })),
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Ok(None),
        Some(Code::TopicAuthorizationFailed) => Err(Error::new(
            ErrorKind::Access,
            format!("this account may not see topic {topic} in Kafka; grant it DESCRIBE, READ and WRITE"),
        )),
        Some(code) => {
            let refused = KafkaError::MetadataFetch(code);
            Err(error::from_client(&format!("looking for topic {topic}"), &refused))
        }
    }
}

fn missing(topic: &str, declared: bool) -> Error {
    let fix = match declared {
        true => "create it, or say how many partitions it is to have with partitions(n) or ?partitions=n",
        false => "create it, or use Topology::Declare",
    };
    Error::new(ErrorKind::Topology, format!("there is no topic {topic} in Kafka; {fix}"))
}
