//! One queue of a consumer, and the channel it is consumed on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions,
    BasicRejectOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Connection};
use oncemq_core::{Error, ErrorKind, Topology, failpoint};
use tokio::time::Instant;

use crate::config::Config;
use crate::connection::{Backoff, major_version};
use crate::error;
use crate::settle::{AckFrame, Tracker};
use crate::topology::{self, Limit, Names};

/// From so many acknowledgements on none waits for more, however large the prefetch is: what
/// waits is delivered again after a crash.
const MANY: usize = 128;

/// What does not change about a queue.
#[derive(Debug)]
pub(crate) struct LaneSpec {
    pub(crate) config: Arc<Config>,
    pub(crate) names: Names,
    pub(crate) topology: Topology,
    pub(crate) prefetch: u16,
    pub(crate) single_active: bool,
}

impl LaneSpec {
    /// Makes the queues and what belongs to them.
    pub(crate) async fn declare(&self, connection: &Connection) -> Result<Limit, Error> {
        let Config { queue_type, .. } = *self.config;
        // From 4.0 on there is a limit unless it is switched off; before, -1 would drop a
        // message that is returned once.
        let no_limit = major_version(&self.config).await?.is_some_and(|major| major >= 4);
        topology::declare(connection, queue_type, &self.names, self.single_active, no_limit).await
    }

    /// How many acknowledgements wait for no more: so few that the broker never runs out of
    /// places to deliver into.
    pub(crate) fn many(&self) -> usize {
        usize::from(self.prefetch / 4).clamp(1, MANY)
    }

    /// Whether nothing but a policy of the operator can send rejected messages elsewhere.
    fn is_ours(&self) -> bool {
        self.topology == Topology::Declare && self.names.exchange.is_some()
    }
}

/// One queue of a consumer.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) spec: Arc<LaneSpec>,
    pub(crate) state: State,
    backoff: Backoff,
    /// Why it is not consumed.
    pub(crate) why: String,
}

/// Whether a queue is consumed.
#[derive(Debug)]
pub(crate) enum State {
    /// Not before this time is it tried again.
    Down(Instant),
    Opening,
    Up(Box<Up>),
}

/// A channel that consumes.
#[derive(Debug)]
pub(crate) struct Up {
    pub(crate) epoch: u64,
    /// Shared with the frames under way.
    pub(crate) channel: Arc<Channel>,
    pub(crate) tag: ShortString,
    pub(crate) tracker: Tracker,
    pub(crate) alive: Arc<AtomicBool>,
}

/// A frame that answers for deliveries.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Frame {
    Ack(AckFrame),
    /// Back into the queue.
    Return(u64),
    /// Out of the queue, for good.
    Drop(u64),
}

/// Becomes the number of deliveries whose frame is written, or void with its channel.
pub(crate) type Write = BoxFuture<'static, usize>;

impl Lane {
    pub(crate) fn new(spec: LaneSpec) -> Self {
        let state = State::Down(Instant::now());
        Self { spec: Arc::new(spec), state, backoff: Backoff::default(), why: "starting".to_owned() }
    }

    /// The channel, if a delivery of this epoch is still its.
    pub(crate) fn up(&mut self, epoch: u64) -> Option<&mut Up> {
        match &mut self.state {
            State::Up(up) if up.epoch == epoch => Some(up),
            _ => None,
        }
    }

    pub(crate) fn opened(&mut self, up: Up) {
        self.state = State::Up(Box::new(up));
        self.why.clear();
    }

    /// Ends this incarnation: none of its tags is ever sent again. Returns its epoch.
    pub(crate) fn fail(&mut self, why: String) -> Option<u64> {
        let wait = self.backoff.next();
        let before = std::mem::replace(&mut self.state, State::Down(Instant::now() + wait));
        self.why = why;
        match before {
            State::Up(up) => {
                up.alive.store(false, Relaxed);
                Some(up.epoch)
            }
            _ => None,
        }
    }

    /// Called for a channel that has been well for a while.
    pub(crate) fn is_well(&mut self) {
        self.backoff.reset();
    }

    /// How a message is dropped on purpose. A rejected one would go on to the dead-letter
    /// exchange that somebody may have given a queue that is not ours.
    pub(crate) fn discard(&self, tag: u64) -> Frame {
        match self.spec.is_ours() {
            true => Frame::Drop(tag),
            false => Frame::Ack(AckFrame { tag, multiple: false, count: 1 }),
        }
    }
}

impl Up {
    /// Hands a frame to the client, in order. Returns what is left to wait for.
    pub(crate) fn write(&self, frame: Frame) -> Result<usize, Write> {
        let mut write: Write = Box::pin(write(self.channel.clone(), frame));
        // The first poll queues the frame: frames go out in the order of these calls.
        match (&mut write).now_or_never() {
            Some(count) => Ok(count),
            None => Err(write),
        }
    }

    /// Asks for no more deliveries and waits for the answer. A quorum queue has applied
    /// every acknowledgement then; closed without it, it delivered some of the last again.
    pub(crate) async fn cancel(&self) {
        // Not answered means that the channel is dead: there is nothing left to wait for.
        let _ = self.channel.basic_cancel(self.tag.clone(), BasicCancelOptions::default()).await;
    }
}

async fn write(channel: Arc<Channel>, frame: Frame) -> usize {
    let (count, written) = match frame {
        Frame::Ack(AckFrame { tag, multiple, count }) => {
            (count, channel.basic_ack(tag, BasicAckOptions { multiple }).await)
        }
        Frame::Return(tag) => {
            let options = BasicNackOptions { multiple: false, requeue: true };
            (1, channel.basic_nack(tag, options).await)
        }
        Frame::Drop(tag) => (1, channel.basic_reject(tag, BasicRejectOptions { requeue: false }).await),
    };
    if written.is_ok() {
        failpoint!("rabbitmq.acked");
    }
    // Not written means that the channel is dead: the broker delivers again.
    count
}

/// A queue that is consumed now.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) channel: Channel,
    pub(crate) consumer: lapin::Consumer,
}

/// Consumes a queue, which is made again if it has vanished and is ours to make.
pub(crate) async fn open(connection: Arc<Connection>, spec: Arc<LaneSpec>) -> Result<Opened, Error> {
    match consume(&connection, &spec).await {
        Err(error) if error.kind() == ErrorKind::Topology && spec.topology == Topology::Declare => {
            spec.declare(&connection).await?;
            consume(&connection, &spec).await
        }
        result => result,
    }
}

async fn consume(connection: &Connection, spec: &LaneSpec) -> Result<Opened, Error> {
    let what = format!("cannot consume queue {}", spec.names.work);
    let lost = |error| error::from_client(&what, &error);
    let channel = connection.create_channel().await.map_err(lost)?;
    channel.basic_qos(spec.prefetch, BasicQosOptions::default()).await.map_err(lost)?;
    let (queue, tag) = (spec.names.work.clone(), ShortString::default());
    let options = BasicConsumeOptions::default();
    let consumer = channel.basic_consume(queue, tag, options, FieldTable::default()).await.map_err(lost)?;
    Ok(Opened { channel, consumer })
}
