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
use crate::topology::{Names, check_members};

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
        let queues = self.cluster.queues(topic).await?;
        let route = self.cluster.route(topic).await?;
        let Some(first) = route.first() else { return Err(self.missing(topic)) };
        let mut members = None;
        for seat in route.iter() {
            if silent.contains_key(&seat.broker) {
                continue;
            }
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
        Ok((share_of(&self.member.id, &members, &queues).into_iter().collect(), patience))
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
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    use oncemq_core::{ConsumerSpec, Subscription, Topology};

    use super::*;
    use crate::client::fake::{Fake, Known, answer};
    use crate::client::{Answer, Fault, verb};

    /// The member `me` of group `g` on a topic.
    fn group(cluster: &Arc<Cluster>, topic: &str) -> Group {
        let spec = ConsumerSpec::new("g", 1, Topology::Trust).with(Subscription::new(topic));
        let topics = vec![topic.into()];
        let member = Member { id: "me".to_owned(), group: "g".into(), topics: topics.clone() };
        Group {
            cluster: cluster.clone(),
            config: Arc::new(Config::default()),
            shared: Arc::new(Shared::new(topics)),
            member: Arc::new(member),
            pace: Pace { reach: 8, commit_each: false },
            locked: BTreeSet::new(),
            owned: HashMap::new(),
            told: HashMap::new(),
            joined: BTreeSet::new(),
            names: Names::new(&spec).unwrap(),
            checked: Instant::now(),
            forgotten: None,
            renew: Arc::default(),
        }
    }

    #[tokio::test]
    async fn a_broker_that_hangs_is_not_told_of_a_member() {
        let fake = Fake::new(|request| match request.code {
            verb::MEMBERS => Err(Fault::NoAnswer("late".to_owned())),
            _ => answer(error::code::SUCCESS),
        });
        let error = group(&fake.cluster(Config::default()), "t").look().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connection);
        assert!(fake.asked(verb::HEARTBEAT).is_empty());
    }

    /// A broker that was killed, and with it the topic from the name server.
    #[tokio::test]
    async fn a_topic_that_was_there_is_waited_for_and_one_that_never_was_is_not() {
        let fake = Fake::new(|request| match request.code {
            verb::MEMBERS => {
                let body = r#"{"consumerIdList":["me"]}"#;
                Ok(Answer { body: Some(body.into()), ..Answer::default() })
            }
            verb::CONSUMERS => {
                let body = r#"{"subscriptionTable":{"other":{"subString":"*"}}}"#;
                Ok(Answer { body: Some(body.into()), ..Answer::default() })
            }
            _ => answer(error::code::SUCCESS),
        });
        let cluster = fake.cluster(Config::default());
        let mut there = group(&cluster, "t");
        there.look().await.unwrap();
        // One that started together with this one, and consumes something else.
        there.checked = Instant::now().checked_sub(ALIVE).unwrap();
        there.check_others().await;
        let told = there.shared.told();
        assert!(told.to_string().contains("subscribes to other"), "{told}");
        fake.knows(Known::None);
        cluster.doubt_routes();
        // The first request that nobody answered was the one that says that we are alive.
        there.told.clear();
        let error = there.look().await.unwrap_err();
        assert!(!error::is_final(&error) && error.kind() == ErrorKind::Connection, "{error}");
        let error = group(&cluster, "u").look().await.unwrap_err();
        assert!(error::is_final(&error) && error.kind() == ErrorKind::Topology, "{error}");
    }

    fn list(members: &str) -> Result<Answer, Fault> {
        let body = format!(r#"{{"consumerIdList":[{members}]}}"#);
        Ok(Answer { body: Some(body.into()), ..Answer::default() })
    }

    /// It does not have the group, or takes no consumers of this kind.
    #[tokio::test]
    async fn what_is_owned_stays_while_a_broker_does_not_take_the_member() {
        let taken = Arc::new(AtomicBool::new(true));
        let fake = {
            let taken = taken.clone();
            Fake::new(move |request| match request.code {
                verb::MEMBERS if taken.load(SeqCst) => list(r#""me""#),
                verb::MEMBERS => list(r#""other""#),
                _ => answer(error::code::SUCCESS),
            })
        };
        let mut group = group(&fake.cluster(Config::default()), "t");
        group.look().await.unwrap();
        assert_eq!(group.owned.len(), 1);
        taken.store(false, SeqCst);
        let error = group.look().await.unwrap_err();
        assert!(!error::is_final(&error) && error.to_string().contains("does not take"), "{error}");
        assert_eq!(group.owned.len(), 1);
    }

    #[tokio::test]
    async fn a_topic_whose_broker_is_silent_holds_up_no_other() {
        let fake = Fake::new(|request| match request.code {
            verb::MEMBERS => list(r#""me""#),
            _ => answer(error::code::SUCCESS),
        });
        fake.knows(Known::Apart);
        fake.silence("broker-t");
        let mut group = group(&fake.cluster(Config::default()), "t");
        group.member = Arc::new(Member { topics: vec!["t".into(), "u".into()], ..(*group.member).clone() });
        let error = group.look().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connection);
        let owned: Vec<_> = group.owned.keys().map(|queue| &*queue.topic).collect();
        assert_eq!(owned, ["u"]);
    }

    /// Its locks are gone, and members come back one by one.
    #[tokio::test]
    async fn after_a_restart_of_the_broker_locks_are_renewed_and_others_wait() {
        let asked = AtomicUsize::new(0);
        let fake = Fake::new(move |request| match request.code {
            verb::MEMBERS if asked.fetch_add(1, SeqCst) == 2 => list(r#""other""#),
            verb::MEMBERS => list(r#""me""#),
            _ => answer(error::code::SUCCESS),
        });
        let mut group = group(&fake.cluster(Config::default()), "t");
        group.locked.insert("t".into());
        let mut silent = BTreeMap::new();
        let (_, patience) = group.share(&"t".into(), &mut silent).await.unwrap();
        assert_eq!(patience, Duration::ZERO);
        let renew = group.renew.clone();
        let mut renewed = Box::pin(renew.notified());
        renewed.as_mut().enable();
        group.told.clear();
        let (_, patience) = group.share(&"t".into(), &mut silent).await.unwrap();
        assert!(patience > PATIENCE && silent.is_empty(), "{patience:?}");
        tokio::time::timeout(Duration::from_secs(1), renewed).await.unwrap();
    }

    /// Else the broker gives it to the next member after a minute.
    #[tokio::test(start_paused = true)]
    async fn while_handlers_finish_the_lock_of_a_queue_that_leaves_is_kept() {
        let fake = Fake::new(|_| answer(error::code::SUCCESS));
        let cluster = fake.cluster(Config::default());
        let mut group = group(&cluster, "t");
        cluster.route("t").await.unwrap();
        let revoke_timeout = Duration::from_secs(65);
        group.config = Arc::new(Config { revoke_timeout, ..Config::default() });
        group.locked.insert("t".into());
        let queue = Queue { topic: "t".into(), broker: "broker-a".into(), number: 0 };
        let message = crate::client::Stored::default();
        crate::source::test_part(&group.shared, queue.clone(), 0, vec![message]);
        group.shared.state().held_mut().for_each(|part| assert!(part.next().is_some()));
        let begin = Instant::now();
        group.let_go(vec![queue]).await;
        assert!(begin.elapsed() >= revoke_timeout, "{:?}", begin.elapsed());
        assert_eq!((fake.asked(verb::LOCK).len(), fake.asked(verb::UNLOCK).len()), (7, 1));
    }

    #[test]
    fn every_queue_belongs_to_one_member() {
        let members: Vec<String> = (0..7).map(|n| format!("m{n}")).collect();
        for count in 0..20 {
            let queues: Vec<Queue> =
                (0..count).map(|number| Queue { topic: "t".into(), broker: "b".into(), number }).collect();
            for present in 1..=members.len() {
                let shares: Vec<Queue> =
                    members.iter().flat_map(|id| share_of(id, &members[..present], &queues)).collect();
                assert_eq!(shares, queues, "{count} queues, {present} members");
            }
        }
        assert!(share_of("stranger", &members, &[]).is_empty());
    }
}
