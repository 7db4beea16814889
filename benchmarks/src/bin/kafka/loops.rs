//! The loops that read the topic.

use std::error::Error;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oncemq_core::{Consumer, Context, Failure, Handler, Key, Message, Shutdown, TopicBuilder, Topology};
use oncemq_idempotency::{Inbox, Tx};
use oncemq_kafka::KafkaBroker;
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, StreamConsumer};
use rdkafka::message::Message as _;
use sqlx::Postgres;

use crate::parallel;
use crate::topic::Topic;

/// Who reads the topic.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Loop {
    /// Our consumer, unguarded.
    Ours { in_flight: usize },
    /// The client in a task, which stores each offset and commits by time.
    Raw,
    /// The same on a thread of its own, which can await no handler.
    Thread,
    /// The client in a task, which waits for each handler.
    OneByOne,
    /// Our consumer with an inbox.
    Inbox,
    /// Confluent's Parallel Consumer.
    Parallel { in_flight: usize },
}

/// What a handler does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// It is ready at once.
    Ready,
    /// It sleeps for 0 to 5 ms.
    Sleeping,
}

/// When the first message came.
type Began = Arc<Mutex<Option<Instant>>>;
pub(crate) type Failed = Box<dyn Error + Send + Sync>;

impl Loop {
    /// Messages a second, from the first one until the last one is done and committed.
    pub(crate) async fn rate(
        self,
        topic: &Topic,
        messages: usize,
        work: Work,
    ) -> Result<f64, Box<dyn Error>> {
        static GROUPS: AtomicU32 = AtomicU32::new(0);
        let group = format!("{}-{}", topic.name, GROUPS.fetch_add(1, Relaxed));
        let began: Result<Instant, Failed> = match self {
            Loop::Ours { in_flight } => ours(topic, &group, in_flight, messages, work).await,
            Loop::Inbox => with_inbox(topic, &group, messages).await,
            Loop::Parallel { in_flight } => {
                let rate = parallel::rate(topic, &group, in_flight, messages).await;
                return rate.map_err(|error| -> Box<dyn Error> { error });
            }
            Loop::Raw => {
                let (url, name) = (topic.url.clone(), topic.name.clone());
                // On a worker thread, as the tasks of our consumer are.
                tokio::spawn(async move { in_task(&url, &name, &group, messages, Work::Ready).await }).await?
            }
            Loop::Thread => {
                let (url, name) = (topic.url.clone(), topic.name.clone());
                tokio::task::spawn_blocking(move || on_thread(&url, &name, &group, messages)).await?
            }
            Loop::OneByOne => in_task(&topic.url, &topic.name, &group, messages, work).await,
        };
        let began = began.map_err(|error| -> Box<dyn Error> { error })?;
        Ok(messages as f64 / began.elapsed().as_secs_f64())
    }
}

/// 0 to 5 ms, the same for a message in every loop.
fn time_of(offset: i64) -> Duration {
    let spread = u64::try_from(offset).unwrap_or_default().wrapping_mul(2_654_435_761) % 5_001;
    Duration::from_micros(spread)
}

async fn ours(
    topic: &Topic,
    group: &str,
    in_flight: usize,
    messages: usize,
    work: Work,
) -> Result<Instant, Failed> {
    let seen = Arc::new(AtomicUsize::new(0));
    let (began, shutdown) = (Began::default(), Shutdown::new());
    let (first, stop) = (began.clone(), shutdown.clone());
    let done = move || {
        if seen.fetch_add(1, Relaxed) + 1 == messages {
            stop.stop();
        }
    };
    let begin = move || {
        first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
    };
    let topic_of =
        |consumer: Consumer| consumer.topology(Topology::Trust).shutdown(shutdown).topic(topic.name.as_str());
    let consumer = topic_of(Consumer::new(group, KafkaBroker::from_url(&topic.url)?).in_flight(in_flight));
    let consumer = consumer.retry("dead-letter".parse()?);
    match work {
        Work::Ready => {
            let handler = move |_cx: Context, _message: Message| {
                begin();
                done();
                std::future::ready(Ok::<(), Failure>(()))
            };
            run(consumer, handler).await?;
        }
        Work::Sleeping => {
            let done = Arc::new(done);
            let handler = move |_cx: Context, message: Message| {
                begin();
                let (done, time) = (done.clone(), time_of(message.origin().offset.unwrap_or_default()));
                async move {
                    tokio::time::sleep(time).await;
                    done();
                    Ok::<(), Failure>(())
                }
            };
            run(consumer, handler).await?;
        }
    }
    finished(&began)
}

async fn run(
    consumer: TopicBuilder,
    handler: impl Handler<Context, Message>,
) -> Result<(), oncemq_core::Error> {
    consumer.unguarded(handler).run().await.map(drop)
}

async fn with_inbox(topic: &Topic, group: &str, messages: usize) -> Result<Instant, Failed> {
    let url = std::env::var("ONCEMQ_POSTGRES_URL").map_err(|_| "ONCEMQ_POSTGRES_URL names no database")?;
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(20).connect(&url).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS bench_effect (id bigint)").execute(&pool).await?;
    let inbox = Inbox::open(pool.clone()).await?;
    let seen = Arc::new(AtomicUsize::new(0));
    let (began, shutdown) = (Began::default(), Shutdown::new());
    let (first, stop) = (began.clone(), shutdown.clone());
    let handler = move |mut tx: Tx<Postgres>, message: Message| {
        first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
        if seen.fetch_add(1, Relaxed) + 1 == messages {
            stop.stop();
        }
        async move {
            let offset = message.origin().offset.unwrap_or_default();
            sqlx::query("INSERT INTO bench_effect VALUES ($1)").bind(offset).execute(tx.db()).await?;
            Ok::<(), Failure>(())
        }
    };
    Consumer::new(group, KafkaBroker::from_url(&topic.url)?)
        .in_flight(256)
        .topology(Topology::Trust)
        .shutdown(shutdown)
        .topic(topic.name.as_str())
        .key(Key::header("oncemq-bench"))
        .key(Key::message_id())
        .retry("dead-letter".parse()?)
        .handler(inbox.handler(handler))
        .run()
        .await?;
    sqlx::query("TRUNCATE bench_effect").execute(&pool).await?;
    finished(&began)
}

fn finished(began: &Began) -> Result<Instant, Failed> {
    let began = began.lock().unwrap_or_else(PoisonError::into_inner).take();
    began.ok_or_else(|| "no message came".into())
}

fn consumer<T: FromClientConfig + rdkafka::consumer::Consumer>(
    url: &str,
    topic: &str,
    group: &str,
) -> Result<T, Failed> {
    let consumer: T = ClientConfig::new()
        .set("bootstrap.servers", url.trim_start_matches("kafka://"))
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.offset.store", "false")
        .set("auto.commit.interval.ms", "500")
        .create()?;
    consumer.subscribe(&[topic])?;
    Ok(consumer)
}

async fn in_task(
    url: &str,
    topic: &str,
    group: &str,
    messages: usize,
    work: Work,
) -> Result<Instant, Failed> {
    let consumer: StreamConsumer = consumer(url, topic, group)?;
    let mut began = None;
    for _ in 0..messages {
        let message = consumer.recv().await?;
        began.get_or_insert_with(Instant::now);
        std::hint::black_box(message.payload());
        if work == Work::Sleeping {
            tokio::time::sleep(time_of(message.offset())).await;
        }
        consumer.store_offset_from_message(&message)?;
    }
    consumer.commit_consumer_state(CommitMode::Sync)?;
    // The end of a client blocks its thread.
    tokio::task::spawn_blocking(move || drop(consumer)).await?;
    began.ok_or_else(|| "no message came".into())
}

fn on_thread(url: &str, topic: &str, group: &str, messages: usize) -> Result<Instant, Failed> {
    let consumer: BaseConsumer = consumer(url, topic, group)?;
    let mut began = None;
    let mut done = 0;
    while done < messages {
        let Some(polled) = consumer.poll(Duration::from_millis(100)) else { continue };
        let message = polled?;
        began.get_or_insert_with(Instant::now);
        std::hint::black_box(message.payload());
        consumer.store_offset_from_message(&message)?;
        done += 1;
    }
    consumer.commit_consumer_state(CommitMode::Sync)?;
    drop(consumer);
    began.ok_or_else(|| "no message came".into())
}
