use super::*;

fn find(key: &Key, message: &Message) -> Result<KeyValue, NoKey> {
    key.find(message, &mut Document::default())
}

fn text(key: &Key, message: &Message) -> Option<String> {
    find(key, message).ok().map(|v| String::from_utf8(v.bytes).unwrap())
}

#[test]
fn a_json_key_is_a_text_or_the_digits_of_an_integer() {
    let key = Key::json("/id");
    for (body, expected) in [
        (r#"{"id":"17"}"#, Some("17")),
        (r#"{"id":17}"#, Some("17")),
        (r#"{"id":-3}"#, Some("-3")),
        (r#"{"id":18446744073709551615}"#, Some("18446744073709551615")),
        (r#"{"id":17.0}"#, None),
        (r#"{"id":184467440737095516150}"#, None),
        (r#"{"id":null}"#, None),
        (r#"{"id":true}"#, None),
        (r#"{"id":["a"]}"#, None),
        (r#"{"id":""}"#, None),
        (r#"{"id":"  "}"#, None),
        (r#"{"other":1}"#, None),
        (r#"{"id":" a "}"#, Some(" a ")),
    ] {
        assert_eq!(text(&key, &Message::new(body)).as_deref(), expected, "{body}");
    }
}

#[test]
fn a_payload_that_is_not_json_is_unreadable_not_keyless() {
    let key = Key::json("/id").or(Key::json("/other"));
    assert!(matches!(find(&key, &Message::new("{\"id\":")), Err(NoKey::Unreadable(_))));
}

#[test]
fn kd3_empty_and_blank_ids_are_missing() {
    let key = Key::message_id();
    for message in [Message::new("a"), Message::new("a").with_id(""), Message::new("a").with_id("  ")] {
        assert!(matches!(find(&key, &message), Err(NoKey::Missing(_))));
    }
    assert_eq!(find(&key, &Message::new("a").with_id("x")).unwrap().tag(), KeyTag::MessageId);
}

#[test]
fn headers_fall_back_in_order() {
    let key = Key::business_header();
    let message = Message::new("").with_header("request_id", "r");
    assert_eq!(text(&key, &message).as_deref(), Some("r"));
    assert_eq!(text(&key, &message.with_header("biz_id", "b")).as_deref(), Some("b"));
}

#[test]
fn parts_of_a_combined_key_never_run_into_each_other() {
    let key = Key::all([Key::header("a"), Key::header("b")]);
    let make = |a: &'static str, b: &'static str| {
        find(&key, &Message::new("").with_header("a", a).with_header("b", b)).unwrap()
    };
    assert_ne!(make("xy", "z"), make("x", "yz"));
    assert_eq!(make("x", "y"), make("x", "y"));
    assert!(find(&key, &Message::new("").with_header("a", "x")).is_err());
}

#[test]
fn a_fingerprint_ignores_spelling_and_unnamed_fields() {
    let key = Key::fingerprint(["/order", "/amount"]);
    let make = |body: &'static str| find(&key, &Message::new(body)).unwrap();
    let first = make(r#"{"order":{"b":1,"a":"x"},"amount":1.0,"sent_at":"now"}"#);
    assert_eq!(first, make(r#"{ "sent_at":"later", "amount": 1, "order": {"a":"x","b":1e0}}"#));
    assert_ne!(first, make(r#"{"order":{"b":1,"a":"x"},"amount":1.5}"#));
    assert_ne!(first, make(r#"{"order":{"b":1,"a":"x"},"amount":"1"}"#));
    assert_ne!(make(r#"{"order":null,"amount":1}"#), make(r#"{"amount":1}"#));
    assert!(find(&key, &Message::new("{}")).is_err());
}

#[test]
fn a_fingerprint_is_the_same_in_every_release() {
    let key = Key::fingerprint(["/a", "/n"]);
    let value = find(&key, &Message::new(r#"{"a":{"z":[1,true,null,"\n\"é"],"b":2.50},"n":1e300}"#)).unwrap();
    assert_eq!(value.text(), "b8bbd53c4b2c33074227e0de3d51820d9de472bf384255a693e1c9502b8c1560");
}

#[test]
fn readable_text_shows_no_control_characters() {
    assert_eq!(KeyValue::business(*b"a\0b").text(), "a\u{fffd}b");
    assert_eq!(KeyValue::business(vec![0xff, 1]).text(), "ff01");
}
