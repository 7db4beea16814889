//! Where deliveries come from.
//!
//! ```text
//! Kafka ─► thread that polls ─► partitions ─► poll_events
//!                                  ▲   └─ watermark ─► thread that commits ─► Kafka
//!                                  └── answers, from any thread; copies are confirmed first
//! ```

mod commits;
pub(crate) mod context;
mod ends;
mod metadata;
mod part;
mod poller;
mod rebalance;
mod shared;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use oncemq_core::partitions::Copies;
use oncemq_core::{ConsumerSpec, Error, Event, Health, Settle, Source, Timer};
use rdkafka::consumer::Consumer;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

pub(crate) use shared::Shared;

use crate::client::{self, thread};
use crate::config::Config;
use crate::error;
use crate::publisher::Producer;
use crate::settle::Desk;
use crate::topology::Names;
use commits::{Committer, Request};
use context::Client;
use part::{Member, Place};
use poller::Poller;
use rebalance::Rebalance;

/// How long an end may take before the broker is asked whether it is there, and how long it may
/// take to answer.
const SILENCE: Duration = Duration::from_secs(1);

/// One subscription of a consumer.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) names: Names,
}

/// The deliveries of one consumer. Dropped without a close it is a crash: what is out comes
/// back.
#[derive(Debug)]
pub(crate) struct KafkaSource {
    shared: Arc<Shared>,
    settle: Arc<dyn Settle>,
    members: Vec<Joined>,
    copies: JoinHandle<()>,
    /// Asks whether a broker is there, and what for.
    asker: Option<(Producer, Arc<str>)>,
    timer: Timer,
    closed: bool,
}

/// The threads of a member of a group.
#[derive(Debug)]
struct Joined {
    commits: Sender<Request>,
    ended: oneshot::Receiver<()>,
}

/// Joins the groups and starts to consume.
pub(crate) async fn start(
    config: Arc<Config>,
    spec: &ConsumerSpec,
    lanes: Vec<Lane>,
) -> Result<KafkaSource, Error> {
    let shared = Arc::new(Shared::default());
    let producer = Producer::new(config.clone())?;
    let topic = lanes.first().map(|lane| lane.names.work.clone()).unwrap_or_default();
    // Before the members: a consumer hears of a refused login only when it is polled.
    producer.metadata(Some(&topic), |_| Ok(())).await?;
    let (topics, rungs): (HashMap<_, _>, HashMap<_, _>) =
        places(&lanes).into_iter().partition(|(_, place)| place.rung.is_none());
    let (settle, jobs) = Copies::new(shared.answers.clone());
    let desk = Desk { producer: producer.clone(), lanes: lanes.into(), shared: shared.clone() };
    let copies = tokio::spawn(Copies::run(jobs, shared.answers.clone(), Arc::new(desk)));
    let mut source = KafkaSource {
        shared: shared.clone(),
        settle: Arc::new(settle),
        members: Vec::new(),
        copies,
        asker: Some((producer, topic)),
        timer: Timer::default(),
        closed: false,
    };
    // An error below drops what has been started.
    shared.copies_health(Health::Up);
    if rungs.is_empty() {
        shared.broker_health(Member::Rungs, Health::Up);
    } else {
        let group = format!("{}.retry", spec.name);
        source.join(&config, &group, Member::Rungs, rungs, spec.in_flight).await?;
    }
    source.join(&config, &spec.name, Member::Topics, topics, spec.in_flight).await?;
    Ok(source)
}

/// Every topic to subscribe to, by name.
fn places(lanes: &[Lane]) -> HashMap<String, Place> {
    let mut places = HashMap::new();
    for (subscription, lane) in lanes.iter().enumerate() {
        let subscription = u16::try_from(subscription).unwrap_or(u16::MAX);
        let rungs = lane.names.rungs.iter().map(|(delay, topic)| (topic, Some(*delay)));
        for (topic, rung) in rungs.chain([(&lane.names.work, None)]) {
            places.insert(topic.to_string(), Place { topic: topic.clone(), subscription, rung });
        }
    }
    places
}

impl KafkaSource {
    async fn join(
        &mut self,
        config: &Arc<Config>,
        group: &str,
        member: Member,
        places: HashMap<String, Place>,
        in_flight: usize,
    ) -> Result<(), Error> {
        let client: Client = client::create(&config.consumer(group), context::Context::default())?;
        let client = Arc::new(client);
        let topics = places.keys().cloned().collect();
        let cluster = subscribe(client.clone(), config.clone(), topics).await?;
        let shared = self.shared.clone();
        let (commits, requests) = commits::requests();
        let committer = Committer {
            client: client.clone(),
            member,
            shared: shared.clone(),
            cluster: cluster.clone(),
            interval: config.commit_interval,
            runtime: tokio::runtime::Handle::current(),
        };
        let committer = thread("commits", move || committer.run(&requests))?;
        let (end, ended) = oneshot::channel();
        let poller = Poller {
            client,
            member,
            shared,
            rebalance: Rebalance::new(config.clone(), member, cluster, in_flight),
            config: config.clone(),
            group: group.to_owned(),
            places,
            commits: commits.clone(),
            committer,
            buffer_max: in_flight.saturating_mul(2).max(2_000),
            reader: crate::records::Reader::default(),
            batch: Vec::new(),
            probed: None,
        };
        thread("polls", move || poller.run(end))?;
        self.members.push(Joined { commits, ended });
        Ok(())
    }

    /// Has what is finished committed soon.
    fn commit(&self) {
        for member in &self.members {
            let _ = member.commits.send(Request::Now(None));
        }
    }

    /// Commits what is finished and leaves the groups. What cannot be committed by then comes
    /// back either way.
    async fn leave(&mut self, limit: Duration) {
        let end = Instant::now() + limit;
        // Copies that are not confirmed by then come again, with their originals.
        self.flush_until(end - limit / 4).await;
        self.copies.abort();
        self.shared.close();
        for member in self.members.drain(..) {
            let _ = timeout_at(end, member.ended).await;
        }
    }

    async fn flush_until(&self, end: Instant) -> bool {
        if !self.shared.answers.copied(end).await {
            return false;
        }
        for member in &self.members {
            let (done, committed) = oneshot::channel();
            // Without the thread nothing can be applied any more.
            if member.commits.send(Request::Now(Some(done))).is_ok()
                && !matches!(timeout_at(end, committed).await, Ok(Ok(())))
            {
                return false;
            }
        }
        true
    }
}

/// Returns when no broker answers any more: nothing can be committed then, and nobody needs to
/// wait for it.
async fn silence(asker: Option<(Producer, Arc<str>)>) {
    let Some((producer, topic)) = asker else { return std::future::pending().await };
    loop {
        tokio::time::sleep(SILENCE).await;
        if !producer.is_heard(&topic, SILENCE).await {
            return;
        }
    }
}

/// Subscribes, and returns the name of the cluster.
async fn subscribe(client: Arc<Client>, config: Arc<Config>, topics: Vec<String>) -> Result<String, Error> {
    client::blocking(move || {
        let names: Vec<_> = topics.iter().map(String::as_str).collect();
        let limit = config.connect_timeout;
        // Asked for alone, the client looks for the cluster's name once a second only.
        let answer = client.fetch_metadata(names.first().copied(), limit);
        let cluster = answer.ok().and_then(|_| client.client().fetch_cluster_id(limit));
        let cluster = cluster.ok_or_else(|| {
            context::listen(&client);
            client.context().said.explain(&config, limit)
        })?;
        client.subscribe(&names).map_err(|refused| error::from_client("subscribing", &refused))?;
        Ok(cluster)
    })
    .await
}

#[async_trait]
impl Source for KafkaSource {
    fn poll_events(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
        events: &mut Vec<Event>,
    ) -> Poll<Result<(), Error>> {
        if self.closed {
            return Poll::Ready(Err(error::closed()));
        }
        let before = events.len();
        loop {
            // Before the look, so that nothing that comes next is missed.
            self.shared.answers.register(cx.waker());
            let (due, wanted) = match self.shared.fill(max, events, &self.settle) {
                Ok(found) => found,
                Err(error) => {
                    self.closed = true;
                    return Poll::Ready(Err(error));
                }
            };
            if wanted {
                self.commit();
            }
            if events.len() > before {
                return Poll::Ready(Ok(()));
            }
            if self.timer.poll(cx, due).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn outstanding(&self) -> usize {
        self.shared.answers.outstanding()
    }

    async fn flush(&mut self, limit: Duration) -> bool {
        self.closed || self.flush_until(Instant::now() + limit).await
    }

    async fn close(&mut self, limit: Duration) -> Result<(), Error> {
        if std::mem::replace(&mut self.closed, true) && self.members.is_empty() {
            return Ok(());
        }
        let asker = self.asker.clone();
        tokio::select! {
            biased;
            () = self.leave(limit) => {}
            () = silence(asker) => self.shared.abandon(),
        }
        self.copies.abort();
        Ok(())
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        self.copies.abort();
        self.shared.abandon();
        // The end of a producer waits for its thread, for up to a tenth of a second.
        let asker = self.asker.take();
        let _ = thread("ends", move || drop(asker));
    }
}
