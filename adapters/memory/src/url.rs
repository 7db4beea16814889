//! A broker by URL: `memory://name?mode=log&partitions=4`.

use oncemq_core::{Error, ErrorKind};

use crate::broker::MemoryBroker;
use crate::config::Mode;

const PARTITIONS: u32 = 4;

impl MemoryBroker {
    /// The broker of the process that the URL names. `mode` is `queue` (the default) or
    /// `log`; a log has 4 `partitions` unless the URL says otherwise. The same name is the
    /// same broker wherever in the process it is connected.
    ///
    /// # Errors
    /// [`Config`](ErrorKind::Config) for anything else in the URL, and for a name that
    /// exists in another mode.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let (scheme, rest) = url.split_once("://").ok_or_else(usage)?;
        if !scheme.eq_ignore_ascii_case("memory") {
            return Err(usage());
        }
        let (name, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut log = false;
        let mut partitions = None;
        for option in query.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("mode", "queue")) => log = false,
                Some(("mode", "log")) => log = true,
                Some(("partitions", n)) => {
                    partitions = Some(n.parse::<u16>().ok().filter(|n| *n > 0).ok_or_else(usage)?);
                }
                _ => return Err(usage()),
            }
        }
        let mode = match (log, partitions) {
            (true, partitions) => Mode::Log { partitions: partitions.map_or(PARTITIONS, u32::from) },
            (false, None) => Mode::Queue,
            (false, Some(_)) => return Err(usage()),
        };
        Self::named(name.trim_end_matches('/'), mode)
    }
}

/// The text is not repeated: it may be another broker's, with its password.
fn usage() -> Error {
    Error::new(
        ErrorKind::Config,
        "this is not the URL of a memory broker; write memory://name or memory://name?mode=log&partitions=4",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_mode_and_partitions() {
        let mode = |url| MemoryBroker::from_url(url).map(|broker| broker.mode());
        assert_eq!(mode("memory://url-a").unwrap(), Mode::Queue);
        assert_eq!(mode("memory://url-b?mode=log").unwrap(), Mode::Log { partitions: 4 });
        assert_eq!(mode("memory://url-c?mode=log&partitions=2").unwrap(), Mode::Log { partitions: 2 });
        for wrong in [
            "memory:url",
            "memory://x?mode=stream",
            "memory://x?partitions=2",
            "memory://x?mode=log&partitions=0",
            "memory://x?size=1",
        ] {
            let error = mode(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{wrong}");
            assert!(error.to_string().contains("memory://name"), "{error}");
        }
    }
}
