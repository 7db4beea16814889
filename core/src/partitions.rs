//! What the sources of log brokers have in common, for authors of adapters.
//!
//! ```text
//! Answers ─► Assignments ─► Progress ─► the offset to commit
//! ```
//!
//! - [`Answers`]: what became of deliveries, from any thread, until the source applies it.
//! - [`Assignments`]: the partitions of a consumer; who an answer is for, and whose turn it is.
//! - [`Progress`]: one partition, from what is handed out to what may be committed.
//!
//! Each can be used without the others. How a broker fetches, commits and takes partitions
//! away is the adapter's own.

mod answers;
mod assignments;
mod progress;

pub use answers::{Answer, Answers};
pub use assignments::{Assignment, Assignments};
pub use progress::{Point, Progress};
