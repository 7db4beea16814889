//! What a handler can ask about a message beside its neutral parts.

use lapin::types::ShortString;
use oncemq_core::Message;

use super::Native;

/// The properties of AMQP that a message from RabbitMQ has beside its neutral parts.
///
/// ```
/// # fn handler(message: &oncemq_core::Message) {
/// use oncemq_rabbitmq::Properties;
///
/// if let Some(address) = Properties::of(message).and_then(|properties| properties.reply_to()) {
///     // answer there
/// #   let _ = address;
/// }
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Properties<'a> {
    native: &'a Native,
}

impl<'a> Properties<'a> {
    /// The properties of a message, if RabbitMQ delivered it.
    pub fn of(message: &'a Message) -> Option<Self> {
        Native::of(message).map(|native| Self { native })
    }

    /// The exchange it was published to; empty for the default exchange, as on a ladder copy.
    pub fn exchange(&self) -> &'a str {
        self.native.exchange.as_str()
    }

    /// The key it was published with.
    pub fn routing_key(&self) -> &'a str {
        self.native.routing_key.as_str()
    }

    /// What a request and its answer share.
    pub fn correlation_id(&self) -> Option<&'a str> {
        text(self.native.properties.correlation_id())
    }

    /// Where the answer goes.
    pub fn reply_to(&self) -> Option<&'a str> {
        text(self.native.properties.reply_to())
    }

    /// The encoding of the body, such as `gzip`.
    pub fn content_encoding(&self) -> Option<&'a str> {
        text(self.native.properties.content_encoding())
    }

    /// The application's name for this type of message.
    pub fn message_type(&self) -> Option<&'a str> {
        text(self.native.properties.kind())
    }

    /// The application that published it.
    pub fn app_id(&self) -> Option<&'a str> {
        text(self.native.properties.app_id())
    }

    /// The user that published it, checked by the server. Never on a copy.
    pub fn user_id(&self) -> Option<&'a str> {
        text(self.native.properties.user_id())
    }

    /// After how many milliseconds a queue may drop it. Never on a copy.
    pub fn expiration(&self) -> Option<&'a str> {
        text(self.native.properties.expiration())
    }

    /// Its priority in a priority queue.
    pub fn priority(&self) -> Option<u8> {
        *self.native.properties.priority()
    }

    /// Whether it outlives a restart of the server.
    pub fn is_persistent(&self) -> bool {
        *self.native.properties.delivery_mode() == Some(2)
    }
}

fn text(value: &Option<ShortString>) -> Option<&str> {
    value.as_ref().map(ShortString::as_str)
}
