//! A broker adapter as an outsider writes it: a folder of files, on `oncemq-core` alone.
//!
//! ```text
//! <root>/topics/<topic>/<queue>         this queue keeps the topic
//! <root>/queues/<queue>/<due>-<unique>  a message, delivered once its time has come
//! <root>/queues/<queue>/taken/          what a consumer has out, under the same names
//! <root>/queues/<queue>/dead/           dead letters
//! <root>/queues/<queue>/.lock           held by the one process that consumes the queue
//! ```

mod broker;
mod files;
mod source;

pub use broker::FolderBroker;

/// The broker's name in origins and plans.
const NAME: &str = "folder";

fn failed(error: std::io::Error) -> oncemq_core::Error {
    let text = "the folder cannot be used; see to its disk and rights, then start again";
    oncemq_core::Error::with_source(oncemq_core::ErrorKind::Connection, text, error)
}
