//! The loops that empty a queue.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cpu_time::ProcessTime;
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use oncemq_core::{Consumer, Context, Failure, Message, Shutdown, Topology};
use oncemq_rabbitmq::RabbitBroker;

use crate::PREFETCH;

/// Messages for which the raw loop sends one acknowledgement, as our consumer does when it is
/// busy.
const ACK_EVERY: usize = 128;

/// Who empties the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Loop {
    /// Our consumer, unguarded.
    Ours,
    /// The client, with one acknowledgement for many messages.
    Raw,
    /// The client, with an acknowledgement for each message.
    Naive,
}

/// What it took to empty a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Emptied {
    /// Messages a second, from the first delivery until the connection is closed in order:
    /// the broker has every acknowledgement then.
    pub(crate) rate: f64,
    /// Processor time of this process, in microseconds a message.
    pub(crate) cpu_us: f64,
}

impl Loop {
    /// Handles every message of the queue.
    pub(crate) async fn empty(
        self,
        url: &str,
        queue: &str,
        messages: usize,
    ) -> Result<Emptied, Box<dyn Error>> {
        let (url, queue) = (url.to_owned(), queue.to_owned());
        // On a worker thread, as the tasks of our consumer are.
        let began = match self {
            Loop::Ours => ours(&url, &queue, messages).await,
            Loop::Raw => tokio::spawn(async move { raw(&url, &queue, messages).await }).await?,
            Loop::Naive => tokio::spawn(async move { naive(&url, &queue, messages).await }).await?,
        };
        let began = began.map_err(|error| -> Box<dyn Error> { error })?;
        let (elapsed, cpu) = began.until_now()?;
        Ok(Emptied {
            rate: messages as f64 / elapsed.as_secs_f64(),
            cpu_us: cpu.as_secs_f64() * 1e6 / messages as f64,
        })
    }
}

/// The moment of the first delivery.
#[derive(Debug, Clone, Copy)]
struct Began {
    at: Instant,
    cpu: ProcessTime,
}

impl Began {
    fn now() -> std::io::Result<Self> {
        Ok(Self { at: Instant::now(), cpu: ProcessTime::try_now()? })
    }

    fn until_now(self) -> std::io::Result<(Duration, Duration)> {
        Ok((self.at.elapsed(), self.cpu.try_elapsed()?))
    }
}

async fn ours(url: &str, queue: &str, messages: usize) -> Result<Began, Box<dyn Error + Send + Sync>> {
    let seen = Arc::new(AtomicUsize::new(0));
    let began = Arc::new(Mutex::new(None));
    let shutdown = Shutdown::new();
    let (first, stop) = (began.clone(), shutdown.clone());
    let handler = move |_cx: Context, _message: Message| {
        let place = seen.fetch_add(1, Relaxed) + 1;
        if place == 1 {
            *first.lock().unwrap_or_else(PoisonError::into_inner) = Began::now().ok();
        }
        if place == messages {
            stop.stop();
        }
        std::future::ready(Ok::<(), Failure>(()))
    };
    let consumer = Consumer::new("bench", RabbitBroker::from_url(url)?)
        .in_flight(usize::from(PREFETCH))
        .topology(Topology::Trust)
        .shutdown(shutdown)
        .topic("bench")
        .queue(queue)
        .unguarded(handler);
    consumer.run().await?;
    let began = began.lock().unwrap_or_else(PoisonError::into_inner).take();
    began.ok_or_else(|| "the clock of the process cannot be read".into())
}

/// A connection that consumes the queue.
async fn consume(
    url: &str,
    queue: &str,
) -> Result<(Connection, lapin::Channel, lapin::Consumer), lapin::Error> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let (options, table) = (BasicConsumeOptions::default(), FieldTable::default());
    let consumer = channel.basic_consume(queue.into(), "".into(), options, table).await?;
    Ok((connection, channel, consumer))
}

async fn raw(url: &str, queue: &str, messages: usize) -> Result<Began, Box<dyn Error + Send + Sync>> {
    let (connection, channel, mut consumer) = consume(url, queue).await?;
    let mut began = None;
    let mut done = 0;
    while done < messages {
        let delivery = consumer.next().await.ok_or("the consumer ended")??;
        if began.is_none() {
            began = Some(Began::now()?);
        }
        handle(&delivery);
        done += 1;
        if done % ACK_EVERY == 0 || done == messages {
            channel.basic_ack(delivery.delivery_tag, BasicAckOptions { multiple: true }).await?;
        }
    }
    close(connection, channel, consumer).await?;
    began.ok_or_else(|| "no message came".into())
}

async fn naive(url: &str, queue: &str, messages: usize) -> Result<Began, Box<dyn Error + Send + Sync>> {
    let (connection, channel, mut consumer) = consume(url, queue).await?;
    let mut began = None;
    for _ in 0..messages {
        let delivery = consumer.next().await.ok_or("the consumer ended")??;
        if began.is_none() {
            began = Some(Began::now()?);
        }
        handle(&delivery);
        delivery.ack(BasicAckOptions::default()).await?;
    }
    close(connection, channel, consumer).await?;
    began.ok_or_else(|| "no message came".into())
}

/// Closes in order. A quorum queue has applied every acknowledgement when it answers to the
/// cancel; without one, some of the last were seen to be lost.
async fn close(
    connection: Connection,
    channel: lapin::Channel,
    consumer: lapin::Consumer,
) -> Result<(), lapin::Error> {
    channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await?;
    connection.close(200, "done".into()).await
}

/// A handler that is ready at once.
fn handle(delivery: &Delivery) {
    std::hint::black_box(&delivery.data);
}
