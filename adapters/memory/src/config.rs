//! What kind of broker it is.

use oncemq_core::{Error, ErrorKind};

/// The most partitions of a topic.
const PARTITIONS_MAX: u32 = 4096;

/// How the broker keeps messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// A queue for each consumer and topic. A message is forgotten when it is done.
    #[default]
    Queue,
    /// A log in partitions. A group remembers an offset for each.
    Log {
        /// Partitions of each topic, at least 1.
        partitions: u32,
    },
}

impl Mode {
    pub(crate) fn check(self) -> Result<(), Error> {
        match self {
            Mode::Log { partitions } if partitions == 0 || partitions > PARTITIONS_MAX => {
                let text = format!("a log of {partitions} partitions; set 1 to {PARTITIONS_MAX}");
                Err(Error::new(ErrorKind::Config, text))
            }
            _ => Ok(()),
        }
    }
}
