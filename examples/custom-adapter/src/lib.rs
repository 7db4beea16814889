//! A broker adapter as an outsider writes it: a folder of files, on `oncemq-core` alone.
//!
//! ```text
//! <root>/<topic>/<queue>/<due>-<unique>        a message, delivered once its time has come
//! <root>/<topic>/<queue>/<due>-<unique>.again  one that was delivered and is not settled
//! <root>/<topic>/<queue>/dead/                 dead letters
//! <root>/<topic>/<queue>/.lock                 held by the one process that consumes the queue
//! ```
//!
//! A process that dies leaves nothing to mend: what it had out is where it was, and flagged.
//! The disk's work is done in place, since a disk answers soon; what waits for a server belongs
//! into a task.

mod broker;
mod files;
mod source;

pub use broker::FolderBroker;

/// The broker's name in origins and plans.
const NAME: &str = "folder";
/// The folder of dead letters in that of a queue.
const DEAD: &str = "dead";
/// Due at once.
const NOW: std::time::Duration = std::time::Duration::ZERO;

fn failed(error: std::io::Error) -> oncemq_core::Error {
    let text = "the folder cannot be used; see to its disk and rights, then start again";
    oncemq_core::Error::with_source(oncemq_core::ErrorKind::Connection, text, error)
}
