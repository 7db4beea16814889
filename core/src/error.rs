//! The one error type of the library.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// What went wrong, as far as a caller can act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting, a URL or a name is not usable as given. Change the configuration.
    Config,
    /// The URL's scheme is unknown, or its Cargo feature is off.
    Scheme,
    /// The server refused the credentials or the rights of this account.
    Access,
    /// The server cannot be reached, or the connection was lost.
    Connection,
    /// A queue, topic, exchange or table is missing or has other properties than asked.
    Topology,
    /// The broker took the message but could not route it to any queue.
    Unroutable,
    /// The broker did not confirm the message: it may or may not be stored. Sending it
    /// again with the same id is the way to be sure.
    Unconfirmed,
    /// The message exceeds a limit of the broker or the protocol.
    TooLarge,
    /// This broker or store cannot do what was asked.
    Unsupported,
    /// The database that keeps the records failed.
    Store,
    /// The record tables were made by a version that this one cannot read.
    Schema,
    /// The consumer, source or publisher was closed.
    Closed,
    /// A defect of the library or of an adapter.
    Internal,
}

/// An error of the library: one line that says what is wrong and what to do.
///
/// [`kind`](Error::kind) is what programs look at; the text is for people and may change.
/// Neither `Display` nor `Debug` ever contains a password.
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of this kind. `message` says what is wrong and what to do about it.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::build(kind, message.into(), None)
    }

    /// The same, keeping the error that caused it. The cause's text is shown after the
    /// message, so it must not contain a secret.
    pub fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self::build(kind, message.into(), Some(source.into()))
    }

    fn build(kind: ErrorKind, message: String, source: Option<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { inner: Arc::new(Inner { kind, message, source }) }
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Whether the same call may succeed later without any change by a person.
    pub fn is_transient(&self) -> bool {
        matches!(self.inner.kind, ErrorKind::Connection | ErrorKind::Unconfirmed | ErrorKind::Store)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        one_line(&self.inner.message, f)?;
        let mut cause = self.inner.source.as_deref().map(|s| s as &dyn StdError);
        let mut last = String::new();
        while let Some(error) = cause {
            let text = error.to_string();
            // Many drivers repeat their cause at the end of their own text.
            if !last.ends_with(&text) {
                f.write_str(": ")?;
                one_line(&text, f)?;
            }
            last = text;
            cause = error.source();
        }
        Ok(())
    }
}

/// One line, whatever a driver puts into its text or a user into a name.
fn one_line(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (i, line) in text.lines().enumerate() {
        if i > 0 {
            f.write_str(" ")?;
        }
        f.write_str(line.trim_end())?;
    }
    Ok(())
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.inner.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // Already part of the text; returning it would make reporters print it twice.
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error with a cause that its own text repeats.
    #[derive(Debug)]
    struct Repeats;

    impl fmt::Display for Repeats {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("query: no such table")
        }
    }

    impl StdError for Repeats {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            #[derive(Debug)]
            struct Cause;
            impl fmt::Display for Cause {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("no such table")
                }
            }
            impl StdError for Cause {}
            Some(&Cause)
        }
    }

    #[test]
    fn display_is_one_line_with_every_cause() {
        let io = std::io::Error::other("first\nsecond");
        let error = Error::with_source(ErrorKind::Connection, "cannot reach\nthe broker", io);
        assert_eq!(error.to_string(), "cannot reach the broker: first second");
        assert_eq!(error.kind(), ErrorKind::Connection);
        assert!(error.is_transient());
        let twice = Error::with_source(ErrorKind::Store, "the store failed", Repeats);
        assert_eq!(twice.to_string(), "the store failed: query: no such table");
        assert!(format!("{error:?}").starts_with("Connection: cannot reach"));
    }
}
