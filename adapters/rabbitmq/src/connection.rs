//! Connections, and how long to wait before the next try.

mod greeting;

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use lapin::tcp::OwnedTLSConfig;
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{Connection, ConnectionProperties};
use oncemq_core::url::Time;
use oncemq_core::{Error, ErrorKind};

pub(crate) use greeting::major_version;

use crate::config::Config;
use crate::error;

/// Connects. `name` is shown in the broker's list of connections.
///
/// Reconnecting is our own business: the client's recovery hangs for ever on an error of a
/// channel, and gives no sign when delivery tags start anew.
pub(crate) async fn connect(config: &Config, name: &str) -> Result<Connection, Error> {
    let what = format!("cannot connect to RabbitMQ at {}", config.address());
    let runtime = lapin::runtime::default_runtime().map_err(|error| error::from_client(&what, &error))?;
    let properties = ConnectionProperties::default()
        .with_client_property("product".into(), "oncemq".into())
        .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into())
        .with_connection_name(name.into());
    let tls = tls(config).await?;
    let connecting = Connection::connect_uri_with_config(uri(config), properties, tls, runtime);
    match tokio::time::timeout(config.connect_timeout, connecting).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(explain(config, error::from_client(&what, &error))),
        Err(_) => {
            let text = format!("{what}: no answer within {}", Time(config.connect_timeout));
            Err(Error::new(ErrorKind::Connection, text))
        }
    }
}

/// Says what to do where the broker's own text does not.
fn explain(config: &Config, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Access => Error::new(
            ErrorKind::Access,
            format!(
                "{error}; check user {}, its password and its rights on virtual host {}",
                config.user, config.vhost
            ),
        ),
        ErrorKind::Config => Error::new(
            ErrorKind::Config,
            format!("{error}; create virtual host {} or name another one in the URL", config.vhost),
        ),
        ErrorKind::Connection => Error::new(
            ErrorKind::Connection,
            format!("{error}; check host, port and scheme of the URL and whether the broker runs"),
        ),
        _ => error,
    }
}

fn uri(config: &Config) -> AMQPUri {
    AMQPUri {
        scheme: if config.tls { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo { username: config.user.clone(), password: config.password.clone() },
            host: config.host.name.clone(),
            port: config.host.port,
        },
        vhost: config.vhost.clone(),
        query: AMQPQueryString { heartbeat: Some(config.heartbeat), ..AMQPQueryString::default() },
    }
}

#[cfg(feature = "tls")]
async fn tls(config: &Config) -> Result<OwnedTLSConfig, Error> {
    if !config.tls {
        return Ok(OwnedTLSConfig::default());
    }
    // Without a provider of its own choice the TLS library panics as soon as a second one is
    // compiled in. An application that installed one keeps it.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let Some(file) = &config.ca_file else { return Ok(OwnedTLSConfig::default()) };
    let chain = tokio::fs::read_to_string(file).await.map_err(|error| {
        let text = format!("cannot read the cacertfile {}", file.display());
        Error::with_source(ErrorKind::Config, text, error)
    })?;
    Ok(OwnedTLSConfig { identity: None, cert_chain: Some(chain) })
}

#[cfg(not(feature = "tls"))]
async fn tls(_config: &Config) -> Result<OwnedTLSConfig, Error> {
    Ok(OwnedTLSConfig::default())
}

/// Growing waits between tries, scattered so that a fleet does not come back as one.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    tries: u32,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(100);
    const MOST: Duration = Duration::from_secs(5);

    /// The wait before the next try: from half of a doubling step to the whole of it.
    pub(crate) fn next(&mut self) -> Duration {
        let step = Self::FIRST.saturating_mul(2u32.saturating_pow(self.tries)).min(Self::MOST);
        self.tries = self.tries.saturating_add(1);
        let random = RandomState::new().hash_one(self.tries) % 512;
        step / 2 + step / 1024 * u32::try_from(random).unwrap_or(0)
    }

    pub(crate) fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_are_scattered() {
        let mut backoff = Backoff::default();
        let first = backoff.next();
        assert!(first >= Duration::from_millis(50) && first <= Duration::from_millis(100), "{first:?}");
        let later: Vec<_> = (0..200).map(|_| backoff.next()).collect();
        assert!(later.iter().all(|wait| *wait <= Backoff::MOST && *wait >= first / 2));
        let tail = &later[10..];
        assert!(tail.iter().all(|wait| *wait >= Backoff::MOST / 2));
        assert!(tail.iter().max() > tail.iter().min());
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(100));
    }
}
