//! The intake against a source that appends nothing unless it is asked for more.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use oncemq_core::{
    Ack, Broker, Capabilities, Consumer, ConsumerSpec, Context, Delivery, Error, ErrorKind, Event, Facts,
    Failure, Message, Plan, Publisher, Settle, Shutdown, Source, Token,
};

/// A log with one waker, as a client with a thread of its own has it: whoever wakes the
/// task uses the waker up.
#[derive(Debug, Default)]
struct Log {
    state: Mutex<State>,
    accepted: AtomicUsize,
    out_max: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<u64>,
    out: usize,
    waker: Option<Waker>,
}

impl Settle for Log {
    fn settle(&self, _token: Token, _message: Message, ack: Ack) {
        if matches!(ack, Ack::Accept) {
            self.accepted.fetch_add(1, SeqCst);
        }
        let mut state = self.state.lock().unwrap();
        state.out -= 1;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

/// The flag makes answers fall into the gap before the waker is kept.
struct LogSource(Arc<Log>, bool);

#[async_trait]
impl Source for LogSource {
    fn poll_events(
        &mut self,
        cx: &mut TaskContext<'_>,
        max: usize,
        events: &mut Vec<Event>,
    ) -> Poll<Result<(), Error>> {
        if max == 0 && self.1 {
            // The answer falls exactly between the look at the places and the keeping of
            // the waker: it wakes nobody.
            tokio::task::block_in_place(|| {
                while self.outstanding() > 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let mut state = self.0.state.lock().unwrap();
        let n = max.min(state.waiting.len());
        for id in state.waiting.drain(..n) {
            let token = Token { epoch: 0, scope: 0, id };
            let message = Message::new(id.to_string());
            events.push(Event::Delivery(Delivery::new(message, Facts::default(), token, self.0.clone())));
        }
        state.out += n;
        self.0.out_max.fetch_max(state.out, SeqCst);
        if n > 0 {
            return Poll::Ready(Ok(()));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn outstanding(&self) -> usize {
        self.0.state.lock().unwrap().out
    }

    async fn flush(&mut self, _limit: Duration) -> bool {
        true
    }

    async fn close(&mut self, _limit: Duration) -> Result<(), Error> {
        Ok(())
    }
}

#[derive(Debug)]
struct LogBroker(Arc<Log>, bool);

#[async_trait]
impl Broker for LogBroker {
    fn capabilities(&self) -> Capabilities {
        Capabilities::log("log")
    }

    async fn prepare(&self, _consumer: &ConsumerSpec, _plan: &mut Plan) -> Result<(), Error> {
        Ok(())
    }

    async fn subscribe(&self, _consumer: &ConsumerSpec) -> Result<Box<dyn Source>, Error> {
        Ok(Box::new(LogSource(self.0.clone(), self.1)))
    }

    async fn publisher(&self) -> Result<Arc<dyn Publisher>, Error> {
        Err(Error::new(ErrorKind::Config, "this broker only consumes"))
    }
}

async fn slow(_cx: Context, _message: Message) -> Result<(), Failure> {
    tokio::time::sleep(Duration::from_millis(1)).await;
    Ok(())
}

async fn all_handled(in_flight: usize, messages: usize, in_the_gap: bool) {
    let log = Arc::new(Log::default());
    log.state.lock().unwrap().waiting.extend(0..messages as u64);
    let shutdown = Shutdown::new();
    let consumer = Consumer::new("reader", LogBroker(log.clone(), in_the_gap))
        .in_flight(in_flight)
        .shutdown(shutdown.clone())
        .topic("orders")
        .unguarded(slow);
    let run = tokio::spawn(consumer.run());
    let done = async {
        while log.accepted.load(SeqCst) < messages {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(20), done).await;
    assert!(in_time.is_ok(), "stopped after {} of {messages}", log.accepted.load(SeqCst));
    assert_eq!(log.out_max.load(SeqCst), in_flight, "the places were not all used, or too many");
    shutdown.stop();
    let summary = run.await.unwrap().unwrap();
    assert_eq!(summary.handled, messages as u64);
}

#[tokio::test]
async fn a_place_that_becomes_free_is_filled_without_any_other_event() {
    all_handled(4, 200, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_place_that_becomes_free_before_the_waker_is_kept_is_filled() {
    all_handled(1, 20, true).await;
}
