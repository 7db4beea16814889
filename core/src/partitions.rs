//! What the sources of log brokers have in common, for authors of adapters.
//!
//! ```text
//! Answers ─► Assignments ─► Progress ─► the offset to commit
//!    ▲
//!    └── Copies: rungs and dead letters, confirmed first
//! ```
//!
//! - [`Answers`]: what became of deliveries, from any thread, until the source applies it.
//! - [`Copies`]: what deliveries settle with; messages that are stored again become answers once
//!   they are confirmed.
//! - [`Assignments`]: the partitions of a consumer; who an answer is for, and whose turn it is.
//! - [`Progress`]: one partition, from what is handed out to what may be committed.
//!
//! Each can be used without the others. How a broker fetches, commits and takes partitions
//! away is the adapter's own.

mod answers;
mod assignments;
mod copies;
mod progress;

pub use answers::{Answer, Answers};
pub use assignments::{Assignment, Assignments};
pub use copies::{Copier, Copies, CopyJob, Purpose, Stored};
pub use progress::{Point, Progress};
