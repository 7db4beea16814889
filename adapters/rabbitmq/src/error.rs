//! What the client says, in words of the library.

use lapin::ErrorKind as Client;
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use oncemq_core::{Error, ErrorKind};

/// An error of the client. `what` says what was being done.
pub(crate) fn from_client(what: &str, error: &lapin::Error) -> Error {
    let (kind, text) = match error.kind() {
        Client::ProtocolError(refusal) => {
            let text = strip_code(refusal.get_message().as_str());
            (kind_of(refusal.kind(), text), text.to_owned())
        }
        Client::IOError(io) => (ErrorKind::Connection, io.to_string()),
        Client::RuntimeShutdownError(_) => (ErrorKind::Closed, "the runtime is shutting down".to_owned()),
        Client::MissingHeartbeatError => {
            (ErrorKind::Connection, "the broker does not answer any more".to_owned())
        }
        Client::InvalidConnectionState(_) | Client::InvalidChannelState(..) | Client::InvalidChannel(_) => {
            (ErrorKind::Connection, "the connection was closed".to_owned())
        }
        _ => (ErrorKind::Connection, error.to_string()),
    };
    Error::new(kind, format!("{what}: {text}"))
}

fn kind_of(refusal: &AMQPErrorKind, text: &str) -> ErrorKind {
    match refusal {
        AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => ErrorKind::Access,
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND | AMQPSoftError::RESOURCELOCKED) => ErrorKind::Topology,
        AMQPErrorKind::Soft(AMQPSoftError::CONTENTTOOLARGE) => ErrorKind::TooLarge,
        AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) if text.contains("message size") => {
            ErrorKind::TooLarge
        }
        AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) => ErrorKind::Topology,
        AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) if text.contains("not found") => ErrorKind::Config,
        AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => ErrorKind::Access,
        _ => ErrorKind::Connection,
    }
}

/// `NOT_FOUND - no queue 'x'` without its code.
fn strip_code(text: &str) -> &str {
    match text.split_once(" - ") {
        Some((code, rest)) if code.chars().all(|c| c.is_ascii_uppercase() || c == '_') => rest,
        _ => text,
    }
}

/// The broker's refusal of a declaration, if it is one, without its code.
pub(crate) fn refusal(error: &lapin::Error, code: AMQPSoftError) -> Option<&str> {
    match error.kind() {
        Client::ProtocolError(refusal) if *refusal.kind() == AMQPErrorKind::Soft(code) => {
            Some(strip_code(refusal.get_message().as_str()))
        }
        _ => None,
    }
}

/// Whether the broker said that a queue or exchange does not exist.
pub(crate) fn is_missing(error: &lapin::Error) -> bool {
    refusal(error, AMQPSoftError::NOTFOUND).is_some()
}

/// How an existing queue or exchange differs from what was asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Difference<'a> {
    /// `queue` or `exchange`.
    pub(crate) what: &'a str,
    pub(crate) name: &'a str,
    pub(crate) argument: &'a str,
    pub(crate) asked: &'a str,
    pub(crate) existing: &'a str,
}

impl<'a> Difference<'a> {
    /// Reads `inequivalent arg 'x-a' for queue 'q' in vhost '/': received 'none' but current
    /// is the value '5' of type 'signedint'`, in which values may also stand without quotes.
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        let rest = text.strip_prefix("inequivalent arg '")?;
        let (argument, rest) = rest.split_once("' for ")?;
        let (what, rest) = rest.split_once(" '")?;
        let (name, rest) = rest.split_once("' in vhost '")?;
        let (_, rest) = rest.split_once("': received ")?;
        let (asked, existing) = rest.split_once(" but current is ")?;
        Some(Self { what, name, argument, asked: value(asked), existing: value(existing) })
    }

    /// Whether the existing one does not have the argument at all.
    pub(crate) fn is_absent(&self) -> bool {
        self.existing == "none"
    }
}

impl From<Difference<'_>> for Error {
    fn from(found: Difference<'_>) -> Self {
        let Difference { what, name, argument, asked, existing } = found;
        let existing = match (argument, existing) {
            // Made by a client that did not say a type.
            ("x-queue-type", "none") => "none (classic)",
            _ => existing,
        };
        Error::new(
            ErrorKind::Topology,
            format!(
                "{what} {name} exists with {argument} = {existing}, but {asked} is asked for; delete it \
                 when it is empty, or change the setting, or use Topology::Verify to take it as it is"
            ),
        )
    }
}

fn value(text: &str) -> &str {
    let text = text.strip_prefix("the value ").unwrap_or(text);
    let text = text.split_once(" of type ").map_or(text, |(value, _)| value);
    text.trim_matches('\'')
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the RabbitMQ source is closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rb7_a_refused_declaration_is_taken_apart() {
        let text = "inequivalent arg 'x-message-ttl' for queue 'a.b' in vhost '/': received the value '5' of \
                    type 'long' but current is none";
        let found = Difference::read(text).unwrap();
        assert_eq!((found.what, found.name, found.argument), ("queue", "a.b", "x-message-ttl"));
        assert_eq!((found.asked, found.existing), ("5", "none"));
        assert!(found.is_absent());
        let text = "inequivalent arg 'type' for exchange 'orders' in vhost '/': received 'fanout' but current is \
                    'topic'";
        let found = Difference::read(text).unwrap();
        assert_eq!((found.what, found.asked, found.existing), ("exchange", "fanout", "topic"));
        let error = Error::from(found).to_string();
        assert!(error.contains("orders") && error.contains("fanout") && error.contains("topic"), "{error}");
        assert_eq!(Difference::read("something else"), None);
    }

    #[test]
    fn codes_are_not_repeated_in_texts() {
        assert_eq!(strip_code("NOT_FOUND - no queue 'x'"), "no queue 'x'");
        assert_eq!(strip_code("a - b"), "a - b");
    }
}
