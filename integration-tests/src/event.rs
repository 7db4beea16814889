//! The messages of the tests. Each says what its handler does.

use oncemq::Message;
use serde::{Deserialize, Serialize};

/// An event that gives points to a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The business id, which is the idempotency key.
    pub id: String,
    /// Who gets the points.
    pub user: i64,
    /// How many.
    pub points: i64,
    /// What the handler does beside its effect.
    pub act: Act,
}

/// What a handler does after it wrote its effect and before it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Returns at once.
    Quick,
    /// Takes so many milliseconds.
    Slow(u64),
    /// Never returns from its first run in any process; later ones are quick.
    HangsOnce,
    /// Fails with a system failure as long as fewer runs than this were charged.
    Flaky(u32),
    /// Fails for good.
    Business,
    /// Ends the process as SIGKILL does.
    Kills,
}

impl Event {
    /// An event whose handler does this.
    pub fn new(id: impl Into<String>, act: Act) -> Self {
        let id = id.into();
        let sum: i64 = id.bytes().map(i64::from).sum();
        Self { user: 1 + sum % crate::database::USERS, points: 1 + sum % 9, id, act }
    }

    /// Many quick events, their ids beginning with `name`.
    pub fn quick(name: &str, count: usize) -> Vec<Self> {
        (0..count).map(|i| Self::new(format!("{name}-{i}"), Act::Quick)).collect()
    }

    /// Whether its effect is to be there in the end.
    pub fn is_good(&self) -> bool {
        !matches!(self.act, Act::Business | Act::Kills)
    }

    /// The message of this event; the same bytes and the same id each time it is sent.
    pub fn message(&self) -> Message {
        let body = serde_json::to_vec(self).expect("an event is JSON");
        Message::new(body).with_id(format!("event-{}", self.id)).with_content_type("application/json")
    }
}
