//! What brokers and the client say, in words of the library.

use oncemq_core::{Error, ErrorKind};

use crate::client::{Answer, Fault};

/// Codes of answers.
pub(crate) mod code {
    pub(crate) const SUCCESS: i32 = 0;
    pub(crate) const SYSTEM_ERROR: i32 = 1;
    pub(crate) const SYSTEM_BUSY: i32 = 2;
    pub(crate) const FLUSH_DISK_TIMEOUT: i32 = 10;
    pub(crate) const FLUSH_SLAVE_TIMEOUT: i32 = 12;
    pub(crate) const MESSAGE_ILLEGAL: i32 = 13;
    pub(crate) const SERVICE_NOT_AVAILABLE: i32 = 14;
    pub(crate) const NO_PERMISSION: i32 = 16;
    pub(crate) const TOPIC_NOT_EXIST: i32 = 17;
    pub(crate) const PULL_NOT_FOUND: i32 = 19;
    pub(crate) const PULL_RETRY_AT_ONCE: i32 = 20;
    pub(crate) const PULL_OFFSET_MOVED: i32 = 21;
    pub(crate) const QUERY_NOT_FOUND: i32 = 22;
    pub(crate) const GROUP_NOT_EXIST: i32 = 26;
    pub(crate) const INVALID_PARAMETER: i32 = 29;
    pub(crate) const NOT_ONLINE: i32 = 206;
}

/// There was no answer. `what` says what was being done.
pub(crate) fn from_fault(what: &str, fault: &Fault) -> Error {
    Error::new(ErrorKind::Connection, format!("{what}: RocketMQ does not answer ({fault})"))
}

/// The broker said no. `what` says what was being done.
pub(crate) fn refused(what: &str, answer: &Answer) -> Error {
    let kind = match answer.code {
        code::NO_PERMISSION => ErrorKind::Access,
        code::TOPIC_NOT_EXIST | code::GROUP_NOT_EXIST => ErrorKind::Topology,
        code::MESSAGE_ILLEGAL => ErrorKind::TooLarge,
        code::SYSTEM_ERROR if answer.remark.contains("uthenticat") => ErrorKind::Access,
        _ => ErrorKind::Connection,
    };
    Error::new(kind, format!("{what}: {}", words(answer)))
}

/// The broker's own words, without the names of its classes and the page that explains them.
pub(crate) fn words(answer: &Answer) -> String {
    let text = answer.remark.lines().next().unwrap_or_default();
    let text =
        text.split(", see https://").next().unwrap_or(text).split(" See https://").next().unwrap_or(text);
    match text.trim() {
        "" => format!("the broker refuses it with code {}", answer.code),
        text => format!("{text} (code {})", answer.code),
    }
}

/// Whether nothing that time alone can change stands in the way.
pub(crate) fn is_final(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Access | ErrorKind::Topology | ErrorKind::Config)
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the RocketMQ source is closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_the_brokers_words() {
        let remark = "No group in this broker, see https://rocketmq.apache.org/docs/bestPractice/06FAQ\nmore";
        let answer = Answer { code: code::GROUP_NOT_EXIST, remark: remark.to_owned(), ..Answer::default() };
        let error = refused("consuming", &answer);
        assert_eq!(error.kind(), ErrorKind::Topology);
        assert_eq!(error.to_string(), "consuming: No group in this broker (code 26)");
        let silent = refused("committing", &Answer { code: 99, ..Answer::default() });
        assert_eq!(silent.to_string(), "committing: the broker refuses it with code 99");
        assert!(is_final(&error) && !is_final(&silent));
    }
}
