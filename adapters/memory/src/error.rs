//! The errors of this broker, each in one place.

use oncemq_core::{Error, ErrorKind};

use crate::config::Mode;

pub(crate) fn disconnected() -> Error {
    Error::new(ErrorKind::Connection, "the memory broker is disconnected; call reconnect()")
}

pub(crate) fn closed(consumer: &str) -> Error {
    Error::new(ErrorKind::Closed, format!("the source of consumer {consumer} is closed"))
}

pub(crate) fn publisher_closed() -> Error {
    Error::new(ErrorKind::Closed, "the publisher is closed")
}

pub(crate) fn unroutable(topic: &str, why: &str) -> Error {
    Error::new(ErrorKind::Unroutable, format!("nothing keeps messages of topic {topic}: {why}"))
}

pub(crate) fn no_queue(queue: &str) -> Error {
    Error::new(
        ErrorKind::Topology,
        format!("queue {queue} does not exist; declare it, or make it with MemoryBroker::bind"),
    )
}

pub(crate) fn other_mode(name: &str, known: Mode, asked: Mode) -> Error {
    Error::new(ErrorKind::Config, format!("the memory broker {name:?} exists as {known:?}, not as {asked:?}"))
}

pub(crate) fn no_topic(topic: &str) -> Error {
    Error::new(
        ErrorKind::Topology,
        format!("topic {topic} does not exist; declare it, or make it with MemoryBroker::create_topic"),
    )
}
