//! What is written comes back as it was.

use bytes::Bytes;
use oncemq_core::{ErrorKind, Message};

use super::names::{COUNTED, EMPTY, TRANSACTION};
use super::*;
use crate::client::Stored;
use crate::cluster::Queue;

fn stored(record: Record, offset: i64) -> Stored {
    let pairs = record.properties.split(text::END).filter_map(|pair| pair.split_once(text::IS));
    Stored {
        offset,
        body: record.body,
        place: "7F00".to_owned(),
        properties: pairs.map(|(name, value)| (name.into(), value.to_owned())).collect(),
        ..Stored::default()
    }
}

fn queue(topic: &str) -> Queue {
    Queue { topic: topic.into(), broker: "broker-a".into(), number: 2 }
}

fn back(message: &Message) -> Message {
    read(stored(write(message, "id").unwrap(), 7), &queue("orders"), &["orders".into()])
}

#[test]
fn what_text_cannot_carry_arrives_all_the_same() {
    let values: [&[u8]; 6] = [b"", b"a\x01b", b"\x02", &[0, 159, 146, 150], b"=b64=", "größe\0".as_bytes()];
    let mut sent = Message::new("").with_key(vec![0, 255]).with_id("order 1").with_content_type("a/b");
    for (n, value) in values.iter().enumerate() {
        sent = sent.with_header(format!("h{n}"), value.to_vec());
    }
    let read = back(&sent);
    for (n, value) in values.iter().enumerate() {
        assert_eq!(read.headers().get(&format!("h{n}")).unwrap(), value);
    }
    assert_eq!(read.headers().len(), values.len());
    assert_eq!((read.key(), read.id(), read.content_type()), (sent.key(), sent.id(), sent.content_type()));
    assert!(read.payload().is_some_and(Bytes::is_empty));
}

#[test]
fn keys_and_tags_are_headers_of_that_name() {
    let record =
        write(&Message::new("x").with_header("KEYS", "a b").with_header("TAGS", "paid"), "id").unwrap();
    assert!(
        record.properties.contains("KEYS\u{1}a b\u{2}") && record.properties.contains("TAGS\u{1}paid\u{2}")
    );
}

#[test]
fn what_belongs_to_the_broker_cannot_be_set() {
    let repeated = Message::new("x").with_header("t", "1").with_header("t", "2");
    let names =
        ["UNIQ_KEY", "RETRY_TOPIC", "__SHARDINGKEY", "TIMER_ROLL_TIMES", "a\u{1}", "", EMPTY, COUNTED];
    let wrong = names.map(|name| Message::new("x").with_header(name, "1"));
    for message in wrong.iter().chain([&repeated, &Message::tombstone(), &Message::new("x").with_id("")]) {
        assert_eq!(write(message, "id").unwrap_err().kind(), ErrorKind::Unsupported, "{message:?}");
    }
}

#[test]
fn delays_that_no_broker_understands_are_refused_and_others_sent() {
    let with = |headers: &[(&str, &str)]| {
        let message = headers.iter().fold(Message::new("x"), |message, (name, value)| {
            message.with_header(*name, (*value).to_owned())
        });
        write(&message, "id").map(drop).map_err(|error| error.kind())
    };
    for fits in
        [("DELAY", "3"), ("DELAY", "0"), ("TIMER_DELAY_SEC", "5"), ("TIMER_DELIVER_MS", "1795000000000")]
    {
        assert_eq!(with(&[fits]), Ok(()), "{fits:?}");
    }
    let wrong = ["", "5s", " 1 ", "-1", "99999999999999", "1.5"];
    for wrong in wrong.map(|value| ("DELAY", value)).into_iter().chain([("TIMER_DELAY_MS", "soon")]) {
        assert_eq!(with(&[wrong]), Err(ErrorKind::Unsupported), "{wrong:?}");
    }
    assert_eq!(with(&[("DELAY", "1"), ("TIMER_DELAY_SEC", "5")]), Err(ErrorKind::Unsupported));
}

#[test]
fn headers_leave_room_for_those_of_retries_and_dead_letters() {
    let message = |length| Message::new("x").with_header("large", "x".repeat(length));
    assert!(write(&message(28_000), "id").is_ok());
    let error = write(&message(29_000), "id").unwrap_err();
    assert!(error.kind() == ErrorKind::TooLarge && error.to_string().contains("32767"), "{error}");
}

#[test]
fn a_half_message_names_its_transaction_and_shows_it_to_nobody() {
    let message = Message::new("x").with_id("u1").with_header("tenant", "t");
    let half = stored(write_half(&message, "id", "producers", "t-1").unwrap(), 0);
    assert_eq!(transaction_of(&half), Some("t-1"));
    assert!(half.properties.iter().any(|(name, value)| &**name == "PGROUP" && value == "producers"));
    let read = read(half, &queue("orders"), &["orders".into()]);
    assert_eq!((read.id(), read.headers().len()), (Some("u1"), 1));
    for wrong in ["DELAY", "TIMER_DELAY_SEC", TRANSACTION, "TRAN_MSG"] {
        let error = write_half(&message.clone().with_header(wrong, "1"), "id", "g", "t").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{wrong}");
    }
}

#[test]
fn a_copy_keeps_where_it_came_from() {
    let first = back(&Message::new("x").with_id("u1").with_header("tenant", "t"));
    let native = Native::of(&first).unwrap();
    let extra = Extra { counted: Some(3), ..Extra::default() };
    let mut kept = stored(copy(&first, native, &extra).unwrap(), 0);
    (kept.place, kept.reconsumed) = ("8F00".to_owned(), 5);
    let again = read(kept, &queue("%RETRY%g"), &["x".into(), "orders".into()]);
    let native = Native::of(&again).unwrap();
    assert_eq!((native.subscription, native.charged, &*native.topic), (Some(1), 2, "orders"));
    assert_eq!(again.origin().first_stored.as_deref(), Some("u1@7F00"));
    assert_eq!(first.origin().first_stored, again.origin().first_stored);
    assert_eq!(again.headers().len(), 1);
}

#[test]
fn a_dead_letter_is_consumed_as_what_it_is() {
    let first = back(&Message::new("x"));
    let extra = Extra { dead: true, ..Extra::default() };
    let mut letter = stored(copy(&first, Native::of(&first).unwrap(), &extra).unwrap(), 0);
    letter.reconsumed = 5;
    let read = read(letter, &queue("%DLQ%g"), &["%DLQ%g".into()]);
    let native = Native::of(&read).unwrap();
    assert_eq!((native.subscription, native.charged, native.foreign), (Some(0), 0, true));
    assert!(!Native::of(&first).unwrap().foreign);
}

#[test]
fn a_message_of_a_topic_that_is_not_consumed_any_more_has_no_subscription() {
    let read = read(Stored::default(), &queue("gone"), &["orders".into()]);
    assert_eq!(Native::of(&read).unwrap().subscription, None);
}

#[test]
fn what_is_shortened_fits_whatever_its_headers_are_called() {
    let message = Message::new("x")
        .with_header("oncemq-reason", "it failed")
        .with_header("oncemq-foreign", "y".repeat(20_000))
        .with_header("large", "x".repeat(12_500))
        .with_header("tenant", "t");
    let short = write::shortened(&message);
    let names: Vec<_> = short.headers().iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["oncemq-reason", "large", "tenant", "oncemq-headers-cut"]);
    assert_eq!(short.headers().get_str("oncemq-headers-cut"), Some("oncemq-foreign"));
}

#[test]
fn a_key_and_an_id_that_leave_no_room_are_cut() {
    let long = "k".repeat(32_000);
    for message in [Message::new("x").with_key(long.clone()), Message::new("x").with_id(long)] {
        let message = message.with_header("tenant", "t");
        let short = write::shortened(&message);
        assert!(short.key().is_none() && short.id().is_none());
        let names: Vec<_> = short.headers().iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["tenant", "oncemq-headers-cut"]);
        assert!(write(&short, "id").is_ok());
        let kept = write::shortened(&Message::new("x").with_key("k").with_id("u1"));
        assert_eq!((kept.id(), kept.key().map(|key| &key[..])), (Some("u1"), Some(&b"k"[..])));
    }
}
