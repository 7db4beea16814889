//! Where deliveries come from.
//!
//! ```text
//! RocketMQ ─► a task a queue ─► queues ─► poll_events
//!                                 ▲   └─ watermark ─► task that commits ─► RocketMQ
//!                                 └── answers, from any thread; copies are confirmed first
//! ```

mod beginning;
mod commits;
mod group;
mod part;
mod puller;
mod shared;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use oncemq_core::partitions::{Copies, CopyJob, Purpose};
use oncemq_core::{ConsumerSpec, Error, Event, Ordering, Settle, Source, Timer, Topology};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

pub(crate) use shared::Shared;

use crate::cluster::{Cluster, Member};
use crate::config::{Config, Start};
use crate::error;
use crate::publisher::Producer;
use crate::settle::Desk;
use crate::topology::{Levels, Names};
use commits::Committer;
use group::Group;
use part::Pace;

/// A queue that begins here, with these messages.
#[cfg(test)]
pub(crate) fn test_part(
    shared: &Shared,
    queue: crate::cluster::Queue,
    offset: i64,
    messages: Vec<crate::client::Stored>,
) {
    let mut state = shared.state();
    let begin = part::Begin { offset, known: false };
    let mut part = part::Part::new(queue, begin, Pace::new(1, false), Arc::default());
    part.fetched(messages);
    state.parts.add(part);
}

/// The deliveries of one consumer. Dropped without a close it is a crash: what is out comes
/// back.
#[derive(Debug)]
pub(crate) struct RocketmqSource {
    shared: Arc<Shared>,
    cluster: Arc<Cluster>,
    copies: Arc<Copies>,
    settle: Arc<dyn Settle>,
    commits: mpsc::UnboundedSender<commits::Request>,
    end: Arc<Notify>,
    group: Option<JoinHandle<()>>,
    tasks: Vec<JoinHandle<()>>,
    timer: Timer,
    closed: bool,
}

/// Joins the group and starts to consume.
pub(crate) async fn start(
    config: Arc<Config>,
    spec: &ConsumerSpec,
    names: Names,
) -> Result<RocketmqSource, Error> {
    let cluster = Arc::new(Cluster::connect(config.clone())?);
    let (levels, _) = Levels::find(&cluster, &config).await?;
    let mut brokers = BTreeSet::new();
    for topic in &names.works {
        brokers.extend(cluster.route(topic).await?.iter().map(|seat| seat.broker.clone()));
    }
    if config.start == Start::Latest {
        for topic in &names.works {
            beginning::at_the_end(&cluster, &names.group, topic).await?;
        }
    }
    let shared = Arc::new(Shared::new(names.works.clone()));
    let topics = names.works.iter().chain([&names.retry]).cloned().collect();
    let id = format!("oncemq@{}", cluster.new_id());
    let member = Arc::new(Member { id, group: names.group.clone(), topics });
    let (copies, jobs) = Copies::new(shared.answers.clone());
    let copies = Arc::new(copies);
    let producer = Producer::new(cluster.clone(), config.clone());
    let desk =
        Desk { cluster: cluster.clone(), producer, names: names.clone(), levels, shared: shared.clone() };
    let (commits, requests) = mpsc::unbounded_channel();
    let committer = Committer {
        cluster: cluster.clone(),
        group: names.group.clone(),
        shared: shared.clone(),
        interval: config.commit_interval,
    };
    let ordered = spec.subscriptions.iter().filter(|one| one.ordering == Ordering::Ordered);
    let group = Group {
        cluster: cluster.clone(),
        shared: shared.clone(),
        member,
        pace: Pace::new(spec.in_flight, config.commit_each),
        locked: ordered.map(|one| one.topic.clone()).collect(),
        owned: HashMap::new(),
        told: HashMap::new(),
        joined: BTreeSet::new(),
        names,
        declared: (spec.topology == Topology::Declare).then_some(brokers),
        checked: Instant::now(),
        forgotten: None,
        renew: Arc::default(),
        config,
    };
    let end = Arc::new(Notify::new());
    let storing = Copies::run(jobs, shared.answers.clone(), Arc::new(desk));
    let tasks = vec![tokio::spawn(storing), tokio::spawn(committer.run(requests))];
    Ok(RocketmqSource {
        shared,
        cluster,
        settle: copies.clone(),
        copies,
        commits,
        group: Some(tokio::spawn(group.run(end.clone()))),
        end,
        tasks,
        timer: Timer::default(),
        closed: false,
    })
}

impl RocketmqSource {
    async fn flush_until(&self, end: Instant) -> bool {
        if !self.shared.answers.copied(end).await {
            return false;
        }
        let (done, committed) = oneshot::channel();
        // Without the task nothing can be applied any more.
        self.commits.send(Some(done)).is_err() || matches!(timeout_at(end, committed).await, Ok(Ok(())))
    }

    fn abort(&mut self) {
        for task in self.tasks.drain(..).chain(self.group.take()) {
            task.abort();
        }
    }
}

#[async_trait]
impl Source for RocketmqSource {
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
            let filled = match self.shared.fill(max, events, &self.settle) {
                Ok(found) => found,
                Err(error) => {
                    self.closed = true;
                    return Poll::Ready(Err(error));
                }
            };
            if filled.wanted {
                // Ended, it has nothing to commit.
                let _ = self.commits.send(None);
            }
            for (token, message) in filled.strays {
                self.copies.ask(CopyJob { token, message, purpose: Purpose::Stray });
            }
            if events.len() > before {
                return Poll::Ready(Ok(()));
            }
            if self.timer.poll(cx, filled.due).is_pending() {
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
        if std::mem::replace(&mut self.closed, true) && self.group.is_none() {
            return Ok(());
        }
        let end = Instant::now() + limit;
        self.shared.close();
        // Copies that are not confirmed by then come again, with their originals.
        self.flush_until(end - limit / 4).await;
        self.end.notify_one();
        if let Some(group) = &mut self.group {
            // A broker that does not answer finds a member that is gone: what was not committed
            // comes back either way.
            let _ = timeout_at(end, group).await;
        }
        self.abort();
        let _ = timeout_at(end, self.cluster.close()).await;
        Ok(())
    }
}

impl Drop for RocketmqSource {
    fn drop(&mut self) {
        self.abort();
    }
}
