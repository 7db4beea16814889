//! Whether a consumer is at work, for probes and dashboards.

use std::fmt;

/// The state of a consumer or of one of its parts. Ordered from best to worst.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Health {
    /// At work.
    Up,
    /// Not connected yet.
    #[default]
    Starting,
    /// Something is missing and it is being waited for; no message is lost meanwhile.
    Degraded(String),
    /// Ended.
    Down(String),
}

impl Health {
    /// Whether messages are being handled.
    pub fn is_up(&self) -> bool {
        matches!(self, Health::Up)
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Health::Up => f.write_str("up"),
            Health::Starting => f.write_str("starting"),
            Health::Degraded(why) => write!(f, "degraded: {why}"),
            Health::Down(why) => write!(f, "down: {why}"),
        }
    }
}
