//! Being a member of the group: saying so, seeing the others, and taking a share of the queues.
//!
//! ```text
//! every broker ◄─ alive, and what is consumed
//!              ─► members ─┐
//! name server  ─► queues  ─┴► our share ─► a task a queue
//! ```
//!
//! Every member works out the same shares from the same lists, as the clients in Java do. A
//! broker tells nobody that a queue is about to leave: the others begin when they see the new
//! list. So what is finished is committed at once, and what runs is void.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use oncemq_core::{Error, ErrorKind};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::part::Pace;
use super::puller::{LOCK_RENEW, Puller, revoking};
use super::shared::Shared;
use crate::cluster::{Cluster, Member, Queue};
use crate::config::Config;
use crate::error;
use crate::topology::{self, Names, check_members};

/// How often the lists are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often brokers hear of us. They forget a member after two minutes, and at once when its
/// connection is gone: a new connection is nobody's until it is told.
const ALIVE: Duration = Duration::from_secs(5);
/// What another member may need to see a new list and to commit.
const PATIENCE: Duration = Duration::from_millis(2_500);
/// After a broker has forgotten its members they come back one by one, for so long.
const RESTART: Duration = Duration::from_secs(10);
/// What the last commit of a queue may take.
const LAST_COMMIT: Duration = Duration::from_secs(3);

pub(crate) struct Group {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) config: Arc<Config>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) member: Arc<Member>,
    pub(crate) pace: Pace,
    /// Topics whose queues are locked.
    pub(crate) locked: BTreeSet<Arc<str>>,
    pub(crate) owned: HashMap<Queue, JoinHandle<()>>,
    /// When each broker was last told of us.
    pub(crate) told: HashMap<Arc<str>, Instant>,
    /// Brokers that were told once.
    pub(crate) joined: BTreeSet<Arc<str>>,
    pub(crate) names: Names,
    /// Brokers on which the group was declared; `None` if that is not ours to do.
    pub(crate) declared: Option<BTreeSet<Arc<str>>>,
    /// When the other members were last looked at.
    pub(crate) checked: Instant,
    /// When a broker was last found to have forgotten this member.
    pub(crate) forgotten: Option<Instant>,
    /// Has the locks renewed.
    pub(crate) renew: Arc<Notify>,
}

impl Group {
    /// Until `end` is set; then everything is let go.
    pub(crate) async fn run(mut self, end: Arc<Notify>) {
        // Together with whoever asks for it, so that no look is cut in the middle of a change.
        let mut ended = std::pin::pin!(end.notified());
        loop {
            match self.look().await {
                Ok(()) => {
                    self.shared.trouble("group", None);
                    self.check_others().await;
                }
                Err(error) if error::is_final(&error) => self.shared.fail(error),
                Err(error) => self.shared.trouble("group", Some(error.to_string())),
            }
            tokio::select! {
                () = sleep(LOOK) => {}
                () = &mut ended => break,
            }
        }
        self.leave().await;
    }

    /// One look at the lists, and what follows from it. Where a list cannot be had, what is owned
    /// stays, and the rest goes on.
    async fn look(&mut self) -> Result<(), Error> {
        let mut silent = BTreeMap::new();
        let mut incomplete = None;
        for topic in self.member.topics.clone() {
            match self.share(&topic, &mut silent).await {
                Ok((share, patience)) => self.change(&topic, share, patience).await,
                Err(error) if error::is_final(&error) => return Err(error),
                Err(error) => incomplete = Some(error),
            }
        }
        if incomplete.is_none() {
            self.shared.joined();
        }
        incomplete.or_else(|| silent.into_values().next()).map_or(Ok(()), Err)
    }

    /// This member's queues of a topic, and how long to wait before the first of a new one. Who
    /// does not answer is noted, and not asked again in this look.
    async fn share(
        &mut self,
        topic: &Arc<str>,
        silent: &mut BTreeMap<Arc<str>, Error>,
    ) -> Result<(BTreeSet<Queue>, Duration), Error> {
        let route = self.cluster.route(topic).await?;
        let Some(first) = route.first() else { return Err(self.missing(topic)) };
        let mut members = None;
        for seat in route.iter() {
            if silent.contains_key(&seat.broker) {
                continue;
            }
            self.declare(&seat.broker).await;
            // All brokers have the same list.
            let asked = match &members {
                None => self.members(&seat.broker).await.map(|list| members = Some(list)),
                Some(_) => self.tell(&seat.broker).await,
            };
            match asked {
                Err(error) if error::is_final(&error) => return Err(error),
                Err(error) => drop(silent.insert(seat.broker.clone(), error)),
                Ok(()) => {}
            }
        }
        let Some(members) = members else {
            return Err(silent.get(&first.broker).cloned().unwrap_or_else(|| self.missing(topic)));
        };
        let restarted = self.forgotten.is_some_and(|when| when.elapsed() < RESTART);
        let patience = match (restarted, self.locked.contains(topic)) {
            (true, true) => PATIENCE * 2,
            (false, true) => Duration::ZERO,
            (false, false) if members.len() < 2 => Duration::ZERO,
            (_, false) => PATIENCE,
        };
        Ok((share_of(&self.member.id, &members, &Queue::all(topic, &route)).into_iter().collect(), patience))
    }

    /// A topic may come to a broker that does not know the group yet.
    async fn declare(&mut self, broker: &Arc<str>) {
        let Some(declared) = self.declared.as_mut().filter(|declared| !declared.contains(broker)) else {
            return;
        };
        let trouble = match topology::declare_group(&self.cluster, &self.names, broker).await {
            Ok(()) => {
                declared.insert(broker.clone());
                None
            }
            Err(error) => Some(error.to_string()),
        };
        self.shared.trouble(&format!("the group on {broker}"), trouble);
    }

    /// The members of the group, this one among them.
    async fn members(&mut self, broker: &Arc<str>) -> Result<Vec<String>, Error> {
        self.tell(broker).await?;
        let group = self.member.group.clone();
        let members = self.cluster.members(broker, &group).await?;
        if members.contains(&self.member.id) {
            return Ok(members);
        }
        self.told.remove(broker);
        self.tell(broker).await?;
        let members = self.cluster.members(broker, &group).await?;
        if members.contains(&self.member.id) {
            return Ok(members);
        }
        Err(Error::new(
            ErrorKind::Connection,
            format!(
                "{broker} does not take this consumer into the consumer group {group}: make the group there, and see \
                 that rejectPullConsumerEnable is off"
            ),
        ))
    }

    /// A broker that stops in order takes its topics off the name server first, and one that
    /// was killed is missed after a while: what was there once comes back with its broker.
    fn missing(&self, topic: &str) -> Error {
        match self.cluster.has_seen(topic) {
            true => Error::new(ErrorKind::Connection, format!("no broker of RocketMQ has topic {topic} now")),
            false => Error::new(
                ErrorKind::Topology,
                format!("there is no topic {topic} in RocketMQ; create it, or use Topology::Declare"),
            ),
        }
    }

    /// Members that started together did not see each other. None of them can be refused any
    /// more, but it can be said.
    async fn check_others(&mut self) {
        if self.checked.elapsed() < ALIVE {
            return;
        }
        self.checked = Instant::now();
        let checked = check_members(&self.cluster, &self.names).await;
        let wrong = checked.err().filter(error::is_final).map(|error| error.to_string());
        self.shared.trouble("members", wrong);
    }

    async fn tell(&mut self, broker: &Arc<str>) -> Result<(), Error> {
        if self.told.get(broker).is_some_and(|told| told.elapsed() < ALIVE) {
            return Ok(());
        }
        self.told.remove(broker);
        // One that hangs would read it when it wakes, from a connection that is gone by then, and
        // keep a member that nobody is for two minutes: it has to answer something else first.
        let members = self.cluster.members(broker, &self.member.group).await?;
        if self.joined.contains(broker) && !members.contains(&self.member.id) {
            // A new connection, or a broker that has just started: it knows no lock any more, and
            // whoever looks first seems to be alone.
            self.forgotten = Some(Instant::now());
            self.renew.notify_waiters();
        }
        self.cluster.heartbeat(broker, &self.member).await?;
        self.joined.insert(broker.clone());
        self.told.insert(broker.clone(), Instant::now());
        Ok(())
    }

    async fn change(&mut self, topic: &Arc<str>, share: BTreeSet<Queue>, patience: Duration) {
        let ours = self.owned.keys().filter(|queue| queue.topic == *topic);
        let gone: Vec<Queue> = ours.filter(|queue| !share.contains(*queue)).cloned().collect();
        self.let_go(gone).await;
        for queue in share {
            if self.owned.contains_key(&queue) {
                continue;
            }
            let puller = Puller {
                cluster: self.cluster.clone(),
                shared: self.shared.clone(),
                member: self.member.clone(),
                queue: queue.clone(),
                pace: self.pace,
                locked: self.locked.contains(topic),
                patience,
                renew: self.renew.clone(),
            };
            self.owned.insert(queue, tokio::spawn(puller.run()));
        }
    }

    /// Lets queues go: what is finished is committed. A locked queue waits for what runs, since
    /// nobody else begins before the lock is given back.
    async fn let_go(&mut self, queues: Vec<Queue>) {
        if queues.is_empty() {
            return;
        }
        let wait = queues.iter().any(|queue| self.locked.contains(&queue.topic));
        let deadline = Instant::now() + if wait { self.config.revoke_timeout } else { Duration::ZERO };
        for queue in &queues {
            if let Some(task) = self.owned.remove(queue) {
                task.abort();
                // Nobody adds the queue behind our back.
                let _ = task.await;
            }
            let mut state = self.shared.state();
            let locked = self.locked.contains(&queue.topic);
            for part in state.held_mut().filter(|part| part.queue == *queue) {
                part.leaving = true;
            }
            state.tell(revoking(queue, if locked { deadline } else { Instant::now() }));
        }
        self.shared.answers.wake();
        // The tasks that kept the locks are gone.
        let mut renew = Instant::now();
        while wait && Instant::now() < deadline && self.runs(&queues) {
            if renew <= Instant::now() {
                let _ = timeout_at(deadline, self.stay(&queues)).await;
                renew = Instant::now() + LOCK_RENEW;
            }
            sleep(Duration::from_millis(5)).await;
        }
        for queue in &queues {
            self.last_commit(queue).await;
            if self.locked.contains(&queue.topic) {
                // Refused, it runs out by itself.
                let _ = self.cluster.unlock(queue, &self.member).await;
            }
            self.shared.state().remove(queue);
            self.shared.trouble(&queue.to_string(), None);
        }
        self.shared.answers.wake();
    }

    /// Keeps the locks of what leaves, and the place in the group, while handlers finish. A lock
    /// that is lost is not ours to take again: what runs then ends by itself.
    async fn stay(&mut self, queues: &[Queue]) {
        for queue in queues.iter().filter(|queue| self.locked.contains(&queue.topic)) {
            let _ = self.cluster.lock(queue, &self.member).await;
        }
        for broker in self.told.keys().cloned().collect::<Vec<_>>() {
            let _ = self.tell(&broker).await;
        }
    }

    fn runs(&self, queues: &[Queue]) -> bool {
        let state = self.shared.settled();
        let locked = |queue: &Queue| self.locked.contains(&queue.topic) && queues.contains(queue);
        state.held().any(|part| locked(&part.queue) && part.progress.out() > 0)
    }

    async fn last_commit(&self, queue: &Queue) {
        let commit = {
            let state = self.shared.settled();
            let ours = state.parts.iter().find(|(_, part)| part.queue == *queue);
            ours.and_then(|(which, part)| Some((which, part.commit()?)))
        };
        let Some((which, point)) = commit else { return };
        let asked = self.cluster.commit(&self.member.group, queue, point.offset);
        // What is not committed comes again, and the record answers.
        if let Ok(Ok(())) = tokio::time::timeout(LAST_COMMIT, asked).await
            && let Some(part) = self.shared.state().parts.get_mut(which)
        {
            part.committed(point);
        }
    }

    async fn leave(&mut self) {
        let queues: Vec<Queue> = self.owned.keys().cloned().collect();
        self.let_go(queues).await;
        for broker in self.told.keys() {
            // A broker that does not answer misses us anyway.
            let _ = self.cluster.leave(broker, &self.member).await;
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for task in self.owned.values() {
            task.abort();
        }
    }
}

/// The queues of one member: runs of equal length, the first members one more if they do not
/// divide. The clients in Java call it "averagely", and use it unless told otherwise.
fn share_of(id: &str, members: &[String], queues: &[Queue]) -> Vec<Queue> {
    let Some(place) = members.iter().position(|member| member == id) else { return Vec::new() };
    let (each, more) = (queues.len() / members.len(), queues.len() % members.len());
    let begin = place * each + place.min(more);
    let count = each + usize::from(place < more);
    queues[begin..begin + count].to_vec()
}

#[cfg(test)]
mod tests;
