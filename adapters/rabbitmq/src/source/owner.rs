//! The task that owns a consumer's connection and channels.

mod answers;
mod links;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use lapin::Connection;
use oncemq_core::{Error, Event, Health};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::lane::{Lane, LaneSpec, Opened, State, Write};
use super::{Note, RabbitSource, Shared};
use crate::config::Config;
use crate::connection::Backoff;
use crate::settle::{AckFrame, Command, Copies, Held, Link};

/// How often everything is looked at that has no way to speak up.
const LOOK: Duration = Duration::from_millis(500);
/// How long an acknowledgement may wait for others that go with it.
const LINGER: Duration = Duration::from_millis(2);
/// Commands taken at a time.
const BATCH: usize = 1024;
/// A confirmation that takes longer is worth a word.
const STALLED: Duration = Duration::from_secs(5);

/// Connects and consumes every queue.
///
/// # Errors
/// The first thing that is not as it must be. Later troubles are waited for.
pub(crate) async fn start(
    config: Arc<Config>,
    consumer: Arc<str>,
    specs: Vec<LaneSpec>,
) -> Result<RabbitSource, Error> {
    let shared = Arc::new(Shared::default());
    let (commands, inbox) = mpsc::unbounded_channel();
    let incoming = specs.iter().map(|_| None).collect();
    let lanes = specs.into_iter().map(Lane::new).collect();
    let mut owner = Owner {
        copies: Copies::new(config.clone(), &consumer),
        name: format!("{consumer} consumer").into(),
        config,
        shared: shared.clone(),
        inbox,
        connection: Wire::Down { retry_at: Instant::now(), why: "starting".to_owned() },
        connection_backoff: Backoff::default(),
        lanes,
        opening: FuturesUnordered::new(),
        writes: FuturesUnordered::new(),
        copy_error: None,
        held: Held::default(),
        flushes: Vec::new(),
        frames: Vec::new(),
        linger: None,
        epoch: 0,
        health: Health::Starting,
        next_look: Instant::now(),
    };
    owner.open_all().await?;
    Ok(RabbitSource {
        shared,
        settle: Arc::new(Link::new(commands.clone())),
        commands,
        owner: tokio::spawn(owner.run()),
        incoming,
        turn: 0,
        closed: false,
    })
}

/// A connection or a channel that was waited for.
enum Ready {
    Connection(Result<Connection, Error>),
    Lane(usize, Result<Opened, Error>),
}

/// The connection to consume on.
enum Wire {
    Down { retry_at: Instant, why: String },
    Opening { why: String },
    Up(Arc<Connection>),
}

struct Owner {
    /// What the broker's list of connections shows.
    name: Arc<str>,
    config: Arc<Config>,
    shared: Arc<Shared>,
    inbox: mpsc::UnboundedReceiver<Command>,
    connection: Wire,
    connection_backoff: Backoff,
    lanes: Vec<Lane>,
    opening: FuturesUnordered<BoxFuture<'static, Ready>>,
    writes: FuturesUnordered<Write>,
    copies: Copies,
    /// The last error of a copy, until one is confirmed.
    copy_error: Option<String>,
    held: Held,
    flushes: Vec<oneshot::Sender<()>>,
    frames: Vec<AckFrame>,
    /// Until when acknowledgements wait.
    linger: Option<Instant>,
    epoch: u64,
    health: Health,
    next_look: Instant,
}

/// How the owner was asked to end.
struct End {
    deadline: Instant,
    done: oneshot::Sender<()>,
}

impl Owner {
    async fn run(mut self) {
        self.look();
        if let Some(end) = self.serve(None).await {
            self.shut(end).await;
        }
    }

    /// Serves until it is told to close, or until nothing is left to apply or the time is
    /// over, if it has been told.
    async fn serve(&mut self, until: Option<Instant>) -> Option<End> {
        let mut batch = Vec::with_capacity(BATCH);
        let mut sleep = pin!(sleep_until(self.next_look));
        loop {
            if until.is_some_and(|until| self.is_quiet() || Instant::now() >= until) {
                return None;
            }
            let times = [Some(self.next_look), self.held.next(), self.linger, until];
            let due = times.into_iter().flatten().min().unwrap_or(self.next_look);
            if sleep.deadline() != due {
                sleep.as_mut().reset(due);
            }
            tokio::select! {
                biased;
                Some(count) = self.writes.next(), if !self.writes.is_empty() => self.shared.free(count),
                copied = self.copies.next() => self.copied(copied),
                Some(ready) = self.opening.next(), if !self.opening.is_empty() => self.ready(ready),
                taken = self.inbox.recv_many(&mut batch, BATCH) => {
                    if taken == 0 {
                        // Neither the source nor any delivery is left.
                        return None;
                    }
                    if let Some(end) = self.take(&mut batch).await {
                        return Some(end);
                    }
                }
                () = sleep.as_mut() => self.wake(Instant::now()),
            }
            self.send_acks(until.is_some()).await;
            self.answer_flushes();
        }
    }

    /// Takes commands, and those that come while others get their turn: one frame then
    /// answers for more deliveries.
    async fn take(&mut self, batch: &mut Vec<Command>) -> Option<End> {
        let mut end = None;
        loop {
            let before = batch.len();
            tokio::task::yield_now().await;
            while batch.len() < BATCH
                && let Ok(command) = self.inbox.try_recv()
            {
                batch.push(command);
            }
            if batch.len() == before || batch.len() >= BATCH {
                break;
            }
        }
        for command in batch.drain(..) {
            match command {
                Command::Accept(token) => self.accept(token),
                Command::Settle(answer) => {
                    let (token, message, ack) = *answer;
                    self.settle(token, message, ack);
                }
                Command::Ended { lane, epoch, error } => self.ended(lane, epoch, error.as_deref()),
                Command::Flush(done) => self.flushes.push(done),
                Command::Close { deadline, done } => end = Some(End { deadline, done }),
            }
        }
        end
    }

    /// Everything whose time has come.
    fn wake(&mut self, now: Instant) {
        while let Some(due) = self.held.pop(now) {
            self.due(due);
        }
        if now >= self.next_look {
            self.look();
            self.next_look = now + LOOK;
        }
    }

    /// Whether everything handed over is applied or void.
    fn is_quiet(&self) -> bool {
        self.writes.is_empty()
            && self.copies.is_idle()
            && self.held.copies() == 0
            && self.inbox.is_empty()
            && !self
                .lanes
                .iter()
                .any(|lane| matches!(&lane.state, State::Up(up) if up.tracker.accepted() > 0))
    }

    fn answer_flushes(&mut self) {
        if !self.flushes.is_empty() && self.is_quiet() {
            for done in self.flushes.drain(..) {
                // Nobody waits any more if its time was over.
                let _ = done.send(());
            }
        }
    }

    /// Applies what it can in time, then closes: the broker takes back everything else.
    async fn shut(mut self, end: End) {
        self.send_acks(true).await;
        let left = end.deadline.saturating_duration_since(Instant::now());
        // A second close cannot come: the source has sent its only one.
        let _ = Box::pin(self.serve(Some(end.deadline - left / 4))).await;
        self.answer_flushes();
        let left = end.deadline.saturating_duration_since(Instant::now());
        // A broker that does not answer a cancel does not answer what follows either.
        let _ = timeout_at(end.deadline - left / 2, self.cancel_all()).await;
        let left = end.deadline.saturating_duration_since(Instant::now());
        self.copies.close(left / 2).await;
        if let Wire::Up(connection) = &self.connection {
            // It may be closed already, or not answer: then it is only left.
            let _ = timeout_at(end.deadline, connection.close(200, "done".into())).await;
        }
        // The source gave up waiting if its time was over.
        let _ = end.done.send(());
    }

    // Mutable because a shared reference would have to be `Sync` to be held while waiting.
    async fn cancel_all(&mut self) {
        for lane in &self.lanes {
            if let State::Up(up) = &lane.state {
                up.cancel().await;
            }
        }
    }

    fn set_health(&mut self, health: Health) {
        if self.health != health {
            self.health = health.clone();
            self.shared.note(Note::Event(Event::Health(health)));
        }
    }
}
