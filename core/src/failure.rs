//! Why a handler failed, and whose fault it is.

use std::error::Error as StdError;
use std::fmt;

mod classify;
pub use classify::Classify;

/// Whose fault a failure is. The class decides the fate of the message and of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The message is at fault and no repetition will help: dead-lettered at once.
    Business,
    /// The message is at fault, but may succeed a few times later: the business limit of
    /// the retry policy says how often.
    BusinessLimited,
    /// The world is at fault: a timeout, a refused connection, a deadlock. The ladder says
    /// when to try again.
    System,
}

impl Class {
    /// The word used in headers and notes.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Business => "business",
            Class::BusinessLimited => "business-limited",
            Class::System => "system",
        }
    }

    /// The class that a header or note names; anything unknown is `System`.
    pub fn parse(text: &str) -> Self {
        match text {
            "business" => Class::Business,
            "business-limited" => Class::BusinessLimited,
            _ => Class::System,
        }
    }
}

/// A failed run of a handler: a [`Class`], a reason, and the error that caused it.
///
/// `?` turns an error into a `Failure` only where its type implements [`Classify`], so that
/// nobody's default decides between a retry and the dead letter. For any other error say
/// which it is: `.map_err(Failure::system)?`.
pub struct Failure {
    class: Class,
    reason: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Failure {
    /// The message is at fault, finally: `"unknown product"`.
    pub fn business(reason: impl Into<String>) -> Self {
        Self { class: Class::Business, reason: reason.into(), source: None }
    }

    /// The message is at fault now, and may be tried again up to the business limit.
    pub fn business_limited(reason: impl Into<String>) -> Self {
        Self { class: Class::BusinessLimited, reason: reason.into(), source: None }
    }

    /// The world is at fault. Takes an error or a text.
    pub fn system(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let source = error.into();
        Self { class: Class::System, reason: source.to_string(), source: Some(source) }
    }

    /// A failure of this class caused by this error.
    pub fn classified(class: Class, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let source = error.into();
        Self { class, reason: source.to_string(), source: Some(source) }
    }

    /// Whose fault it is.
    pub fn class(&self) -> Class {
        self.class
    }

    /// The reason, as it is written on the dead letter.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The error that caused it, if there was one.
    pub fn cause(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        self.source.as_deref()
    }
}

impl<E: Classify> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::classified(error.class(), error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failure: {}", self.class.as_str(), self.reason)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout() -> Result<(), Failure> {
        Err(std::io::Error::from(std::io::ErrorKind::TimedOut))?;
        Ok(())
    }

    #[test]
    fn question_mark_classifies_by_type() {
        let failure = timeout().unwrap_err();
        assert_eq!(failure.class(), Class::System);
        assert!(failure.cause().is_some());
    }

    #[test]
    fn class_words_survive_a_round_trip() {
        for class in [Class::Business, Class::BusinessLimited, Class::System] {
            assert_eq!(Class::parse(class.as_str()), class);
        }
        assert_eq!(Class::parse("what?"), Class::System);
    }
}
