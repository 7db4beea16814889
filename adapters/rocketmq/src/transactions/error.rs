//! Why a message of a transaction was not published.

use std::fmt;

use oncemq_core::{Decision, Error};

/// Why a message of a transaction was not published. Message and transaction have the same fate
/// in any case.
#[derive(Debug)]
#[non_exhaustive]
pub enum TransactionError<E> {
    /// No half message was stored, and the local transaction was not begun.
    NotSent(Error),
    /// The local transaction says that it failed.
    Local {
        /// What it says.
        error: E,
        /// What the database says. [`Committed`](Decision::Committed) where only the answer to a
        /// commit was lost: then the message appears. [`Open`](Decision::Open) where the database
        /// could not tell: then the broker asks later.
        decision: Decision,
    },
    /// The local transaction says that it is committed, and the database says that it is not:
    /// its id was not committed with it, the broker asked before it ended, or an error inside it
    /// was ignored. The message does not appear.
    NotCommitted,
}

impl<E: fmt::Display> fmt::Display for TransactionError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(error) => write!(f, "no half message was sent: {error}"),
            Self::Local { error, decision } => {
                let fate = match decision {
                    Decision::Committed => "it is committed all the same, and the message appears",
                    Decision::RolledBack => "it is rolled back",
                    Decision::Open => "the broker asks later what became of it",
                };
                write!(f, "the local transaction failed, {fate}: {error}")
            }
            Self::NotCommitted => f.write_str(
                "the local transaction is not committed with its id; commit the id in the same transaction, and pass \
                 on its errors",
            ),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for TransactionError<E> {}
