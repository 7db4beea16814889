//! Looks at the lists, by a broker that answers as a test says.

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
        declared: None,
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
