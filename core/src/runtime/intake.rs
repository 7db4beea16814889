//! From the source to the workers, never more than there is room for.

use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tokio::sync::watch;

use super::mailbox::{Mail, SharedQueue};
use super::worker::WorkerShared;
use super::{Found, Item, OrderHash, Shared, TopicEnv};
use crate::key::Document;
use crate::{Delivery, Error, Event, Health, Scope, Source};

/// The most deliveries taken in one poll: what is on its way to the workers stays small, and
/// a poll is long enough to be worth its wake-ups.
const POLL_MAX: usize = 1024;

pub(crate) struct Intake {
    pub(crate) source: Box<dyn Source>,
    pub(crate) in_flight: usize,
    pub(crate) topics: Vec<Arc<TopicEnv>>,
    pub(crate) workers: Vec<Arc<WorkerShared>>,
    pub(crate) queue: Arc<SharedQueue>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) health: watch::Sender<Health>,
    broker_health: Health,
    bytes_max: u64,
    /// Deliveries and their bytes taken so far.
    taken: u64,
    taken_bytes: u64,
    /// Given back from the shared queue, before any worker had them.
    pub(crate) released: u64,
    /// Gaps the source told of.
    pub(crate) gaps: u64,
    events: Vec<Event>,
    mail: Vec<Vec<Mail>>,
    unordered: Vec<Item>,
}

impl Intake {
    pub(crate) fn new(
        source: Box<dyn Source>,
        (in_flight, bytes_max): (usize, usize),
        topics: Vec<Arc<TopicEnv>>,
        workers: Vec<Arc<WorkerShared>>,
        shared: Arc<Shared>,
        health: watch::Sender<Health>,
    ) -> Self {
        let mail = workers.iter().map(|_| Vec::new()).collect();
        Self {
            source,
            in_flight,
            topics,
            workers,
            queue: Arc::default(),
            shared,
            health,
            broker_health: Health::Starting,
            bytes_max: u64::try_from(bytes_max).unwrap_or(u64::MAX),
            taken: 0,
            taken_bytes: 0,
            released: 0,
            gaps: 0,
            events: Vec::new(),
            mail,
            unordered: Vec::new(),
        }
    }

    /// Takes deliveries until the source ends with an error. Cancel safe: what was taken is
    /// with the workers.
    pub(crate) async fn consume(&mut self) -> Error {
        loop {
            let shut = self.shared.gate.is_shut();
            self.report(shut);
            if let Err(error) = self.next_events(!shut, shut).await {
                return error;
            }
            // A source that is always ready must not keep others from this thread.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Lets the source go on with revokes and settlements and takes nothing new.
    pub(crate) async fn idle(&mut self) -> Error {
        loop {
            let shut = self.shared.gate.is_shut();
            if let Err(error) = self.next_events(false, shut).await {
                return error;
            }
            tokio::task::coop::consume_budget().await;
        }
    }

    /// How many more deliveries there is room for, by count and by bytes.
    fn room(&self) -> usize {
        let places = self.in_flight.saturating_sub(self.source.outstanding());
        let settled: u64 = self.workers.iter().map(|worker| worker.counters.bytes()).sum();
        let out = self.taken_bytes.saturating_sub(settled);
        // By the size of the messages so far: a single poll must not overshoot by much.
        let average = (self.taken_bytes / self.taken.max(1)).max(1);
        let more = self.bytes_max.saturating_sub(out) / average;
        // One is always let in, however large it is.
        let more = if out == 0 { more.max(1) } else { more };
        places.min(usize::try_from(more).unwrap_or(usize::MAX))
    }

    async fn next_events(&mut self, open: bool, shut: bool) -> Result<(), Error> {
        let shared = self.shared.clone();
        let gate = &shared.gate;
        let changed = gate.changed();
        tokio::pin!(changed);
        // Registered before the look at the gate, so that no change in between is missed.
        changed.as_mut().enable();
        if gate.is_shut() != shut {
            return Ok(());
        }
        tokio::select! {
            biased;
            polled = poll_fn(|cx| {
                loop {
                    // At each poll anew: a settlement is what wakes the task when it was full.
                    let room = if open { self.room().min(POLL_MAX) } else { 0 };
                    let polled = self.source.poll_events(cx, room, &mut self.events);
                    // A place that became free before the source kept the waker woke nobody.
                    if open && room == 0 && polled.is_pending() && self.room().min(POLL_MAX) > 0 {
                        continue;
                    }
                    return polled;
                }
            }) => polled?,
            () = changed => {}
        }
        self.hand_out();
        Ok(())
    }

    fn hand_out(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                Event::Delivery(delivery) => self.sort(delivery),
                Event::Revoking { scope, .. } => self.revoke(&scope),
                Event::Health(health) => self.broker_health = health,
                // Nobody brings back what is gone; the summary says that something is.
                Event::Gap { .. } => self.gaps += 1,
                // What was lost to a broken connection comes back.
                Event::Reconnected { .. } => {}
            }
        }
        self.events = events;
        self.post();
    }

    fn sort(&mut self, delivery: Delivery) {
        let Some(topic) = self.topics.get(usize::from(delivery.facts().subscription)) else {
            // An adapter that names a subscription nobody asked for: given back by the drop.
            return;
        };
        self.taken += 1;
        self.taken_bytes += u64::try_from(delivery.message().size()).unwrap_or(u64::MAX);
        let mut document = Document::default();
        let key: Option<Found> =
            topic.key.as_ref().map(|key| Box::new(key.find(delivery.message(), &mut document).map(Arc::new)));
        let order = order_of(topic, &delivery, key.as_ref(), &mut document);
        let item = Item { delivery, key, order };
        match order {
            Some(order) => {
                let worker = usize::try_from(order.get() >> 32).unwrap_or(0) % self.workers.len();
                self.mail[worker].push(Mail::Item(item));
            }
            None => self.unordered.push(item),
        }
    }

    fn post(&mut self) {
        for (worker, mail) in self.workers.iter().zip(&mut self.mail) {
            worker.mailbox.extend(mail);
        }
        if self.unordered.is_empty() {
            return;
        }
        let mut wanted = self.unordered.len().div_ceil(8);
        self.queue.extend(&mut self.unordered);
        for worker in &self.workers {
            if wanted == 0 {
                break;
            }
            if worker.mailbox.wake() {
                wanted -= 1;
            }
        }
    }

    fn revoke(&mut self, scope: &Scope) {
        // In the order of arrival: what came before the revoke is with the workers first.
        self.post();
        self.give_back_shared(scope);
        for worker in &self.workers {
            worker.mailbox.push(Mail::Revoke(scope.clone()));
            worker.mailbox.wake();
        }
    }

    /// Tells every worker to start nothing new.
    pub(crate) fn stop(&mut self) {
        self.post();
        self.give_back_shared(&Scope::All);
        for worker in &self.workers {
            worker.mailbox.push(Mail::Stop);
            worker.mailbox.wake();
        }
    }

    fn give_back_shared(&mut self, scope: &Scope) {
        for item in self.queue.revoke(scope) {
            let size = u64::try_from(item.delivery.message().size()).unwrap_or(u64::MAX);
            self.taken_bytes = self.taken_bytes.saturating_sub(size);
            self.released += 1;
        }
    }

    fn report(&self, shut: bool) {
        let health = match (&self.broker_health, shut) {
            (Health::Up, true) => {
                Health::Degraded(format!("the store does not answer: {}", self.shared.gate.reason()))
            }
            (health, _) => health.clone(),
        };
        self.health.send_if_modified(|known| {
            let changed = *known != health;
            if changed {
                *known = health;
            }
            changed
        });
    }
}

/// The hash of what orders a message, or `None` if nothing does.
fn order_of(
    topic: &TopicEnv,
    delivery: &Delivery,
    key: Option<&Found>,
    document: &mut Document,
) -> Option<OrderHash> {
    let message = delivery.message();
    let subscription = delivery.facts().subscription;
    if let Some(order_by) = &topic.order_by {
        let found = order_by.find(message, document).ok()?;
        return Some(hash(subscription, found.as_bytes()));
    }
    if let Some(record_key) = message.key() {
        return Some(hash(subscription, record_key));
    }
    key.and_then(|key| key.as_ref().as_ref().ok()).map(|key| hash(subscription, key.as_bytes()))
}

fn hash(subscription: u16, bytes: &[u8]) -> OrderHash {
    let mut hasher = DefaultHasher::new();
    subscription.hash(&mut hasher);
    bytes.hash(&mut hasher);
    OrderHash::new(hasher.finish()).unwrap_or(OrderHash::MIN)
}
