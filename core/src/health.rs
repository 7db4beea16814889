//! Whether a consumer is at work, for probes and dashboards.

use std::fmt;

use tokio::sync::watch;

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
    /// The worst of several, as it changes: the health of a process with several consumers. A
    /// consumer counts with its last state after it has ended. Of several that are equally bad
    /// one is told.
    ///
    /// ```
    /// # use oncemq_core::{Consumer, Health};
    /// # fn example(orders: &Consumer, payments: &Consumer) {
    /// let health = Health::of_all([orders.health(), payments.health()]);
    /// # }
    /// ```
    ///
    /// Must be called inside a runtime: tasks watch until nobody reads the result.
    pub fn of_all(parts: impl IntoIterator<Item = watch::Receiver<Health>>) -> watch::Receiver<Health> {
        let parts: Vec<_> = parts.into_iter().collect();
        let (sender, receiver) = watch::channel(worst(&parts));
        for mut part in parts.clone() {
            let (sender, parts) = (sender.clone(), parts.clone());
            tokio::spawn(async move {
                loop {
                    tokio::select! {
                        () = sender.closed() => return,
                        changed = part.changed() => if changed.is_err() { return },
                    }
                    sender.send_if_modified(|known| {
                        let now = worst(&parts);
                        let changed = *known != now;
                        *known = now;
                        changed
                    });
                }
            });
        }
        receiver
    }

    /// Whether messages are being handled.
    pub fn is_up(&self) -> bool {
        matches!(self, Health::Up)
    }
}

fn worst(parts: &[watch::Receiver<Health>]) -> Health {
    parts.iter().map(|part| part.borrow().clone()).max().unwrap_or(Health::Up)
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
