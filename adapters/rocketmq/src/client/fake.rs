//! A cluster whose brokers answer as a test says.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{Answer, Client, Decoded, Fault, Request, Seat, Stored};
use crate::cluster::Cluster;
use crate::config::Config;

type Reply = dyn FnMut(&Request) -> Result<Answer, Fault> + Send;

/// Remembers what it was asked.
#[derive(Clone)]
pub(crate) struct Fake {
    reply: Arc<Mutex<Box<Reply>>>,
    asked: Arc<Mutex<Vec<Request>>>,
    known: Arc<Mutex<Known>>,
    silent: Arc<Mutex<String>>,
}

/// What the name server says of topics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Known {
    /// Each has one queue.
    #[default]
    All,
    /// There is none.
    None,
    /// It does not answer.
    Silent,
    /// It does not answer, but another one will.
    SilentOnce,
    /// It takes three seconds, and then does not answer.
    Hangs,
    /// Each has one queue, on a broker of its own.
    Apart,
    /// Each has one queue on each of two brokers.
    Pair,
}

impl Fake {
    pub(crate) fn new(reply: impl FnMut(&Request) -> Result<Answer, Fault> + Send + 'static) -> Self {
        Self {
            reply: Arc::new(Mutex::new(Box::new(reply))),
            asked: Arc::default(),
            known: Arc::default(),
            silent: Arc::default(),
        }
    }

    /// From now on the name server knows this.
    pub(crate) fn knows(&self, known: Known) {
        *self.known.lock().unwrap() = known;
    }

    /// From now on the broker at this address does not answer.
    pub(crate) fn silence(&self, address: &str) {
        address.clone_into(&mut self.silent.lock().unwrap());
    }

    pub(crate) fn cluster(&self, config: Config) -> Arc<Cluster> {
        Arc::new(Cluster::with(Arc::new(self.clone()), Arc::new(config)))
    }

    /// Requests of this code so far.
    pub(crate) fn asked(&self, code: i32) -> Vec<Request> {
        self.asked.lock().unwrap().iter().filter(|request| request.code == code).cloned().collect()
    }
}

impl fmt::Debug for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fake")
    }
}

#[async_trait]
impl Client for Fake {
    async fn route(&self, topic: &str) -> Result<Option<Vec<Seat>>, Fault> {
        if *self.known.lock().unwrap() == Known::Hangs {
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        let mut known = self.known.lock().unwrap();
        match *known {
            Known::All => return Ok(Some(vec![seat("broker-a")])),
            Known::Pair => return Ok(Some(vec![seat("broker-a"), seat("broker-b")])),
            Known::Apart => return Ok(Some(vec![seat(&format!("broker-{topic}"))])),
            Known::None => return Ok(None),
            Known::Silent | Known::Hangs => {}
            Known::SilentOnce => *known = Known::All,
        }
        Err(Fault::NotSent("nobody is there".to_owned()))
    }

    async fn masters(&self) -> Result<Vec<(Arc<str>, Arc<str>)>, Fault> {
        Ok(vec![("broker-a".into(), "broker-a".into())])
    }

    async fn ask(&self, address: &str, request: Request, _limit: Duration) -> Result<Answer, Fault> {
        if *self.silent.lock().unwrap() == address {
            return Err(Fault::NoAnswer("late".to_owned()));
        }
        self.asked.lock().unwrap().push(request.clone());
        (*self.reply.lock().unwrap())(&request)
    }

    /// A letter a message: `x` is of no form that is known.
    fn stored(&self, body: Bytes) -> Decoded {
        let known: Vec<u8> = body.iter().copied().take_while(|letter| *letter != b'x').collect();
        let stored = |(at, _)| Stored { offset: at as i64, ..Stored::default() };
        Decoded { whole: known.len() == body.len(), messages: known.iter().enumerate().map(stored).collect() }
    }

    fn new_id(&self) -> String {
        "7F0000010000".to_owned()
    }

    async fn close(&self) {}
}

/// A broker with one queue. Its address is its name.
fn seat(broker: &str) -> Seat {
    Seat { broker: broker.into(), address: broker.into(), reads: 1, writes: 1 }
}

/// A field of a request.
pub(crate) fn field<'a>(request: &'a Request, name: &str) -> &'a str {
    &request.fields.iter().find(|(found, _)| *found == name).unwrap().1
}

/// An answer of this code.
pub(crate) fn answer(code: i32) -> Result<Answer, Fault> {
    Ok(Answer { code, ..Answer::default() })
}
