//! Connecting, and noticing what broke.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use futures_util::FutureExt;
use lapin::Connection;
use oncemq_core::{Error, Event, Health, Origin};
use tokio::time::Instant;

use super::{Owner, Ready, STALLED, Wire};
use crate::connection::connect;
use crate::error;
use crate::settle::Tracker;
use crate::source::lane::{Opened, State, Up, open};
use crate::source::{Incoming, Note};

impl Owner {
    /// Connects for the first time and consumes every queue.
    pub(super) async fn open_all(&mut self) -> Result<(), Error> {
        let connection = Arc::new(connect(&self.config, &self.name).await?);
        self.connection = Wire::Up(connection.clone());
        for place in 0..self.lanes.len() {
            let opened = open(connection.clone(), self.lanes[place].spec.clone()).await?;
            self.consume(place, opened);
        }
        Ok(())
    }

    /// Looks at everything: what is down and due is opened, what broke without a word is
    /// noticed, and the health is told.
    pub(super) fn look(&mut self) {
        let now = Instant::now();
        match &self.connection {
            Wire::Up(connection) if !connection.status().connected() => {
                self.lose_connection("the connection was lost".to_owned());
            }
            Wire::Up(_) => self.look_at_lanes(now),
            Wire::Down { retry_at, .. } if *retry_at <= now => self.reconnect(),
            Wire::Down { .. } | Wire::Opening { .. } => {}
        }
        self.report();
    }

    fn look_at_lanes(&mut self, now: Instant) {
        let Wire::Up(connection) = &self.connection else { return };
        let connection = connection.clone();
        for place in 0..self.lanes.len() {
            let lane = &mut self.lanes[place];
            match &lane.state {
                State::Up(up) if !up.channel.status().connected() => {
                    let epoch = up.epoch;
                    self.ended(place, epoch, None);
                }
                State::Up(_) => lane.is_well(),
                State::Down(retry_at) if *retry_at <= now => {
                    lane.state = State::Opening;
                    let opening = open(connection.clone(), lane.spec.clone());
                    self.opening.push(opening.map(move |result| Ready::Lane(place, result)).boxed());
                }
                State::Down(_) | State::Opening => {}
            }
        }
    }

    fn reconnect(&mut self) {
        let Wire::Down { why, .. } = &self.connection else { return };
        self.connection = Wire::Opening { why: why.clone() };
        let (config, name) = (self.config.clone(), self.name.clone());
        let connecting = async move { Ready::Connection(connect(&config, &name).await) };
        self.opening.push(connecting.boxed());
    }

    pub(super) fn ready(&mut self, ready: Ready) {
        match ready {
            Ready::Connection(Ok(connection)) => self.connected(connection),
            Ready::Connection(Err(error)) => {
                let retry_at = Instant::now() + self.connection_backoff.next();
                self.connection = Wire::Down { retry_at, why: error.to_string() };
                self.next_look = self.next_look.min(retry_at);
            }
            Ready::Lane(place, Ok(opened)) => {
                self.consume(place, opened);
            }
            Ready::Lane(place, Err(error)) => self.lane_failed(place, error.to_string()),
        }
        self.report();
    }

    fn connected(&mut self, connection: Connection) {
        self.connection = Wire::Up(Arc::new(connection));
        self.connection_backoff.reset();
        let now = Instant::now();
        for lane in &mut self.lanes {
            lane.state = State::Down(now);
        }
        self.look_at_lanes(now);
    }

    /// A new incarnation of a queue's channel: its tags begin at 1.
    fn consume(&mut self, place: usize, opened: Opened) {
        let Opened { channel, consumer } = opened;
        self.epoch += 1;
        let channel = Arc::new(channel);
        let lane = &mut self.lanes[place];
        let up = Up {
            epoch: self.epoch,
            channel: channel.clone(),
            tag: consumer.tag(),
            tracker: Tracker::new(),
            alive: Arc::new(AtomicBool::new(true)),
        };
        lane.opened(up);
        let origin = Origin::new("rabbitmq", lane.spec.names.work.as_str());
        // There are at most as many lanes as subscriptions, which the runtime counts in u16.
        let index = u16::try_from(place).unwrap_or(u16::MAX);
        let epoch = self.epoch;
        let incoming = Incoming { channel, consumer, epoch, lane: index, origin };
        // Before the first delivery of the new incarnation, not behind some of them.
        self.shared.note(Note::Event(Event::Reconnected { epoch }));
        self.shared.note(Note::Opened(place, Box::new(incoming)));
    }

    /// The deliveries of a queue have ended.
    pub(super) fn ended(&mut self, place: usize, epoch: u64, error: Option<&lapin::Error>) {
        if self.lanes[place].up(epoch).is_none() {
            return;
        }
        if let Wire::Up(connection) = &self.connection
            && !connection.status().connected()
        {
            let why = error.map_or_else(|| "the connection was lost".to_owned(), lost);
            self.lose_connection(why);
        } else {
            let why = error.map_or_else(|| "the broker cancelled the consumer".to_owned(), lost);
            self.lane_failed(place, why);
        }
        self.report();
    }

    fn lane_failed(&mut self, place: usize, why: String) {
        let lane = &mut self.lanes[place];
        let epoch = lane.fail(why);
        if let State::Down(retry_at) = lane.state {
            self.next_look = self.next_look.min(retry_at);
        }
        self.forget(epoch);
    }

    fn lose_connection(&mut self, why: String) {
        let retry_at = Instant::now() + self.connection_backoff.next();
        self.connection = Wire::Down { retry_at, why };
        self.next_look = self.next_look.min(retry_at);
        for place in 0..self.lanes.len() {
            let epoch = self.lanes[place].fail("the connection was lost".to_owned());
            self.forget(epoch);
        }
        // What was being opened on it cannot come any more.
        self.opening.clear();
    }

    /// What waits in the process of an incarnation that is over is void.
    fn forget(&mut self, epoch: Option<u64>) {
        if let Some(epoch) = epoch {
            self.shared.forget(epoch);
        }
    }

    /// Tells the health if it has changed.
    pub(super) fn report(&mut self) {
        let health = match &self.connection {
            Wire::Down { why, .. } | Wire::Opening { why } => {
                Health::Degraded(format!("not connected to RabbitMQ: {why}"))
            }
            Wire::Up(_) => self.health_of_parts().map_or(Health::Up, Health::Degraded),
        };
        self.set_health(health);
    }

    fn health_of_parts(&self) -> Option<String> {
        let down = self.lanes.iter().find(|lane| !matches!(lane.state, State::Up(_)));
        if let Some(lane) = down {
            return Some(format!("queue {} is not consumed: {}", lane.spec.names.work, lane.why));
        }
        if self.copies.blocked() {
            return Some("RabbitMQ blocks publishing, because memory or disk run short".to_owned());
        }
        if let Some(error) = &self.copy_error {
            return Some(format!("a retry or dead letter cannot be published: {error}"));
        }
        let stalled = self.copies.stalled();
        if stalled >= STALLED {
            return Some(format!("RabbitMQ has not confirmed a copy for {} s", stalled.as_secs()));
        }
        None
    }
}

fn lost(error: &lapin::Error) -> String {
    error::from_client("the broker closed the channel", error).to_string()
}
