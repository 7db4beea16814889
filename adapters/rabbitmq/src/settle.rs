//! How answers reach the broker.
//!
//! Settling hands an answer to the task that owns the channels; everything after that
//! happens there, in order.

mod copies;
mod held;
mod tracker;

use oncemq_core::{Ack, Message, Settle, Token};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

pub(crate) use copies::{Copied, Copies, Job, Purpose};
pub(crate) use held::{Due, Held};
pub(crate) use tracker::{AckFrame, Tracker};

/// What the owner of the channels is told.
#[derive(Debug)]
pub(crate) enum Command {
    /// A delivery is done.
    Accept(Token),
    /// Any other answer for a delivery.
    Settle(Box<(Token, Message, Ack)>),
    /// A queue gives no more deliveries.
    Ended { lane: usize, epoch: u64, error: Option<Box<lapin::Error>> },
    /// Tell when everything is applied.
    Flush(oneshot::Sender<()>),
    /// Apply what can be applied until then, and close.
    Close { deadline: Instant, done: oneshot::Sender<()> },
}

/// The side of the owner that deliveries keep.
#[derive(Debug)]
pub(crate) struct Link {
    commands: mpsc::UnboundedSender<Command>,
}

impl Link {
    pub(crate) fn new(commands: mpsc::UnboundedSender<Command>) -> Self {
        Self { commands }
    }
}

impl Settle for Link {
    fn settle(&self, token: Token, message: Message, ack: Ack) {
        let command = match ack {
            // By far the most frequent: the message need not travel any further.
            Ack::Accept => Command::Accept(token),
            ack => Command::Settle(Box::new((token, message, ack))),
        };
        // Without an owner there is no channel either: the broker delivers again.
        let _ = self.commands.send(command);
    }
}

/// The lane and the flag of a delivery, as its token carries them.
const REDELIVERED: u32 = 1 << 16;

pub(crate) fn scope(lane: u16, redelivered: bool) -> u32 {
    u32::from(lane) | if redelivered { REDELIVERED } else { 0 }
}

pub(crate) fn lane_of(token: Token) -> u16 {
    u16::try_from(token.scope & 0xffff).unwrap_or(u16::MAX)
}

pub(crate) fn is_redelivered(token: Token) -> bool {
    token.scope & REDELIVERED != 0
}
