//! The protocol of RocketMQ, as much of it as a look at a broker takes.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// One question to a server.
const ASK: Duration = Duration::from_secs(10);
/// The version that a request names: of a client that reads usual JSON.
const VERSION: u32 = 433;
/// In the first byte of a header's length: that the header is JSON.
const LENGTH: usize = 0x00ff_ffff;
/// What a message begins with behind its size, in the newer of two forms.
const LONG_TOPIC: usize = 0xdaa3_20ab;
/// Bits of a message.
const COMPRESSED: usize = 1;
const BORN_ON_V6: usize = 1 << 4;
const STORED_ON_V6: usize = 1 << 5;

/// A connection.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    asked: u32,
}

/// What a server answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: i64,
    pub(super) remark: String,
    fields: Value,
    pub(super) body: Vec<u8>,
}

impl Answer {
    /// A field that is a number.
    pub(super) fn number(&self, name: &str) -> i64 {
        let value = self.fields[name].as_str().unwrap_or_default();
        value.parse().unwrap_or_else(|_| panic!("{name} is not a number in {}", self.fields))
    }
}

impl Wire {
    /// # Panics
    /// The server does not answer; so do all that follow.
    pub(super) async fn connect(address: &str) -> Self {
        let connected = timeout(ASK, TcpStream::connect(address)).await;
        let stream = connected.expect("RocketMQ takes connections in time");
        let stream = stream.unwrap_or_else(|error| panic!("RocketMQ at {address}: {error}"));
        stream.set_nodelay(true).unwrap();
        Self { stream, asked: 0 }
    }

    /// Asks, and returns the answer whatever it says.
    pub(super) async fn ask(&mut self, code: u32, fields: &[(&str, String)]) -> Answer {
        let answered = timeout(ASK, self.exchange(code, fields)).await;
        let answer = answered.unwrap_or_else(|_| panic!("RocketMQ does not answer request {code} in time"));
        answer.unwrap_or_else(|error| panic!("RocketMQ does not answer request {code}: {error}"))
    }

    /// The same for requests where everything but success is an error.
    pub(super) async fn demand(&mut self, code: u32, fields: &[(&str, String)]) -> Answer {
        let answer = self.ask(code, fields).await;
        assert_eq!(answer.code, 0, "request {code} {fields:?}: {}", answer.remark);
        answer
    }

    /// A frame is its length, the length of its header, the header, and a body.
    async fn exchange(&mut self, code: u32, fields: &[(&str, String)]) -> std::io::Result<Answer> {
        self.asked += 1;
        let fields: Value = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let header = json!({
            "code": code,
            "language": "OTHER",
            "version": VERSION,
            "opaque": self.asked,
            "flag": 0,
            "extFields": fields,
        });
        let header = header.to_string();
        let length = u32::try_from(header.len()).unwrap();
        let mut frame = Vec::from((length + 4).to_be_bytes());
        frame.extend(length.to_be_bytes());
        frame.extend(header.as_bytes());
        self.stream.write_all(&frame).await?;

        let length = self.stream.read_u32().await?;
        let mut frame = vec![0; usize::try_from(length).unwrap()];
        self.stream.read_exact(&mut frame).await?;
        let mut rest = Rest(&frame);
        let length = rest.number(4) & LENGTH;
        let header: Value = serde_json::from_slice(rest.take(length))?;
        assert_eq!(header["opaque"], self.asked, "an answer to another question");
        Ok(Answer {
            code: header["code"].as_i64().expect("an answer has a code"),
            remark: header["remark"].as_str().unwrap_or_default().to_owned(),
            fields: header["extFields"].clone(),
            body: rest.0.to_vec(),
        })
    }
}

/// A message as a broker keeps it.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) offset: i64,
    pub(super) body: Vec<u8>,
    properties: String,
}

impl Stored {
    pub(super) fn property(&self, name: &str) -> Option<&str> {
        let pairs = self.properties.split('\u{2}').filter_map(|pair| pair.split_once('\u{1}'));
        pairs.into_iter().find_map(|(found, value)| (found == name).then_some(value))
    }
}

/// The messages in the body of an answer.
pub(super) fn stored(body: &[u8]) -> Vec<Stored> {
    let (mut rest, mut messages) = (Rest(body), Vec::new());
    while !rest.0.is_empty() {
        let size = rest.number(4);
        messages.push(message(Rest(rest.take(size - 4))));
    }
    messages
}

fn message(mut rest: Rest<'_>) -> Stored {
    let form = rest.number(4);
    // A checksum, the queue and a flag.
    rest.take(4 + 4 + 4);
    let offset = i64::try_from(rest.number(8)).unwrap();
    rest.take(8);
    let bits = rest.number(4);
    assert_eq!(bits & COMPRESSED, 0, "nobody compresses such short messages");
    let host = |bit| if bits & bit == 0 { 8 } else { 20 };
    // When and where it was born and stored, how often it was sent back, and its transaction.
    rest.take(8 + host(BORN_ON_V6) + 8 + host(STORED_ON_V6) + 4 + 8);
    let length = rest.number(4);
    let body = rest.take(length).to_vec();
    let length = rest.number(if form == LONG_TOPIC { 2 } else { 1 });
    rest.take(length);
    let length = rest.number(2);
    let properties = String::from_utf8_lossy(rest.take(length)).into_owned();
    Stored { offset, body, properties }
}

/// How far a broker has delivered what waits, by delay level. Its text is not JSON: the keys are
/// numbers.
pub(super) fn offset_table(text: &str) -> HashMap<u64, i64> {
    let table = text.split_once("\"offsetTable\":{").and_then(|(_, rest)| rest.split_once('}'));
    let (table, _) = table.unwrap_or_else(|| panic!("no offsets in {text}"));
    let pair = |pair: &str| {
        let (level, offset) = pair.split_once(':')?;
        Some((level.trim().trim_matches('"').parse().ok()?, offset.trim().parse().ok()?))
    };
    let pairs = table.split(',').filter(|text| !text.trim().is_empty());
    pairs.map(|text| pair(text).unwrap_or_else(|| panic!("{text} is no offset"))).collect()
}

/// What is left to read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn number(&mut self, count: usize) -> usize {
        self.take(count).iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
    }
}
