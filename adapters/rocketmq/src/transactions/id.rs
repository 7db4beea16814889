//! Names of transactions.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

/// The name of one try of one transaction, made for a half message and never used again. It is
/// 32 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TransactionId(Arc<str>);

impl TransactionId {
    /// One that nobody has used.
    pub(crate) fn new() -> Self {
        // The standard library's hash keys come from the system's random source.
        let word = || RandomState::new().build_hasher().finish();
        Self(format!("{:016x}{:016x}", word(), word()).into())
    }

    pub(crate) fn read(text: &str) -> Self {
        Self(text.into())
    }

    /// The text to commit with the transaction.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for TransactionId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransactionId({})", self.0)
    }
}
