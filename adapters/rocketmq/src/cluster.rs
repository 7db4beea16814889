//! A cluster in words of the adapter: where topics are, and how brokers are asked.

mod admin;
pub(crate) mod halves;
mod members;
mod queues;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use oncemq_core::{Error, ErrorKind};
use serde_json::Value;
use tokio::time::Instant;

pub(crate) use admin::GroupSettings;
pub(crate) use members::Member;
pub(crate) use queues::{Moved, Pulled, Sent, SentBack};

use crate::client::{Answer, Client, Fault, Request, Seat};
use crate::config::Config;
use crate::error::{self, code};

/// How long a short request may take.
pub(crate) const SHORT: Duration = Duration::from_secs(3);
/// How long what the name server said is good for.
const ROUTE_AGE: Duration = Duration::from_secs(10);
/// After this time a name server that did not answer is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// How long one that hangs may hold up what is known.
const HOLD_UP: Duration = Duration::from_millis(300);
/// A queue of a topic on one broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Queue {
    pub(crate) topic: Arc<str>,
    pub(crate) broker: Arc<str>,
    pub(crate) number: i32,
}

impl Queue {
    /// Every queue of a topic that may be read, where it is.
    pub(crate) fn all(topic: &Arc<str>, route: &[Seat]) -> Vec<Self> {
        let queue = |seat: &Seat, number| Self { topic: topic.clone(), broker: seat.broker.clone(), number };
        route.iter().flat_map(|seat| (0..seat.reads).map(move |number| queue(seat, number))).collect()
    }
}

impl std::fmt::Display for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "queue {} of {} on {}", self.number, self.topic, self.broker)
    }
}

/// Where a topic was, and until when that is taken for true.
type Route = (Instant, Arc<[Seat]>);

/// A connection, and what was learned of the cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    client: Arc<dyn Client>,
    config: Arc<Config>,
    routes: Mutex<HashMap<Arc<str>, Route>>,
    /// Topics that were somewhere once.
    seen: Mutex<HashSet<Arc<str>>>,
    addresses: Mutex<BTreeMap<Arc<str>, Arc<str>>>,
}

impl Cluster {
    pub(crate) fn connect(config: Arc<Config>) -> Result<Self, Error> {
        Ok(Self::with(crate::client::connect(&config)?, config))
    }

    pub(crate) fn with(client: Arc<dyn Client>, config: Arc<Config>) -> Self {
        Self { client, config, routes: Mutex::default(), seen: Mutex::default(), addresses: Mutex::default() }
    }

    pub(crate) fn new_id(&self) -> String {
        self.client.new_id()
    }

    pub(crate) async fn close(&self) {
        self.client.close().await;
    }

    /// Every broker that takes messages, by name.
    pub(crate) async fn masters(&self) -> Result<Vec<(Arc<str>, Arc<str>)>, Error> {
        let found = self.name_servers(|| self.client.masters()).await?;
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.extend(found.iter().cloned());
        Ok(found)
    }

    /// Asks the name servers. The client avoids one that has just failed, so each has its chance.
    async fn name_servers<'f, T>(
        &self,
        ask: impl Fn() -> BoxFuture<'f, Result<T, Fault>> + Send,
    ) -> Result<T, Error> {
        let mut others = self.config.name_servers.len().saturating_sub(1);
        loop {
            match ask().await {
                Ok(found) => return Ok(found),
                Err(_) if others > 0 => others -= 1,
                Err(fault) => return Err(self.unreachable(&fault)),
            }
        }
    }

    fn unreachable(&self, fault: &Fault) -> Error {
        let address = self.config.address();
        Error::new(
            ErrorKind::Connection,
            format!(
                "the RocketMQ name server at {address} does not answer; check address and port, the name server's and \
                 not a broker's ({fault})"
            ),
        )
    }

    /// Where a topic is; nowhere if it does not exist. While no name server answers, where it
    /// was: brokers work without one.
    pub(crate) async fn route(self: &Arc<Self>, topic: &str) -> Result<Arc<[Seat]>, Error> {
        let known = self.routes().get(topic).cloned();
        if let Some((until, seats)) = &known
            && Instant::now() < *until
        {
            return Ok(seats.clone());
        }
        let Some((_, seats)) = known else { return self.fresh_route(topic).await };
        // In between the others go on with what is known.
        self.routes().insert(topic.into(), (Instant::now() + ASK_AGAIN, seats.clone()));
        // To its end, so that the client learns which of its name servers hangs.
        let (cluster, topic) = (self.clone(), topic.to_owned());
        let asked = tokio::spawn(async move { cluster.fresh_route(&topic).await });
        match tokio::time::timeout(HOLD_UP, asked).await {
            Ok(Ok(Ok(found))) => Ok(found),
            _ => Ok(seats),
        }
    }

    fn routes(&self) -> MutexGuard<'_, HashMap<Arc<str>, Route>> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, asked for now.
    pub(crate) async fn fresh_route(&self, topic: &str) -> Result<Arc<[Seat]>, Error> {
        let found = self.name_servers(|| self.client.route(topic)).await?;
        let seats: Arc<[Seat]> = found.unwrap_or_default().into();
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.extend(seats.iter().map(|seat| (seat.broker.clone(), seat.address.clone())));
        drop(addresses);
        if seats.is_empty() {
            self.routes().remove(topic);
        } else {
            self.routes().insert(topic.into(), (Instant::now() + ROUTE_AGE, seats.clone()));
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(topic.into());
        }
        Ok(seats)
    }

    /// Whether a topic was somewhere once.
    pub(crate) fn has_seen(&self, topic: &str) -> bool {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).contains(topic)
    }

    /// A broker did not answer: it may have moved.
    pub(crate) fn doubt_routes(&self) {
        let now = Instant::now();
        self.routes().values_mut().for_each(|(until, _)| *until = now.min(*until));
    }

    fn address(&self, broker: &str) -> Result<Arc<str>, Fault> {
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses
            .get(broker)
            .cloned()
            .ok_or_else(|| Fault::NotSent(format!("the address of {broker} is not known")))
    }

    /// Asks a broker by its name. A refusal is an answer.
    pub(crate) async fn ask(&self, broker: &str, request: Request, limit: Duration) -> Result<Answer, Fault> {
        let address = self.address(broker)?;
        self.client.ask(&address, request, limit).await.map_err(|fault| {
            self.doubt_routes();
            fault.of(broker)
        })
    }

    /// The same for requests where everything but success is an error.
    pub(crate) async fn demand(&self, broker: &str, request: Request, what: &str) -> Result<Answer, Error> {
        match self.ask(broker, request, SHORT).await {
            Ok(answer) if answer.code == code::SUCCESS => Ok(answer),
            Ok(answer) => Err(error::refused(what, &answer)),
            Err(fault) => Err(error::from_fault(what, &fault)),
        }
    }
}

pub(crate) fn parsed(body: Option<Bytes>, what: &str) -> Result<Value, Error> {
    serde_json::from_slice(&body.unwrap_or_default()).map_err(|why| {
        Error::with_source(ErrorKind::Internal, format!("{what}: the answer cannot be read"), why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake::{Fake, Known, answer};

    #[tokio::test]
    async fn a_name_server_that_is_not_there_is_no_matter_if_another_is() {
        for (count, found) in [(1, false), (2, true)] {
            let fake = Fake::new(|_| answer(code::SUCCESS));
            let name_servers = (0..count).map(|n| format!("ns{n}:9876")).collect();
            let cluster = fake.cluster(Config { name_servers, ..Config::default() });
            fake.knows(Known::SilentOnce);
            assert_eq!(cluster.route("t").await.is_ok(), found, "{count}");
        }
    }

    #[tokio::test]
    async fn while_no_name_server_answers_topics_are_where_they_were() {
        let fake = Fake::new(|_| answer(code::SUCCESS));
        let cluster = fake.cluster(Config::default());
        cluster.route("t").await.unwrap();
        fake.knows(Known::Silent);
        for _ in 0..3 {
            cluster.doubt_routes();
            assert_eq!(cluster.route("t").await.unwrap().len(), 1);
        }
        assert_eq!(cluster.route("u").await.unwrap_err().kind(), ErrorKind::Connection);
        // It answers again, and knows better.
        fake.knows(Known::None);
        cluster.doubt_routes();
        assert!(cluster.route("t").await.unwrap().is_empty() && cluster.has_seen("t"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_server_that_hangs_is_waited_for_once_in_a_while_and_not_for_long() {
        let fake = Fake::new(|_| answer(code::SUCCESS));
        let cluster = fake.cluster(Config::default());
        cluster.route("t").await.unwrap();
        fake.knows(Known::Hangs);
        cluster.doubt_routes();
        let begin = Instant::now();
        for _ in 0..10 {
            assert_eq!(cluster.route("t").await.unwrap().len(), 1);
        }
        assert_eq!(begin.elapsed(), HOLD_UP);
    }
}
