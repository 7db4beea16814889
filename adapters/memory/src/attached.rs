//! A source as the broker sees it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Waker;
use std::time::Duration;

use oncemq_core::{ConsumerSpec, Event, Health};

/// A source as the broker sees it.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) consumer: Arc<str>,
    /// The topics of its subscriptions, in their order.
    pub(crate) topics: Vec<Arc<str>>,
    /// Where its deliveries come from: its queues, or the partitions it has now.
    pub(crate) places: Vec<Place>,
    /// The place whose turn it was last.
    pub(crate) cursor: usize,
    /// Answers to older incarnations are void. Unique over all sources of the broker.
    pub(crate) epoch: u64,
    pub(crate) open: bool,
    pub(crate) in_flight: usize,
    /// How long a partition may stay with it after a revoke.
    pub(crate) revoke_limit: Duration,
    /// Events beside deliveries, in order.
    pub(crate) notices: VecDeque<Event>,
    pub(crate) outstanding: Arc<AtomicUsize>,
    pub(crate) waker: Option<Waker>,
}

/// A queue or partition that a source consumes, and for which of its subscriptions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) index: u32,
    pub(crate) subscription: u16,
}

impl Attached {
    pub(crate) fn new(spec: &ConsumerSpec, places: Vec<Place>, epoch: u64) -> Self {
        let timeouts = spec.subscriptions.iter().map(|subscription| subscription.timeout);
        Self {
            consumer: spec.name.clone(),
            topics: spec.subscriptions.iter().map(|subscription| subscription.topic.clone()).collect(),
            places,
            cursor: 0,
            epoch,
            open: true,
            in_flight: spec.in_flight,
            // What runs must be able to finish.
            revoke_limit: timeouts.max().unwrap_or_default(),
            notices: VecDeque::from([Event::Health(Health::Up)]),
            outstanding: Arc::default(),
            waker: None,
        }
    }

    /// The topic that a place is consumed for.
    pub(crate) fn topic_at(&self, index: u32) -> Option<&Arc<str>> {
        let place = self.places.iter().find(|place| place.index == index)?;
        self.topics.get(usize::from(place.subscription))
    }

    /// Deliveries that are out.
    pub(crate) fn out(&self) -> usize {
        self.outstanding.load(SeqCst)
    }

    /// So many deliveries are no longer out.
    pub(crate) fn settled(&self, n: usize) {
        self.outstanding.fetch_sub(n, SeqCst);
    }
}
