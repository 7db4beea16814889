//! Ready classifications of well-known errors, by code and never by text.

use std::error::Error as StdError;

use super::Class;

/// An error whose type or code says whose fault it is.
///
/// Implement it for your own error types so that `?` works in handlers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say whether the message or the world is at fault",
    label = "whose fault? `.map_err(Failure::system)?` is retried, `.map_err(|e| Failure::business(e.to_string()))?` is dead-lettered",
    note = "say it where it happens, or once for the type: `impl oncemq::Classify for {Self}`; for sqlx and redis errors enable the feature of that name"
)]
pub trait Classify: StdError + Send + Sync + Sized + 'static {
    /// Whose fault this error is.
    fn class(&self) -> Class;
}

impl Classify for std::io::Error {
    fn class(&self) -> Class {
        Class::System
    }
}

// A document that does not parse will not parse later; only a failed read is the world's fault.
impl Classify for serde_json::Error {
    fn class(&self) -> Class {
        if self.is_io() { Class::System } else { Class::Business }
    }
}

impl Classify for std::str::Utf8Error {
    fn class(&self) -> Class {
        Class::Business
    }
}

/// The class of an SQLSTATE: 22 (data) and 23 (integrity) are the message's fault, all
/// others the world's. 42 and 3F (missing table, missing column) are the world's on
/// purpose: a deploy that precedes its migration must not dead-letter a queue.
#[cfg(any(feature = "sqlx", test))]
pub(crate) fn class_of_sqlstate(code: &str) -> Class {
    match code.get(..2) {
        Some("22" | "23") => Class::Business,
        _ => Class::System,
    }
}

#[cfg(feature = "sqlx")]
impl Classify for sqlx_core::Error {
    fn class(&self) -> Class {
        match self {
            sqlx_core::Error::Database(error) => class_of_database(error.as_ref()),
            // The statement does not fit the row or the type: the code or the data is
            // wrong, but a deploy may cure it.
            _ => Class::System,
        }
    }
}

#[cfg(feature = "sqlx")]
fn class_of_database(error: &dyn sqlx_core::error::DatabaseError) -> Class {
    use sqlx_core::error::ErrorKind;
    match error.kind() {
        ErrorKind::UniqueViolation
        | ErrorKind::ForeignKeyViolation
        | ErrorKind::NotNullViolation
        | ErrorKind::CheckViolation
        | ErrorKind::ExclusionViolation => Class::Business,
        // SQLite has result codes, not SQLSTATEs, and only its constraint codes above are
        // the message's fault.
        _ => match error.code() {
            Some(code) if code.len() == 5 => class_of_sqlstate(&code),
            _ => Class::System,
        },
    }
}

#[cfg(feature = "redis")]
impl Classify for redis::RedisError {
    fn class(&self) -> Class {
        Class::System
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstates_are_classed_by_their_class() {
        for (code, class) in [
            ("22001", Class::Business),
            ("23505", Class::Business),
            ("08006", Class::System),
            ("40001", Class::System),
            ("40P01", Class::System),
            ("42P01", Class::System),
            ("3F000", Class::System),
            ("53300", Class::System),
            ("57P01", Class::System),
            ("", Class::System),
            ("XX000", Class::System),
        ] {
            assert_eq!(class_of_sqlstate(code), class, "{code}");
        }
    }

    #[test]
    fn json_errors_are_the_messages_fault() {
        let error = serde_json::from_str::<u8>("{").unwrap_err();
        assert_eq!(error.class(), Class::Business);
    }
}
