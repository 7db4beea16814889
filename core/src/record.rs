//! The record of what is done: the seam between the runtime and a store.
//!
//! The runtime drives every store through these traits and knows no database. A simulated
//! store and the real inboxes pass the same store suite, so what the simulator shows about
//! the driver holds for them.

use std::future::Future;
use std::time::{Duration, SystemTime};

use crate::{Class, Context, Error, Failure, KeyValue, Trail, TrailId};

/// A store of records in which the business effect commits together with the record.
///
/// Two tables. By key: a row means done and nothing else; its insert, in the business
/// transaction, is the claim. By message ([`TrailId`]): rare notes of failures, waits in
/// process and crash marks, each a commit of its own and never part of a unit.
pub trait Record: Send + Sync + 'static {
    /// What a handler receives to write its effect with.
    type Loan: Send + 'static;
    /// An open transaction.
    type Unit: Unit<Loan = Self::Loan>;

    /// What the store promises and needs.
    fn facts(&self) -> RecordFacts;

    /// Opens a transaction whose claims and effects end within `limit` on the server, even
    /// if this process disappears. Waits for a free place.
    ///
    /// Cancel safe: no transaction is left open.
    fn begin(&self, limit: Duration) -> impl Future<Output = Result<Self::Unit, Error>> + Send;

    /// Asks on a fresh connection whether the store answers.
    fn probe(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Adds a crash mark to a message that has fewer than `below`, and returns the note as it
    /// is then; `None` if it has as many, and nothing is written.
    fn mark(&self, id: &TrailId, below: u32) -> impl Future<Output = Result<Option<Note>, Error>> + Send;

    /// Takes marks back: all of them, or the one that this delivery wrote.
    fn unmark(&self, id: &TrailId, marks: Marks) -> impl Future<Output = Result<(), Error>> + Send;

    /// Writes how many charged attempts were made while the message waited in process.
    fn charge(&self, id: &TrailId, attempt: u32) -> impl Future<Output = Result<(), Error>> + Send;

    /// Commits the failed note of a message where its key has no done row. Returns
    /// whether it did: `false` means that the key is done and the message may be accepted.
    fn fail(&self, entry: &Entry, failed: &Failed) -> impl Future<Output = Result<bool, Error>> + Send;
}

/// An open transaction of a [`Record`]. Dropped, it is rolled back.
pub trait Unit: Send + 'static {
    /// What a handler receives.
    type Loan: Send + 'static;

    /// Claims keys, in any order, each at most once in a unit. Never waits for another
    /// transaction: a key whose claim is open elsewhere is [`Claim::Busy`]. The answers are
    /// in the order of the entries.
    fn claim(&mut self, entries: &[Entry]) -> impl Future<Output = Result<Vec<Verdict>, Error>> + Send;

    /// Lends the transaction to a handler. It comes back when the loan is dropped.
    fn lend(&mut self, context: Context) -> Self::Loan;

    /// Commits record and effect together.
    fn commit(self) -> impl Future<Output = Ending> + Send;

    /// Ends without effect and says in which state the transaction was found.
    fn rollback(self) -> impl Future<Output = Ending> + Send;
}

/// How a unit ended, as the store saw it. This beats what the handler said.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ending {
    /// Record and effect are there.
    Committed,
    /// Neither is there; the handler's own word stands.
    RolledBack,
    /// Neither is there, and the whole unit is run again: a deadlock or a serialization
    /// failure. Nobody's fault.
    Redo(Error),
    /// The reply to the commit was lost. The unit is run again, and its claim says whether
    /// it was done.
    Unknown(Error),
    /// The connection broke, or a statement was still running, before the end. Judged by a
    /// probe.
    Broken(Error),
    /// The commit was refused, so neither is there: by a constraint that is checked only
    /// then, or because the handler had ended, aborted or replaced the transaction. Charged
    /// by the class of the failure.
    Refused(Failure),
    /// The handler kept the loan. Neither is there. Charged.
    NotReturned,
}

/// What a store promises and needs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordFacts {
    /// The store's name, for the plan: `postgres`.
    pub store: &'static str,
    /// How long a done key is remembered.
    pub retention: Duration,
    /// Units that can be open at once.
    pub units: usize,
}

impl RecordFacts {
    /// A store of this name, retention and number of units.
    pub fn new(store: &'static str, retention: Duration, units: usize) -> Self {
        Self { store, retention, units }
    }
}

/// Everything a store writes about one message and its key.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Entry {
    /// The key, if one was found.
    pub key: Option<KeyValue>,
    /// Identity and history of the message.
    pub trail: Trail,
    /// The message id, for people.
    pub message_id: Option<String>,
    /// SHA-256 of the payload.
    pub body: [u8; 32],
    /// SHA-256 of the declared conflict fields, if any were declared.
    pub conflict: Option<[u8; 32]>,
}

impl Entry {
    /// An entry for a key and a message's trail.
    pub fn new(key: Option<KeyValue>, trail: Trail, body: [u8; 32]) -> Self {
        Self { key, trail, message_id: None, body, conflict: None }
    }
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// Whose the key is.
    pub claim: Claim,
    /// The note of this very message, if there is one.
    pub note: Option<Note>,
}

impl Verdict {
    /// A verdict.
    pub fn new(claim: Claim, note: Option<Note>) -> Self {
        Self { claim, note }
    }
}

/// Whose a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// Ours: nobody has done it, and its done row is part of this unit.
    New,
    /// Done by a committed transaction.
    Done {
        /// The payload was the same.
        same_body: bool,
        /// The declared conflict fields differ.
        conflict: bool,
    },
    /// Claimed by a transaction that is still open.
    Busy,
}

/// What is noted about one message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Note {
    /// It failed for good.
    pub failed: Option<Failed>,
    /// Charged attempts while it waited in process.
    pub attempts: u32,
    /// Crash marks: runs that began and whose end was never written.
    pub marks: u32,
}

/// A final failure.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failed {
    /// Whose fault it was.
    pub class: Class,
    /// Why.
    pub reason: String,
    /// When, by the database's clock where it comes from the store.
    pub at: SystemTime,
}

impl Failed {
    /// A final failure, now.
    pub fn now(class: Class, reason: impl Into<String>) -> Self {
        Self { class, reason: reason.into(), at: SystemTime::now() }
    }
}

/// Which crash marks are taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// All: the message was settled by its own outcome.
    All,
    /// One: this delivery was put back without an outcome, and marks of dead processes
    /// must stay.
    One,
}
