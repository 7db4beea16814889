//! The table of fates: what becomes of a message and of its record.
//!
//! One pure function. Everything that settles a message or writes a record asks it, and
//! nothing else decides.

use std::time::Duration;

use crate::{Class, RetryPolicy};

/// What is known about a delivery. Filled step by step; the table looks at the first fact
/// that decides.
#[derive(Debug, Clone, Copy, Default)]
pub struct Findings {
    /// No key was found, and the policy for missing keys says what then.
    pub missing_key: Option<MissingKey>,
    /// The store does not answer, or the fate of a commit is unknown.
    pub store_down: bool,
    /// The key is done. Whether declared conflict fields differ.
    pub done: Option<Conflict>,
    /// Another transaction holds the key.
    pub twin: bool,
    /// This very message has a failed note.
    pub failed_note: bool,
    /// The source is a log, or the delivery is flagged as redelivered: a failed note then
    /// means that its dead letter was published and only the settlement was lost.
    pub may_repeat: bool,
    /// The payload could not be decoded.
    pub undecodable: bool,
    /// The handler ran, and how it ended.
    pub run: Option<Run>,
    /// Charged attempts, this run included.
    pub attempt: u32,
}

/// Whether a done key was met by other declared fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conflict {
    /// The same event again.
    None,
    /// Another event under the same key.
    Fields,
}

/// What becomes of a message without a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissingKey {
    /// A dead letter at once, payload byte-identical.
    #[default]
    Reject,
    /// Dropped and counted.
    Discard,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Record and effect are committed.
    Done,
    /// It failed, and whose fault it was.
    Failed(Class),
    /// It panicked.
    Panicked,
}

/// What becomes of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageFate {
    /// Acknowledged.
    Accept,
    /// Tried again after a rung.
    Retry(Duration),
    /// Delivered again a little later, nothing charged.
    Defer,
    /// To the dead letters.
    Reject,
    /// Dropped and counted.
    Discard,
    /// Not settled: intake pauses, and the unit is run again when the store answers.
    Hold,
    /// Nothing decides yet: the next step is taken.
    Proceed,
}

/// What becomes of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordFate {
    /// Nothing is written, and what stands stays.
    Unchanged,
    /// The key is done; committed with the effect.
    Done,
    /// The failed note of this message is committed before the dead letter is published.
    Failed,
    /// The claim is gone with the rolled back transaction.
    Released,
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fate {
    /// What becomes of the message.
    pub message: MessageFate,
    /// What becomes of the record.
    pub record: RecordFate,
}

const fn row(message: MessageFate, record: RecordFate) -> Fate {
    Fate { message, record }
}

/// Looks up what becomes of a message and its record. The rows are tried in this order.
pub fn fate(found: &Findings, policy: &RetryPolicy) -> Fate {
    use MessageFate as M;
    use RecordFate as R;
    match found.missing_key {
        Some(MissingKey::Reject) => return row(M::Reject, R::Unchanged),
        Some(MissingKey::Discard) => return row(M::Discard, R::Unchanged),
        None => {}
    }
    if found.store_down {
        return row(M::Hold, R::Unchanged);
    }
    match found.done {
        Some(Conflict::Fields) => return row(M::Reject, R::Unchanged),
        Some(Conflict::None) => return row(M::Accept, R::Unchanged),
        None => {}
    }
    if found.twin {
        return row(M::Defer, R::Unchanged);
    }
    if found.failed_note && found.may_repeat {
        return row(M::Reject, R::Unchanged);
    }
    if found.undecodable {
        return row(M::Reject, R::Failed);
    }
    let next = match found.run {
        None => return row(M::Proceed, R::Unchanged),
        Some(Run::Done) => return row(M::Accept, R::Done),
        Some(Run::Failed(class)) => policy.next(class, found.attempt),
        Some(Run::Panicked) => policy.next_after_panic(found.attempt),
    };
    match next {
        Some(delay) => row(M::Retry(delay), R::Released),
        None => row(M::Reject, R::Failed),
    }
}

#[cfg(test)]
mod tests;
