//! One task a queue: it opens the queue, fetches as long as there is room, and keeps its lock.

use std::sync::Arc;
use std::time::Duration;

use oncemq_core::partitions::Assignment;
use oncemq_core::{Error, ErrorKind, Event, Scope};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::beginning::commit_first;
use super::part::{Begin, Pace, Part};
use super::shared::Shared;
use crate::cluster::{Cluster, Member, Moved, Pulled, Queue};
use crate::error;

/// The wait after a first failed try; it doubles up to the longest.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Between two tries to get a lock that another member has.
const LOCK_WAIT: Duration = Duration::from_millis(500);
/// A lock is renewed so often. The broker takes it back after a minute; in doubt it is lost
/// somewhat earlier.
pub(crate) const LOCK_RENEW: Duration = Duration::from_secs(10);
const LOCK_LIFE: Duration = Duration::from_secs(45);
/// After this time a broker that has just started knows its queues.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// What fetches one queue.
#[derive(Debug, Clone)]
pub(crate) struct Puller {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) member: Arc<Member>,
    pub(crate) queue: Queue,
    pub(crate) pace: Pace,
    /// Nobody else may work on it: handlers of its messages must not overlap.
    pub(crate) locked: bool,
    /// How long the member that had it before may take to commit.
    pub(crate) patience: Duration,
    /// Told when a broker has forgotten this member, and its locks with it.
    pub(crate) renew: Arc<Notify>,
}

impl Puller {
    /// Until it is aborted.
    pub(crate) async fn run(self) {
        sleep(self.patience).await;
        let mut wait = WAIT_MIN;
        loop {
            match self.once().await {
                // The lock is lost: nothing of what is out counts any more.
                Ok(()) => {
                    self.let_go();
                    wait = WAIT_MIN;
                }
                // A broker that the topic has just come to may not know the group yet.
                Err(error) if error::is_final(&error) && error.kind() != ErrorKind::Topology => {
                    return self.shared.fail(error);
                }
                Err(error) => {
                    self.shared.trouble(&self.queue.to_string(), Some(error.to_string()));
                    sleep(wait).await;
                    wait = (wait * 2).min(WAIT_MAX);
                }
            }
        }
    }

    /// Opens the queue and fetches until its lock is lost. An error is one of opening.
    async fn once(&self) -> Result<(), Error> {
        let locked = self.lock().await?;
        let begin = self.begin().await?;
        let room = Arc::new(Notify::new());
        let part = Part::new(self.queue.clone(), begin, self.pace, room.clone());
        let which = self.shared.state().parts.add(part);
        self.shared.trouble(&self.queue.to_string(), None);
        let lost = async {
            match locked {
                Some(since) => self.keep_lock(since).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.fetch(which, begin.offset, &room) => {}
            () = lost => {}
        }
        Ok(())
    }

    /// Waits for the lock, if one is wanted. Returns when it was taken.
    async fn lock(&self) -> Result<Option<Instant>, Error> {
        if !self.locked {
            return Ok(None);
        }
        loop {
            let asked = Instant::now();
            if self.cluster.lock(&self.queue, &self.member).await? {
                return Ok(Some(asked));
            }
            sleep(LOCK_WAIT).await;
        }
    }

    /// Returns when the lock is lost.
    async fn keep_lock(&self, mut since: Instant) {
        while since.elapsed() < LOCK_LIFE {
            tokio::select! {
                () = sleep(LOCK_RENEW.min(LOCK_LIFE.saturating_sub(since.elapsed()))) => {}
                () = self.renew.notified() => {}
            }
            let asked = Instant::now();
            match self.cluster.lock(&self.queue, &self.member).await {
                Ok(true) => since = asked,
                Ok(false) => return,
                Err(_) => sleep(WAIT_MAX).await,
            }
        }
    }

    /// Where to go on. A group that has committed nothing commits where it begins before
    /// anything is handed out: the next start must know that something may have been.
    async fn begin(&self) -> Result<Begin, Error> {
        let group = &self.member.group;
        if let Some(offset) = self.cluster.committed(group, &self.queue).await? {
            return Ok(Begin { offset, known: true });
        }
        let (offset, _) = self.cluster.bounds(&self.queue).await?;
        commit_first(&self.cluster, group, vec![(self.queue.clone(), offset)]).await?;
        Ok(Begin { offset, known: false })
    }

    async fn fetch(&self, which: Assignment, mut offset: i64, room: &Notify) {
        let mut wait = WAIT_MIN;
        let name = self.queue.to_string();
        let mut troubled = false;
        loop {
            let has_room = self.shared.state().parts.get(which).map(Part::has_room);
            match has_room {
                Some(true) => {}
                Some(false) => {
                    room.notified().await;
                    continue;
                }
                None => return,
            }
            match self.step(which, offset).await {
                Ok(Some(next)) => offset = next,
                Ok(None) => return,
                // Not even a refusal ends it: an operator may switch a group off for a while, or
                // take a broker's rights. What is gone for good is seen by who looks at routes.
                Err(error) => {
                    if error::is_final(&error) {
                        self.cluster.doubt_routes();
                    }
                    troubled = true;
                    self.shared.trouble(&name, Some(error.to_string()));
                    sleep(wait).await;
                    wait = (wait * 2).min(WAIT_MAX);
                    continue;
                }
            }
            wait = WAIT_MIN;
            if std::mem::take(&mut troubled) {
                self.shared.trouble(&name, None);
            }
        }
    }

    /// Fetches once. Returns where to go on, `None` if the queue is to be opened anew.
    async fn step(&self, which: Assignment, offset: i64) -> Result<Option<i64>, Error> {
        let (messages, next) = match self.cluster.pull(&self.member.group, &self.queue, offset).await? {
            Pulled::Messages(messages, next) => (messages, next),
            Pulled::None(next) => (Vec::new(), next),
            Pulled::Moved(moved) => return self.mend(which, offset, moved).await,
        };
        let mut state = self.shared.state();
        // Nothing is filtered, so what is left out is not there any more.
        let mut expected = offset;
        for found in messages.iter().map(|message| message.offset).chain([next]) {
            if found > expected {
                state.tell(self.gap(expected, found));
            }
            expected = found + 1;
        }
        if let Some(part) = state.parts.get_mut(which) {
            part.fetched(messages);
        }
        drop(state);
        self.shared.answers.wake();
        Ok(Some(next))
    }

    /// An offset is not there any more, or an operator has set another: tells what is left out,
    /// and returns where to go on. `None` if the queue is to be opened anew.
    async fn mend(&self, which: Assignment, offset: i64, moved: Moved) -> Result<Option<i64>, Error> {
        let group = &self.member.group;
        let Moved { mut first, mut end, next } = moved;
        if (first..=end).contains(&offset) && next != offset {
            // Commits from before were thrown away by the broker.
            self.cluster.commit(group, &self.queue, next).await?;
            self.tell_gap(offset, next);
            return Ok(None);
        }
        if offset > end {
            // A broker that has just started may not know yet how far it had come.
            sleep(SECOND_LOOK).await;
            (first, end) = self.cluster.bounds(&self.queue).await?;
        }
        if (first..=end).contains(&offset) {
            return Ok(Some(offset));
        }
        // Beyond the end the queue was made anew or cut: what is there has another history, and
        // begins at its beginning.
        let anew = offset > end;
        if anew {
            self.cluster.commit(group, &self.queue, first).await?;
        } else if let Some(part) = self.shared.settled().parts.get_mut(which) {
            part.progress.skip_to(first);
        }
        self.tell_gap(offset, first);
        Ok((!anew).then_some(first))
    }

    fn tell_gap(&self, from: i64, to: i64) {
        self.shared.state().tell(self.gap(from, to));
        self.shared.answers.wake();
    }

    fn gap(&self, from: i64, to: i64) -> Event {
        Event::Gap {
            topic: self.queue.topic.to_string(),
            server: Some(self.queue.broker.clone()),
            partition: self.queue.number,
            from,
            to,
        }
    }

    /// The queue is not ours any more.
    fn let_go(&self) {
        let mut state = self.shared.state();
        state.tell(revoking(&self.queue, Instant::now()));
        state.remove(&self.queue);
        drop(state);
        self.shared.answers.wake();
    }
}

pub(crate) fn revoking(queue: &Queue, deadline: Instant) -> Event {
    let one = (queue.topic.to_string(), queue.broker.clone(), queue.number);
    Event::Revoking { scope: Scope::ServerPartitions(vec![one]), deadline }
}

#[cfg(test)]
mod tests;
