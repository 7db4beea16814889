//! A message together with the right to settle it, once.

use std::sync::Arc;

use crate::{Ack, Message};

/// A message and the right to say what becomes of it, exactly once.
///
/// Settling consumes the delivery and is a synchronous hand-off to the adapter: no future
/// can be cancelled half-way, so an answer is never lost and never given twice. A delivery
/// that is dropped is given back, on any thread, with or without a runtime.
#[derive(Debug)]
pub struct Delivery {
    message: Message,
    facts: Facts,
    token: Token,
    settle: Option<Arc<dyn Settle>>,
}

/// What the broker said about a delivery beside the message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// Which subscription of the source it belongs to, by index.
    pub subscription: u16,
    /// The broker may have delivered it before: its redelivered flag, or on a log an offset
    /// that may have been handed out before the last stop.
    pub redelivered: bool,
    /// Charged attempts that the broker itself counted beside our header (RocketMQ's
    /// reconsume times). Other brokers leave it 0: their counters also count what is
    /// nobody's fault.
    pub charged: u32,
}

impl Facts {
    /// The facts of a delivery of this subscription.
    pub fn new(subscription: u16, redelivered: bool) -> Self {
        Self { subscription, redelivered, charged: 0 }
    }
}

/// Names a delivery to its adapter. Opaque to everybody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// The incarnation it is valid in: channel epoch, assignment epoch.
    pub epoch: u64,
    /// Where in it: partition, queue.
    pub scope: u32,
    /// The delivery: tag, offset.
    pub id: u64,
}

/// The adapter's side of settling.
pub trait Settle: Send + Sync + std::fmt::Debug + 'static {
    /// Takes over what becomes of a delivery. Must not block and must not fail: what cannot
    /// be applied any more (a dead channel, a revoked partition) is dropped, and the broker
    /// delivers the message again. Called from any thread, also without a runtime, and at
    /// most once for a delivery.
    fn settle(&self, token: Token, message: Message, ack: Ack);
}

impl Delivery {
    /// A delivery that answers to this adapter.
    pub fn new(message: Message, facts: Facts, token: Token, settle: Arc<dyn Settle>) -> Self {
        Self { message, facts, token, settle: Some(settle) }
    }

    /// The message.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// What the broker said about it.
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// Says what becomes of the message.
    pub fn ack(mut self, ack: Ack) {
        self.hand_over(ack);
    }

    fn hand_over(&mut self, ack: Ack) {
        if let Some(settle) = self.settle.take() {
            settle.settle(self.token, self.message.clone(), ack);
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.hand_over(Ack::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    struct Seen(Mutex<Vec<(u64, &'static str)>>);

    impl Settle for Seen {
        fn settle(&self, token: Token, _message: Message, ack: Ack) {
            let word = match ack {
                Ack::Accept => "accept",
                Ack::Release => "release",
                _ => "other",
            };
            self.0.lock().unwrap().push((token.id, word));
        }
    }

    fn delivery(seen: &Arc<Seen>, id: u64) -> Delivery {
        let token = Token { epoch: 0, scope: 0, id };
        Delivery::new(Message::new(""), Facts::default(), token, seen.clone())
    }

    #[test]
    fn rb2_a_delivery_is_settled_exactly_once() {
        let seen = Arc::new(Seen::default());
        delivery(&seen, 1).ack(Ack::Accept);
        drop(delivery(&seen, 2));
        assert_eq!(*seen.0.lock().unwrap(), [(1, "accept"), (2, "release")]);
    }

    #[test]
    fn dropped_on_a_thread_without_a_runtime_it_is_given_back() {
        let seen = Arc::new(Seen::default());
        let given = delivery(&seen, 7);
        std::thread::spawn(move || drop(given)).join().unwrap();
        assert_eq!(*seen.0.lock().unwrap(), [(7, "release")]);
    }

    #[test]
    fn dropped_by_a_panic_it_is_given_back() {
        let seen = Arc::new(Seen::default());
        let given = delivery(&seen, 9);
        let thread = std::thread::spawn(move || {
            let _given = given;
            panic!("in the middle");
        });
        assert!(thread.join().is_err());
        assert_eq!(*seen.0.lock().unwrap(), [(9, "release")]);
    }
}
