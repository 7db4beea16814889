use oncemq_core::{Ack, Class, Identity, Reject, Retry, Trail, header};

use super::*;

fn delivery(properties: BasicProperties) -> lapin::message::Delivery {
    let mut delivery =
        lapin::message::Delivery::mock(1, "shop".into(), "orders".into(), false, b"body".to_vec());
    delivery.properties = properties;
    delivery
}

#[tokio::main(flavor = "current_thread")]
async fn read(properties: BasicProperties) -> Message {
    message(delivery(properties), &Origin::new("rabbitmq", "points.orders"), Instant::now())
}

fn headers(pairs: Vec<(&str, AMQPValue)>) -> FieldTable {
    pairs.into_iter().map(|(name, value)| (name.into(), value)).collect::<BTreeMap<ShortString, _>>().into()
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn trail(message: &Message) -> Trail {
    Trail::read(message, &"points".into(), &"orders".into(), Identity::Content)
}

fn retry(message: &Message) -> Box<Retry> {
    let mut trail = trail(message);
    trail.attempt += 1;
    match Ack::retry(Duration::from_secs(1), trail, "broken") {
        Ack::Retry(retry) => retry,
        _ => unreachable!(),
    }
}

fn reject(message: &Message) -> Box<Reject> {
    match Ack::reject(Class::Business, trail(message), "no such user") {
        Ack::Reject(reject) => reject,
        _ => unreachable!(),
    }
}

/// What the server makes of a copy: it comes back by the default exchange.
fn again(message: &Message) -> Message {
    let copy = retry(message).copy(message);
    let mut delivery = delivery(of_copy(&copy).unwrap());
    delivery.exchange = "".into();
    delivery.routing_key = "points.orders".into();
    super::message(delivery, copy.origin(), Native::of(message).unwrap().received)
}

fn full() -> BasicProperties {
    BasicProperties::default()
        .with_content_type("application/json".into())
        .with_content_encoding("gzip".into())
        .with_correlation_id("c".into())
        .with_reply_to("r".into())
        .with_message_id("m".into())
        .with_type("t".into())
        .with_app_id("a".into())
        .with_priority(4)
        .with_delivery_mode(1)
        .with_expiration("60000".into())
        .with_user_id("guest".into())
        .with_timestamp(1_000_000)
        .with_headers(headers(vec![
            ("tenant", text("x")),
            ("traceparent", text("00-1-2-01")),
            ("count", AMQPValue::ShortInt(7)),
            ("flag", AMQPValue::Boolean(true)),
            ("nothing", AMQPValue::Void),
            ("list", AMQPValue::FieldArray(vec![AMQPValue::LongInt(1)].into())),
            ("CC", AMQPValue::FieldArray(vec![text("elsewhere")].into())),
            ("BCC", AMQPValue::FieldArray(vec![text("hidden")].into())),
            ("x-death", AMQPValue::FieldArray(vec![AMQPValue::LongInt(1)].into())),
            ("x-first-death-queue", text("q")),
            ("x-last-death-reason", text("expired")),
            ("x-delivery-count", AMQPValue::LongLongInt(19)),
        ]))
}

#[test]
fn a_copy_keeps_what_is_the_producers() {
    let original = read(full());
    let copy = retry(&original).copy(&original);
    assert_eq!(copy.body(), b"body");
    let sent = of_copy(&copy).unwrap();
    let get = |value: &Option<ShortString>| value.as_ref().unwrap().to_string();
    assert_eq!(get(sent.content_type()), "application/json");
    assert_eq!(get(sent.content_encoding()), "gzip");
    assert_eq!((get(sent.correlation_id()), get(sent.reply_to())), ("c".into(), "r".into()));
    assert_eq!((get(sent.message_id()), get(sent.kind())), ("m".into(), "t".into()));
    assert_eq!((get(sent.app_id()), *sent.priority()), ("a".into(), Some(4)));
    let table = sent.headers().as_ref().unwrap().inner();
    for (name, value) in full().headers().as_ref().unwrap() {
        if !is_brokers(name.as_str()) {
            assert_eq!(table.get(name), Some(value), "{name}");
        }
    }
}

#[test]
fn a_copy_never_carries_what_the_broker_would_act_on() {
    let original = read(full());
    for copy in [retry(&original).copy(&original), reject(&original).copy(&original, 100)] {
        let sent = of_copy(&copy).unwrap();
        assert_eq!((sent.expiration(), sent.user_id()), (&None, &None));
        assert_eq!(*sent.delivery_mode(), Some(2));
        assert!(sent.timestamp().unwrap() > 1_700_000_000, "stamped now");
        for (name, _) in sent.headers().as_ref().unwrap() {
            assert!(!is_brokers(name.as_str()), "{name}");
        }
    }
}

#[test]
fn the_originals_values_stay_readable_through_copies_of_copies() {
    let original = read(full());
    let second = again(&again(&original));
    let sent = of_copy(&retry(&second).copy(&second)).unwrap();
    let table = sent.headers().as_ref().unwrap().inner();
    for (name, value) in [
        ("exchange", text("shop")),
        ("routing-key", text("orders")),
        ("timestamp", AMQPValue::Timestamp(1_000_000)),
        ("expiration", text("60000")),
        ("user-id", text("guest")),
        ("delivery-mode", AMQPValue::ShortShortUInt(1)),
        ("cc", AMQPValue::FieldArray(vec![text("elsewhere")].into())),
    ] {
        assert_eq!(table.get(format!("{ORIGINAL}{name}").as_str()), Some(&value), "{name}");
    }
    assert_eq!(table.get(header::ATTEMPT), Some(&text("3")));
}

#[test]
fn rb4_the_brokers_counters_change_nothing() {
    let plain = read(BasicProperties::default().with_message_id("m".into()));
    for counter in ["x-delivery-count", "x-acquired-count"] {
        let counted = read(
            BasicProperties::default()
                .with_message_id("m".into())
                .with_headers(headers(vec![(counter, AMQPValue::LongLongInt(19))])),
        );
        assert_eq!((trail(&counted).attempt, trail(&counted).id), (0, trail(&plain).id));
        assert_eq!(trail(&again(&counted)).attempt, 1);
    }
}

#[test]
fn rb9_the_attempt_is_read_from_every_kind_of_value() {
    let original = read(BasicProperties::default());
    let copy = again(&original);
    let sent = of_copy(&retry(&copy).copy(&copy)).unwrap();
    let attempt = |value: Option<AMQPValue>| {
        let mut table = sent.headers().as_ref().unwrap().inner().clone();
        table.remove(header::ATTEMPT);
        table.extend(value.map(|value| (ShortString::from(header::ATTEMPT), value)));
        trail(&read(sent.clone().with_headers(table.into()))).attempt
    };
    for two in [
        AMQPValue::ShortShortInt(2),
        AMQPValue::ShortShortUInt(2),
        AMQPValue::ShortInt(2),
        AMQPValue::ShortUInt(2),
        AMQPValue::LongInt(2),
        AMQPValue::LongUInt(2),
        AMQPValue::LongLongInt(2),
        AMQPValue::ShortString("2".into()),
        AMQPValue::ByteArray(b"2".to_vec().into()),
        text("2"),
    ] {
        assert_eq!(attempt(Some(two.clone())), 2, "{two:?}");
    }
    // What is no count uses the budget up: it can never start it anew.
    for junk in [text("x"), AMQPValue::LongInt(-1), AMQPValue::LongLongInt(1 << 40)] {
        assert_eq!(attempt(Some(junk.clone())), u32::MAX, "{junk:?}");
    }
    assert_eq!(attempt(None), 0);
}

#[test]
fn a_header_that_was_changed_loses_its_old_type_and_one_removed_is_gone() {
    let mut message = read(full());
    message.parts_mut().headers.set("count", "8");
    message.parts_mut().headers.remove("tenant");
    let sent = of_new(&message).unwrap();
    let table = sent.headers().as_ref().unwrap().inner();
    assert_eq!(table.get("count"), Some(&text("8")));
    assert_eq!(table.get("tenant"), None);
    assert_eq!(table.get("flag"), Some(&AMQPValue::Boolean(true)));
}

#[test]
fn a_key_travels_beside_the_headers() {
    let sent = of_new(&Message::new("body").with_key(vec![0, 255]).with_header("a", "b")).unwrap();
    let back = read(sent);
    assert_eq!(back.key().map(|key| key.to_vec()), Some(vec![0, 255]));
    assert_eq!(back.headers().iter().count(), 1);
    let copy = of_copy(&retry(&back).copy(&back)).unwrap();
    assert_eq!(read(copy).key().map(|key| key.to_vec()), Some(vec![0, 255]));
}

#[test]
fn what_amqp_cannot_carry_is_refused() {
    let kind = |message: Message| of_new(&message).unwrap_err().kind();
    assert_eq!(kind(Message::tombstone()), ErrorKind::Unsupported);
    assert_eq!(kind(Message::new("").with_header("t", "1").with_header("t", "2")), ErrorKind::Unsupported);
    assert_eq!(kind(Message::new("").with_id("x".repeat(256))), ErrorKind::TooLarge);
    assert_eq!(kind(Message::new("").with_header("x".repeat(256), "1")), ErrorKind::TooLarge);
}

#[test]
fn null_and_binary_headers_survive() {
    let mut message = Message::new("").with_header("b", vec![0, 255]);
    message.parts_mut().headers.push("n", None);
    let back = read(of_new(&message).unwrap());
    let seen: Vec<_> = back.headers().iter().map(|(name, value)| (name, value.map(|v| v.to_vec()))).collect();
    assert_eq!(seen, [("b", Some(vec![0, 255])), ("n", None)]);
}
