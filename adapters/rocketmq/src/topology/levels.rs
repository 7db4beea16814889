//! The delays that brokers know.

use std::time::Duration;

use oncemq_core::Error;
use oncemq_core::url::Time;

use crate::cluster::Cluster;
use crate::config::{Config, config, levels};

/// The broker's own levels, unless its operator set others.
const LEVELS: &str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";

/// The delays that a broker knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Levels(Vec<Duration>);

impl Levels {
    #[cfg(test)]
    pub(crate) fn of(levels: Vec<Duration>) -> Self {
        Self(levels)
    }

    /// Asks the brokers; if none says it, the URL does. Returns whether they are only supposed.
    pub(crate) async fn find(cluster: &Cluster, config: &Config) -> Result<(Self, bool), Error> {
        let mut found: Option<Vec<Duration>> = None;
        for (broker, _) in cluster.masters().await? {
            let text = cluster.setting(&broker, "messageDelayLevel").await;
            let Some(levels) = text.as_deref().and_then(levels) else { continue };
            if found.as_ref().is_some_and(|known| *known != levels) {
                return Err(config_levels());
            }
            found = Some(levels);
        }
        let said = config.delay_levels.as_ref();
        if found.as_ref().is_some_and(|found| said.is_some_and(|said| said != found)) {
            return Err(config_said());
        }
        let supposed = found.is_none() && said.is_none();
        let levels = found.or_else(|| said.cloned()).or_else(|| levels(LEVELS)).unwrap_or_default();
        Ok((Self(levels), supposed))
    }

    /// The level that waits for at least so long, and how long it waits.
    pub(crate) fn at_least(&self, after: Duration) -> Option<(usize, Duration)> {
        let fits = self.0.iter().enumerate().filter(|(_, delay)| **delay >= after);
        fits.min_by_key(|(_, delay)| **delay).map(|(place, delay)| (place + 1, *delay))
    }

    /// The level of each rung of a subscription, with its delay.
    pub(crate) fn of_rungs(
        &self,
        topic: &str,
        rungs: &[Duration],
    ) -> Result<Vec<(Duration, Duration)>, Error> {
        let longest = self.0.iter().max().copied().unwrap_or_default();
        let level = |rung: &Duration| {
            let (_, actual) = self.at_least(*rung).ok_or_else(|| {
                config(format!(
                    "the retry delay {} of topic {topic} is longer than the longest delay level of RocketMQ, \
                     {}; use a shorter one, or more of them",
                    Time(*rung),
                    Time(longest)
                ))
            })?;
            Ok((*rung, actual))
        };
        rungs.iter().map(level).collect()
    }
}

fn config_levels() -> Error {
    config(
        "the brokers of this RocketMQ cluster have different delay levels (messageDelayLevel); set the same on all",
    )
}

fn config_said() -> Error {
    config("the delay_levels of the URL are not those of the brokers (messageDelayLevel); leave them out")
}

#[cfg(test)]
mod tests {
    use oncemq_core::ErrorKind;

    use super::*;
    use crate::client::Answer;
    use crate::client::fake::{Fake, answer};

    #[tokio::test]
    async fn levels_of_the_url_serve_where_the_broker_tells_none_and_may_not_differ() {
        let find = async |told: Option<&'static str>, said: Option<&str>| {
            let fake = Fake::new(move |_| match told {
                Some(told) => {
                    let body = Some(format!("brokerRole=x\nmessageDelayLevel={told}\n").into());
                    Ok(Answer { body, ..Answer::default() })
                }
                None => answer(1),
            });
            let config = Config { delay_levels: said.and_then(levels), ..Config::default() };
            Levels::find(&fake.cluster(config.clone()), &config).await
        };
        let of = |text| Levels(levels(text).unwrap());
        assert_eq!(find(Some("1s 2s"), None).await.unwrap(), (of("1s 2s"), false));
        assert_eq!(find(Some("1s 2s"), Some("1s 2s")).await.unwrap(), (of("1s 2s"), false));
        assert_eq!(find(None, Some("1s 2s")).await.unwrap(), (of("1s 2s"), false));
        assert_eq!(find(None, None).await.unwrap(), (of(LEVELS), true));
        let error = find(Some("1s 2s"), Some("1s 3s")).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains("delay_levels"), "{error}");
    }

    #[test]
    fn rm7_rungs_are_rounded_up_to_levels() {
        let known = Levels(levels(LEVELS).unwrap());
        let secs = Duration::from_secs;
        assert_eq!(known.at_least(secs(45)), Some((5, secs(60))));
        assert_eq!(known.at_least(Duration::from_millis(1)), Some((1, secs(1))));
        assert_eq!(known.at_least(secs(7200)), Some((18, secs(7200))));
        let error = known.of_rungs("orders", &[secs(5), secs(7201)]).unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains(", 2h;"), "{error}");
    }
}
