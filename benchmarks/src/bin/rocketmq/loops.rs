//! The loops that read the topic.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use oncemq_core::{Consumer, Context, Failure, Message, Shutdown, Topology};
use rocketmq_client_rust::{
    ClientResult, ClientRuntime, ClientRuntimeConfig, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus,
    DefaultLitePullConsumer, DefaultMQPushConsumer, MQPushConsumer, MessageListenerConcurrently,
    TelemetryHandle,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};
use tokio::sync::Notify;

use crate::topic::Topic;

/// How long a handler takes that does not end at once.
pub(crate) const SLEEP: Duration = Duration::from_millis(100);
const COMMIT: Duration = Duration::from_millis(500);
/// Listeners of the push consumer that run at a time.
const LISTENERS: usize = 64;

/// Who reads the topic.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Loop {
    /// Our consumer, unguarded.
    Ours { in_flight: usize },
    /// The lite pull consumer, which commits by time.
    Raw,
    /// The push consumer.
    Push,
}

/// What a handler does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// It is ready at once.
    Ready,
    /// It sleeps.
    Sleeping,
}

impl Loop {
    /// Messages a second, from the first one until the last one is done and committed.
    pub(crate) async fn rate(
        self,
        topic: &Topic,
        messages: usize,
        work: Work,
    ) -> Result<f64, Box<dyn Error>> {
        let group = topic.group().await?;
        let taken = match self {
            Loop::Ours { in_flight } => ours(topic, &group, in_flight, messages, work).await?,
            Loop::Raw => raw(topic, &group, messages).await?,
            Loop::Push => push(topic, &group, messages).await?,
        };
        Ok(messages as f64 / taken.as_secs_f64())
    }
}

async fn ours(
    topic: &Topic,
    group: &str,
    in_flight: usize,
    messages: usize,
    work: Work,
) -> Result<Duration, Box<dyn Error>> {
    let (seen, began) = (Arc::new(AtomicUsize::new(0)), Arc::new(OnceLock::new()));
    let shutdown = Shutdown::new();
    let (first, stop) = (began.clone(), shutdown.clone());
    let handler = move |_: Context, _: Message| {
        first.get_or_init(Instant::now);
        let (seen, stop) = (seen.clone(), stop.clone());
        async move {
            if work == Work::Sleeping {
                tokio::time::sleep(SLEEP).await;
            }
            if seen.fetch_add(1, Relaxed) + 1 == messages {
                stop.stop();
            }
            Ok::<(), Failure>(())
        }
    };
    Consumer::new(group, topic.broker.clone())
        .in_flight(in_flight)
        .topology(Topology::Trust)
        .shutdown(shutdown)
        .topic(topic.name.as_str())
        .retry("dead-letter".parse()?)
        .unguarded(handler)
        .run()
        .await?;
    Ok(began.get().ok_or("no message came")?.elapsed())
}

/// The threads of the client, once a process.
fn runtime() -> Result<Arc<ClientRuntime>, Box<dyn Error>> {
    static RUNTIME: OnceLock<(Arc<ClientRuntime>, RuntimeOwner)> = OnceLock::new();
    if let Some((client, _)) = RUNTIME.get() {
        return Ok(client.clone());
    }
    let mut config = RuntimeConfig::for_parallelism("bench", 2);
    // Where listeners run. Of its own accord the client would run four of them at a time.
    config.blocking_lane_policies.metadata_io.max_concurrency = LISTENERS;
    config.blocking_lane_policies.metadata_io.max_queue_depth = 100 * LISTENERS;
    config.max_blocking_threads += LISTENERS;
    let owner = RuntimeOwner::plan(config)?.build()?;
    let context = owner.root_context().component("bench");
    let client = ClientRuntime::try_new(context, ClientRuntimeConfig::default(), TelemetryHandle::noop())?;
    Ok(RUNTIME.get_or_init(|| (client, owner)).0.clone())
}

async fn raw(topic: &Topic, group: &str, messages: usize) -> Result<Duration, Box<dyn Error>> {
    let consumer = DefaultLitePullConsumer::builder(runtime()?)
        .name_server_addr(topic.address.as_str())
        .consumer_group(group)
        .instance_name(group)
        .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
        .broker_suspend_max_time_millis(1_000)
        .auto_commit(false)
        .build()?;
    consumer.subscribe(&topic.name).await?;
    consumer.start().await?;
    let (mut seen, mut began, mut committed) = (0, None, Instant::now());
    while seen < messages {
        let polled = consumer.poll_with_timeout_zero_copy(1_000).await;
        if polled.is_empty() {
            continue;
        }
        began.get_or_insert_with(Instant::now);
        polled.iter().for_each(|message| drop(std::hint::black_box(message.body())));
        seen += polled.len();
        if committed.elapsed() >= COMMIT {
            consumer.commit_all().await?;
            committed = Instant::now();
        }
    }
    consumer.commit_all().await?;
    let taken = began.ok_or("no message came")?.elapsed();
    // Its end takes seconds and is not measured.
    consumer.shutdown().await;
    Ok(taken)
}

async fn push(topic: &Topic, group: &str, messages: usize) -> Result<Duration, Box<dyn Error>> {
    let mut consumer = DefaultMQPushConsumer::builder(runtime()?)
        .name_server_addr(topic.address.as_str())
        .consumer_group(group)
        .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
        .consume_thread_min(u32::try_from(LISTENERS)?)
        .consume_thread_max(u32::try_from(LISTENERS)?)
        .build();
    consumer.subscribe(topic.name.as_str(), "*").await?;
    let listener = Listener { messages, seen: Arc::default(), began: Arc::default(), done: Arc::default() };
    let (began, done) = (listener.began.clone(), listener.done.clone());
    consumer.register_message_listener_concurrently(listener);
    consumer.start().await?;
    done.notified().await;
    let taken = began.get().ok_or("no message came")?.elapsed();
    consumer.shutdown().await;
    Ok(taken)
}

/// A listener that is ready at once.
struct Listener {
    messages: usize,
    seen: Arc<AtomicUsize>,
    began: Arc<OnceLock<Instant>>,
    done: Arc<Notify>,
}

impl MessageListenerConcurrently for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        self.began.get_or_init(Instant::now);
        messages.iter().for_each(|message| drop(std::hint::black_box(message.body())));
        if self.seen.fetch_add(messages.len(), Relaxed) + messages.len() >= self.messages {
            self.done.notify_one();
        }
        Ok(ConsumeConcurrentlyStatus::ConsumeSuccess)
    }
}
