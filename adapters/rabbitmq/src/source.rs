//! Where deliveries come from.
//!
//! ```text
//!              ┌─ deliveries, read straight from the client ─┐
//! RabbitMQ ─► channel of a queue                             ├─► poll_events
//!              └─ owner task ─ health, new channels, waits ──┘
//!                     ▲
//!                     └── answers, from any thread
//! ```

mod lane;
mod owner;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::Stream;
use futures_util::task::AtomicWaker;
use oncemq_core::{Delivery, Error, Event, Facts, Message, Origin, Settle, Source, Token};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

pub(crate) use lane::LaneSpec;
pub(crate) use owner::start;

use crate::settle::{Command, is_redelivered, lane_of, scope};
use crate::{error, properties};

/// What the owner of the channels and the source share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    waker: AtomicWaker,
    noted: AtomicBool,
    notes: Mutex<Notes>,
    outstanding: AtomicUsize,
}

#[derive(Debug, Default)]
struct Notes {
    list: Vec<Note>,
    /// Deferred deliveries whose time has come.
    again: VecDeque<(Token, Message)>,
}

/// What the owner tells the source.
#[derive(Debug)]
pub(crate) enum Note {
    Event(Event),
    /// A queue is consumed, by a new channel.
    Opened(usize, Box<Incoming>),
}

/// The deliveries of one queue.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) channel: Arc<lapin::Channel>,
    pub(crate) consumer: lapin::Consumer,
    pub(crate) epoch: u64,
    pub(crate) lane: u16,
    pub(crate) origin: Origin,
}

impl Shared {
    pub(crate) fn note(&self, note: Note) {
        self.notes().list.push(note);
        self.noted.store(true, SeqCst);
        self.waker.wake();
    }

    pub(crate) fn again(&self, token: Token, message: Message) {
        self.notes().again.push_back((token, message));
        self.noted.store(true, SeqCst);
        self.waker.wake();
    }

    /// Deliveries of an epoch that wait to be handed out again are void with it.
    pub(crate) fn forget(&self, epoch: u64) {
        self.notes().again.retain(|(token, _)| token.epoch != epoch);
    }

    /// Places that are taken without a delivery handed out.
    pub(crate) fn occupy(&self, count: usize) {
        self.outstanding.fetch_add(count, SeqCst);
    }

    /// Places that have become free.
    pub(crate) fn free(&self, count: usize) {
        self.outstanding.fetch_sub(count, SeqCst);
        self.waker.wake();
    }

    fn notes(&self) -> std::sync::MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The deliveries of one consumer. Dropped without a close it is a lost connection: what is
/// out comes back.
#[derive(Debug)]
pub(crate) struct RabbitSource {
    shared: Arc<Shared>,
    settle: Arc<dyn Settle>,
    commands: mpsc::UnboundedSender<Command>,
    owner: JoinHandle<()>,
    incoming: Vec<Option<Incoming>>,
    /// The queue that is read first, so that a full one cannot keep others waiting.
    turn: usize,
    closed: bool,
}

impl RabbitSource {
    fn take_notes(&mut self, max: usize, events: &mut Vec<Event>) {
        if !self.shared.noted.swap(false, SeqCst) {
            return;
        }
        let mut notes = self.shared.notes();
        for note in notes.list.drain(..) {
            match note {
                Note::Event(event) => events.push(event),
                Note::Opened(lane, incoming) => self.incoming[lane] = Some(*incoming),
            }
        }
        let again = max.min(notes.again.len());
        self.shared.outstanding.fetch_add(again, SeqCst);
        for (token, message) in notes.again.drain(..again) {
            let facts = Facts::new(lane_of(token), is_redelivered(token));
            events.push(Event::Delivery(Delivery::new(message, facts, token, self.settle.clone())));
        }
        if !notes.again.is_empty() {
            self.shared.noted.store(true, SeqCst);
        }
    }

    /// Reads the queues in turn, at most `room` deliveries.
    fn read(&mut self, cx: &mut Context<'_>, room: usize, events: &mut Vec<Event>) {
        let (lanes, mut left) = (self.incoming.len(), room);
        // One look at the clock for all: the broker's own runs in minutes.
        let mut now = None;
        for step in 0..lanes {
            let place = (self.turn + step) % lanes;
            let slot = &mut self.incoming[place];
            // What is still buffered of a dead channel comes again by the next one.
            let dead = slot.as_ref().is_some_and(|incoming| !incoming.channel.status().connected());
            while let Some(incoming) = slot.as_mut().filter(|_| left > 0) {
                match Pin::new(&mut incoming.consumer).poll_next(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Some(Ok(_))) if dead => {}
                    Poll::Ready(Some(Ok(delivery))) => {
                        let now = *now.get_or_insert_with(Instant::now);
                        events.push(Event::Delivery(hand_out(incoming, delivery, now, &self.settle)));
                        left -= 1;
                    }
                    Poll::Ready(ended) => {
                        let error = ended.and_then(Result::err).map(Box::new);
                        let (lane, epoch) = (place, incoming.epoch);
                        let _ = self.commands.send(Command::Ended { lane, epoch, error });
                        *slot = None;
                    }
                }
            }
        }
        if lanes > 0 {
            self.turn = (self.turn + 1) % lanes;
        }
        self.shared.outstanding.fetch_add(room - left, SeqCst);
    }
}

fn hand_out(
    incoming: &Incoming,
    delivery: lapin::message::Delivery,
    now: Instant,
    settle: &Arc<dyn Settle>,
) -> Delivery {
    let redelivered = delivery.redelivered;
    let token =
        Token { epoch: incoming.epoch, scope: scope(incoming.lane, redelivered), id: delivery.delivery_tag };
    let message = properties::message(delivery, &incoming.origin, now);
    Delivery::new(message, Facts::new(incoming.lane, redelivered), token, settle.clone())
}

#[async_trait]
impl Source for RabbitSource {
    fn poll_events(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
        events: &mut Vec<Event>,
    ) -> Poll<Result<(), Error>> {
        if self.closed {
            return Poll::Ready(Err(error::closed()));
        }
        self.shared.waker.register(cx.waker());
        let before = events.len();
        self.take_notes(max, events);
        let again = events[before..].iter().filter(|event| matches!(event, Event::Delivery(_))).count();
        if max > again {
            self.read(cx, max - again, events);
        }
        if events.len() > before {
            return Poll::Ready(Ok(()));
        }
        if self.owner.is_finished() {
            // Only a defect ends it early; waiting for it would be waiting for ever.
            return Poll::Ready(Err(error::closed()));
        }
        Poll::Pending
    }

    fn outstanding(&self) -> usize {
        self.shared.outstanding.load(SeqCst)
    }

    async fn flush(&mut self, limit: Duration) -> bool {
        let (done, applied) = oneshot::channel();
        if self.closed || self.commands.send(Command::Flush(done)).is_err() {
            // Everything that was not applied is void.
            return true;
        }
        matches!(timeout(limit, applied).await, Ok(Ok(())))
    }

    async fn close(&mut self, limit: Duration) -> Result<(), Error> {
        if self.closed {
            return Ok(());
        }
        self.closed = true;
        let (done, closed) = oneshot::channel();
        if self.commands.send(Command::Close { deadline: Instant::now() + limit, done }).is_ok() {
            // A broker that does not answer in time finds a lost connection later: what was
            // not settled comes back either way.
            let _ = timeout(limit, closed).await;
        }
        self.owner.abort();
        self.incoming.clear();
        Ok(())
    }
}

impl Drop for RabbitSource {
    fn drop(&mut self) {
        self.owner.abort();
    }
}
