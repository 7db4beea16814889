//! Queues of a broker that answers as a test says.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use oncemq_core::{Ack, Message, Settle, Token};

use super::*;
use crate::client::fake::{Fake, field};
use crate::client::{Answer, Fault, Request, verb};
use crate::config::Config;

fn puller(fake: &Fake, locked: bool) -> Puller {
    let member = Member { id: "me".to_owned(), group: "g".into(), topics: vec!["t".into()] };
    Puller {
        cluster: fake.cluster(Config::default()),
        shared: Arc::new(Shared::new(member.topics.clone())),
        member: Arc::new(member),
        queue: Queue { topic: "t".into(), broker: "broker-a".into(), number: 0 },
        pace: Pace::new(1, false),
        locked,
        patience: Duration::ZERO,
        renew: Arc::default(),
    }
}

fn fields(pairs: &[(&str, i64)]) -> Answer {
    let fields = pairs.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect();
    Answer { fields, ..Answer::default() }
}

fn lock_answer(is_ours: bool) -> Answer {
    let list = if is_ours { r#"{"lockOKMQSet":[{"queueId":0}]}"# } else { r#"{"lockOKMQSet":[]}"# };
    Answer { body: Some(list.into()), ..Answer::default() }
}

/// A broker with the committed offset 8 that has no message.
fn idle(request: &Request) -> Result<Answer, Fault> {
    match request.code {
        verb::PULL => Err(Fault::NoAnswer("late".to_owned())),
        _ => Ok(fields(&[("offset", 8)])),
    }
}

/// What the source would be told.
fn events(puller: &Puller) -> Vec<Event> {
    #[derive(Debug)]
    struct Nobody;
    impl Settle for Nobody {
        fn settle(&self, _: Token, _: Message, _: Ack) {}
    }
    let (mut events, settle) = (Vec::new(), Arc::new(Nobody) as Arc<dyn Settle>);
    puller.shared.fill(0, &mut events, &settle).unwrap();
    events.retain(|event| !matches!(event, Event::Health(_)));
    events
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_renewed_and_its_loss_stops_the_queue() {
    let asked = AtomicUsize::new(0);
    let fake = Fake::new(move |request| match request.code {
        // Taken, renewed twice, and then somebody else's.
        verb::LOCK => Ok(lock_answer(asked.fetch_add(1, SeqCst) < 3)),
        _ => idle(request),
    });
    let puller = puller(&fake, true);
    puller.cluster.route("t").await.unwrap();
    let running = tokio::spawn(puller.clone().run());
    sleep(LOCK_RENEW * 3 - Duration::from_secs(1)).await;
    assert_eq!((fake.asked(verb::LOCK).len(), puller.shared.state().held().count()), (3, 1));
    assert!(events(&puller).is_empty());
    sleep(Duration::from_secs(2)).await;
    assert_eq!(puller.shared.state().held().count(), 0);
    assert!(matches!(events(&puller)[..], [Event::Revoking { .. }]));
    assert!(fake.asked(verb::LOCK).len() > 4, "it asks for it again");
    running.abort();
}

/// The broker gives it to somebody else after a minute.
#[tokio::test(start_paused = true)]
async fn a_lock_that_cannot_be_renewed_is_lost_in_time() {
    let asked = AtomicUsize::new(0);
    let fake = Fake::new(move |request| match request.code {
        verb::LOCK if asked.fetch_add(1, SeqCst) > 0 => Err(Fault::NoAnswer("late".to_owned())),
        verb::LOCK => Ok(lock_answer(true)),
        _ => idle(request),
    });
    let puller = puller(&fake, true);
    puller.cluster.route("t").await.unwrap();
    let begin = Instant::now();
    puller.once().await.unwrap();
    let held = begin.elapsed();
    assert!((LOCK_LIFE..Duration::from_secs(55)).contains(&held), "{held:?}");
}

/// A broker whose queue begins and ends elsewhere than at the committed offset 8.
fn moved(first: i64, next: i64) -> Fake {
    Fake::new(move |request| match request.code {
        verb::PULL if !(first..=next).contains(&field(request, "queueOffset").parse().unwrap()) => {
            let bounds = fields(&[("minOffset", first), ("maxOffset", next)]);
            Ok(Answer { code: error::code::PULL_OFFSET_MOVED, ..bounds })
        }
        verb::BEGIN => Ok(fields(&[("offset", first)])),
        verb::END => Ok(fields(&[("offset", next)])),
        _ => idle(request),
    })
}

fn gaps(puller: &Puller) -> Vec<(i64, i64)> {
    let gap = |event| match event {
        Event::Gap { from, to, .. } => Some((from, to)),
        _ => None,
    };
    events(puller).into_iter().filter_map(gap).collect()
}

#[tokio::test(start_paused = true)]
async fn what_the_broker_has_cleaned_up_is_told_and_left_out() {
    let fake = moved(20, 30);
    let puller = puller(&fake, false);
    puller.cluster.route("t").await.unwrap();
    let endless = tokio::time::timeout(Duration::from_secs(9), puller.once()).await;
    assert!(endless.is_err());
    assert_eq!(gaps(&puller), [(8, 20)]);
    assert_eq!(field(fake.asked(verb::PULL).last().unwrap(), "queueOffset"), "20");
    let commit = puller.shared.state().held().find_map(Part::commit);
    assert_eq!(commit.unwrap().offset, 20);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_was_made_anew_begins_at_its_beginning() {
    let fake = moved(0, 3);
    let puller = puller(&fake, false);
    puller.cluster.route("t").await.unwrap();
    puller.once().await.unwrap();
    assert_eq!(gaps(&puller), [(8, 0)]);
    assert_eq!(field(&fake.asked(verb::COMMIT)[0], "commitOffset"), "0");
}

#[tokio::test(start_paused = true)]
async fn an_offset_that_an_operator_set_is_taken() {
    let fake = Fake::new(|request| match request.code {
        verb::PULL => {
            let bounds = fields(&[("minOffset", 0), ("maxOffset", 30), ("nextBeginOffset", 3)]);
            Ok(Answer { code: error::code::PULL_OFFSET_MOVED, ..bounds })
        }
        _ => idle(request),
    });
    let puller = puller(&fake, false);
    puller.cluster.route("t").await.unwrap();
    puller.once().await.unwrap();
    assert_eq!(gaps(&puller), [(8, 3)]);
    assert_eq!(field(&fake.asked(verb::COMMIT)[0], "commitOffset"), "3");
}

/// The broker was cleaning up when it looked.
#[tokio::test(start_paused = true)]
async fn what_an_answer_leaves_out_is_told() {
    let fake = Fake::new(|request| match request.code {
        verb::PULL if field(request, "queueOffset") == "8" => {
            let none = fields(&[("nextBeginOffset", 12)]);
            Ok(Answer { code: error::code::PULL_RETRY_AT_ONCE, ..none })
        }
        _ => idle(request),
    });
    let puller = puller(&fake, false);
    puller.cluster.route("t").await.unwrap();
    let endless = tokio::time::timeout(Duration::from_secs(9), puller.once()).await;
    assert!(endless.is_err());
    assert_eq!(gaps(&puller), [(8, 12)]);
}

/// An operator has switched the group off, and on again.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_waited_for() {
    let asked = AtomicUsize::new(0);
    let fake = Fake::new(move |request| match request.code {
        verb::PULL if asked.fetch_add(1, SeqCst) < 3 => Ok(Answer {
            code: error::code::NO_PERMISSION,
            remark: "the consumer group[g] not permitted to consume".to_owned(),
            ..Answer::default()
        }),
        _ => idle(request),
    });
    let puller = puller(&fake, false);
    puller.cluster.route("t").await.unwrap();
    let endless = tokio::time::timeout(Duration::from_millis(250), puller.once()).await;
    assert!(endless.is_err());
    let told = puller.shared.told();
    assert!(told.to_string().contains("not permitted"), "{told}");
    assert_eq!(fake.asked(verb::PULL).len(), 2);
}
