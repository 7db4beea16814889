use std::collections::HashMap;

use super::*;
use crate::client::fake::{Fake, field};
use crate::client::{Fault, Request};

const SEND: i32 = 310;
const END: i32 = 37;

/// A broker's answer to a half message.
fn stored() -> Answer {
    let fields = [("msgId", "7F00000100002A9F00000000000000FF"), ("queueOffset", "7")];
    Answer {
        fields: fields.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        ..Answer::default()
    }
}

fn publisher(
    fake: &Fake,
    quiet: Duration,
    check: impl Fn(TransactionId) -> Result<Decision, Error> + Send + Sync + 'static,
) -> TransactionalPublisher {
    let config = Config { publish_timeout: Duration::from_secs(5), ..Config::default() };
    let check: Check = Arc::new(move |id| {
        let decision = check(id);
        Box::pin(async move { decision })
    });
    let inner = Inner {
        producer: Producer::new(fake.cluster(config.clone()), Arc::new(config)),
        group: "producers".into(),
        topics: vec!["orders".into()],
        asked: Asked::new(check),
        quiet,
        member: None.into(),
        closed: AtomicBool::new(false),
    };
    TransactionalPublisher { inner: Arc::new(inner) }
}

fn properties(request: &Request) -> HashMap<String, String> {
    let pairs = field(request, "i").split('\u{2}').filter_map(|pair| pair.split_once('\u{1}'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn what_is_ended_in_time_is_noted_before_the_broker_asks() {
    for (asks_after, notes_every) in [(6_000, 3_000), (3_000, 300), (60_000, 3_000)] {
        let [asks_after, notes_every] = [asks_after, notes_every].map(Duration::from_millis);
        let quiet = quiet_of(asks_after, notes_every);
        assert!(quiet + notes_every < asks_after && quiet > asks_after / 4, "{quiet:?} of {asks_after:?}");
    }
    // A broker that notes more slowly than it asks: some are ended in time all the same.
    assert!(quiet_of(Duration::from_secs(3), Duration::from_secs(3)) > Duration::ZERO);
}

/// Both may be stored. One transaction for the two would show the message twice.
#[tokio::test(start_paused = true)]
async fn a_try_without_an_answer_is_a_transaction_of_its_own() {
    let mut tries = 0;
    let fake = Fake::new(move |_| {
        tries += 1;
        if tries == 1 { Err(Fault::NoAnswer("late".to_owned())) } else { Ok(stored()) }
    });
    let publisher = publisher(&fake, Duration::from_secs(4), |_| Ok(Decision::Committed));
    let half = publisher.half("orders", &Message::new("x").with_id("u1")).await.unwrap();
    let sent: Vec<_> = fake.asked(SEND).iter().map(properties).collect();
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|sent| sent["UNIQ_KEY"] == "u1" && sent["TRAN_MSG"] == "true"), "{sent:?}");
    assert_ne!(sent[0]["oncemq-transaction"], sent[1]["oncemq-transaction"]);
    assert_eq!(half.id().as_str(), sent[1]["oncemq-transaction"]);
    assert!(
        fake.asked(SEND)
            .iter()
            .all(|request| field(request, "f") == "4" && field(request, "a") == "producers")
    );
}

#[tokio::test(start_paused = true)]
async fn the_broker_is_told_what_the_check_says() {
    for (decision, told) in
        [(Decision::Committed, Some("8")), (Decision::RolledBack, Some("12")), (Decision::Open, None)]
    {
        let fake = Fake::new(|_| Ok(stored()));
        let publisher = publisher(&fake, Duration::from_secs(4), move |_| Ok(decision));
        let half = publisher.half("orders", &Message::new("x")).await.unwrap();
        assert_eq!(half.settle().await.unwrap(), decision);
        let ends = fake.asked(END);
        assert_eq!(ends.first().map(|end| field(end, "commitOrRollback")), told, "{decision:?}");
        if let Some(end) = ends.first() {
            assert_eq!((field(end, "tranStateTableOffset"), field(end, "commitLogOffset")), ("7", "255"));
            assert_eq!(field(end, "producerGroup"), "producers");
        }
    }
}

/// It may have stored the message anew by then.
#[tokio::test(start_paused = true)]
async fn a_broker_that_may_ask_already_is_told_nothing() {
    let fake = Fake::new(|_| Ok(stored()));
    let publisher = publisher(&fake, Duration::from_secs(4), |_| Ok(Decision::Committed));
    let message = Message::new("x");
    let slow = publisher.publish("orders", &message, async |_| {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok::<_, Error>(())
    });
    slow.await.unwrap();
    assert_eq!(fake.asked(END).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_check_has_the_last_word() {
    let down = || Error::new(ErrorKind::Store, "down");
    let fake = Fake::new(|request| match request.code {
        // Nobody is told; the message is left to the broker's question.
        END => Err(Fault::NoAnswer("late".to_owned())),
        _ => Ok(stored()),
    });
    let run = async |said: Result<(), Error>, check: Result<Decision, Error>| {
        let publisher = publisher(&fake, Duration::from_secs(4), move |_| check.clone());
        publisher.publish("orders", &Message::new("x"), async |_| said).await
    };
    assert!(run(Ok(()), Ok(Decision::Committed)).await.is_ok());
    assert!(run(Ok(()), Err(down())).await.is_ok());
    assert!(matches!(run(Ok(()), Ok(Decision::RolledBack)).await, Err(TransactionError::NotCommitted)));
    for (check, expected) in [
        (Ok(Decision::Committed), Decision::Committed),
        (Ok(Decision::RolledBack), Decision::RolledBack),
        (Err(down()), Decision::Open),
    ] {
        let error = run(Err(down()), check).await.unwrap_err();
        let decision = match &error {
            TransactionError::Local { decision, .. } => Some(*decision),
            _ => None,
        };
        assert_eq!(decision, Some(expected), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_half_message_nothing_is_begun() {
    let fake = Fake::new(|_| Err(Fault::NotSent("down".to_owned())));
    let publisher = publisher(&fake, Duration::from_secs(4), |_| Ok(Decision::Committed));
    let mut ran = false;
    let message = Message::new("x");
    let failed = publisher.publish("orders", &message, async |_| {
        ran = true;
        Ok::<_, Error>(())
    });
    let error = failed.await.unwrap_err();
    assert!(
        matches!(&error, TransactionError::NotSent(why) if why.kind() == ErrorKind::Connection),
        "{error}"
    );
    assert!(!ran);
    let elsewhere = publisher.half("others", &Message::new("x")).await.unwrap_err();
    assert_eq!(elsewhere.kind(), ErrorKind::Config, "{elsewhere}");
}
