//! How an answer reaches the broker.

use std::sync::Arc;

use oncemq_core::{Ack, Message, Settle, Token};

use crate::hub::Hub;
use crate::source::SourceId;

/// The settling side of one source.
#[derive(Debug)]
pub(crate) struct Link {
    hub: Arc<Hub>,
    source: SourceId,
}

impl Link {
    pub(crate) fn new(hub: Arc<Hub>, source: SourceId) -> Self {
        Self { hub, source }
    }
}

impl Settle for Link {
    fn settle(&self, token: Token, message: Message, ack: Ack) {
        self.hub.with(|state, wakes| state.settle(self.source, token, &message, ack, wakes));
    }
}
