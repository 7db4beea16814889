//! Messages of other producers, sent in the broker's own protocol.

use std::io::{Read, Write};
use std::net::TcpStream;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use libtest_mimic::Trial;
use oncemq_core::{Consumer, Context, Failure, Message, header};
use oncemq_test_kit::{Log, Running, logging, secs, test, unique, until};

use crate::common::suite::read_all;
use crate::common::{ROCKETMQ, broker, ladder};

/// In the flag of a message: its body is compressed, and how.
const COMPRESSED: i32 = 1;
const LZ4: i32 = 0x100;
const ZSTD: i32 = 0x200;
const ZLIB: i32 = 0x300;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("bodies_of_every_compression_are_read", every),
        test("a_body_that_cannot_be_read_is_a_dead_letter_and_what_is_behind_it_is_handled", unreadable),
        test("a_large_body_that_was_compressed_is_a_dead_letter_as_it_was_stored", large),
    ]
}

/// Sends a body with this flag to the topic's first queue.
fn send(topic: &str, flag: i32, body: &[u8]) {
    let header = serde_json::json!({
        "code": 310, "flag": 0, "language": "JAVA", "opaque": 1, "version": 433,
        "serializeTypeCurrentRPC": "JSON",
        "extFields": {
            "a": "foreign", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": (flag | COMPRESSED).to_string(),
            "g": "1790000000000", "h": "0", "i": format!("UNIQ_KEY\u{1}{}\u{2}", unique("id")), "j": "0",
            "k": "false", "m": "false",
        },
    })
    .to_string();
    let length = |length: usize| u32::try_from(length).unwrap().to_be_bytes();
    let frame =
        [&length(4 + header.len() + body.len())[..], &length(header.len()), header.as_bytes(), body].concat();
    let url = ROCKETMQ.get("BROKER_URL");
    let mut stream = TcpStream::connect(url.trim_start_matches("tcp://")).unwrap();
    stream.write_all(&frame).unwrap();
    let mut size = [0; 4];
    stream.read_exact(&mut size).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(size) as usize];
    stream.read_exact(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("\"code\":0"), "{answer}");
}

fn zlib(body: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

/// As clients in Java write it.
fn lz4(body: &[u8]) -> Vec<u8> {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

/// A consumer of one queue that notes what it handles, and its names.
async fn start(case: &str, log: &Log) -> (Running, String, String) {
    let (group, topic) = (unique("foreign"), unique(case));
    let consumer = Consumer::new(group.as_str(), broker())
        .topic(topic.as_str())
        .retry(ladder("1s dead-letter"))
        .unguarded(logging(log, |_: Context, message: Message| async move {
            match message.body().len() {
                1_000_000.. => Err(Failure::business("too much")),
                _ => Ok(()),
            }
        }));
    (Running::start(consumer).await, group, topic)
}

async fn every() {
    let log = Log::default();
    let (running, _, topic) = start("packed", &log).await;
    send(&topic, 0, &zlib(b"old zlib"));
    send(&topic, ZLIB, &zlib(b"zlib"));
    send(&topic, ZSTD, &zstd::stream::encode_all(&b"zstd"[..], 1).unwrap());
    send(&topic, LZ4, &lz4(b"lz4 of Java"));
    send(&topic, LZ4, &lz4_flex::block::compress_prepend_size(b"lz4 of others"));
    until("all are handled", secs(20), async || log.len() == 5).await;
    let mut bodies = log.bodies();
    bodies.sort();
    assert_eq!(bodies, ["lz4 of Java", "lz4 of others", "old zlib", "zlib", "zstd"]);
    assert_eq!(running.stop().await.rejected, 0);
}

async fn unreadable() {
    let log = Log::default();
    let (running, group, topic) = start("unreadable", &log).await;
    // So that one answer of the broker has all of them.
    running.stop().await;
    let junk = b"no compression at all";
    for n in 0..10 {
        send(&topic, ZLIB, &zlib(format!("good {n}").as_bytes()));
        if n == 3 {
            send(&topic, LZ4, junk);
            send(&topic, 0, junk);
        }
    }
    let consumer = Consumer::new(group.as_str(), broker())
        .topic(topic.as_str())
        .unguarded(logging(&log, |_: Context, _: Message| async { Ok(()) }));
    let running = Running::start(consumer).await;
    until("the good ones are handled", secs(20), async || log.len() == 10).await;
    let dead = format!("%DLQ%{group}");
    let mut letters = Vec::new();
    until("the dead letters", secs(20), async || {
        letters = read_all(&broker(), &dead).await;
        letters.len() == 2
    })
    .await;
    running.stop().await;
    for letter in letters {
        assert_eq!(letter.body(), junk);
        let reason = letter.headers().get_str(header::REASON).unwrap();
        assert!(reason.starts_with("its body cannot be read: "), "{reason}");
    }
    assert!(log.bodies().iter().all(|body| body.starts_with("good")));
}

async fn large() {
    let log = Log::default();
    let (running, group, topic) = start("large", &log).await;
    // More than the broker takes, uncompressed.
    let body = vec![b'x'; 6 * 1024 * 1024];
    send(&topic, ZLIB, &zlib(&body));
    send(&topic, ZLIB, &zlib(b"good"));
    let mut letters = Vec::new();
    until("the dead letter", secs(30), async || {
        letters = read_all(&broker(), &format!("%DLQ%{group}")).await;
        letters.len() == 1
    })
    .await;
    assert!(letters[0].body() == body);
    assert_eq!(letters[0].headers().get_str(header::REASON), Some("too much"));
    until("the other is handled", secs(20), async || log.bodies().iter().any(|body| body == "good")).await;
    running.stop().await;
}
