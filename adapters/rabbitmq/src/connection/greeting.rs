//! What a server says about itself before anybody logs in.
//!
//! The client keeps the greeting to itself, and no other answer tells servers apart that
//! take `x-delivery-limit = -1` for "no limit" from those that take it for "drop what is
//! returned once".

use std::io;

use futures_util::io::{AsyncReadExt, AsyncWriteExt};
use lapin::tcp::AMQPUriTcpExt;
use lapin::types::AMQPValue;
use lapin::types::parsing::parse_field_table;
use oncemq_core::url::Time;
use oncemq_core::{Error, ErrorKind};
use tokio::time::timeout;

use super::{tls, uri};
use crate::config::Config;

/// Asks for AMQP 0-9-1.
const HELLO: &[u8] = b"AMQP\0\0\x09\x01";
/// A greeting is a few hundred bytes.
const GREETING_MAX: u32 = 64 * 1024;

/// The first number of the server's version, if it says one.
///
/// # Errors
/// [`Connection`](ErrorKind::Connection) if there is no greeting.
pub(crate) async fn major_version(config: &Config) -> Result<Option<u32>, Error> {
    let what = format!("cannot read the greeting of RabbitMQ at {}", config.address());
    let tls = tls(config).await?;
    match timeout(config.connect_timeout, greeting(config, &tls)).await {
        Ok(Ok(greeting)) => Ok(version_of(&greeting)),
        Ok(Err(error)) => Err(Error::with_source(ErrorKind::Connection, what, error)),
        Err(_) => {
            let text = format!("{what}: no answer within {}", Time(config.connect_timeout));
            Err(Error::new(ErrorKind::Connection, text))
        }
    }
}

/// The first method that the server sends, without its frame.
async fn greeting(config: &Config, tls: &lapin::tcp::OwnedTLSConfig) -> io::Result<Vec<u8>> {
    let runtime = lapin::runtime::default_runtime().map_err(io::Error::other)?;
    let mut stream = uri(config).connect_with_config_async(tls.as_ref(), &runtime).await?;
    stream.write_all(HELLO).await?;
    stream.flush().await?;
    // Type, channel and size of the frame.
    let mut head = [0; 7];
    stream.read_exact(&mut head).await?;
    let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
    if head[0] != 1 || size > GREETING_MAX {
        return Err(io::Error::other("it does not speak AMQP 0-9-1"));
    }
    let mut method = vec![0; usize::try_from(size).unwrap_or(0)];
    stream.read_exact(&mut method).await?;
    // The server only notes that somebody left.
    let _ = stream.close().await;
    Ok(method)
}

fn version_of(method: &[u8]) -> Option<u32> {
    // Class, number and protocol version stand before the properties.
    let (_, properties) = parse_field_table(method.get(6..)?).ok()?;
    match properties.inner().get("version")? {
        AMQPValue::LongString(version) => {
            let version = std::str::from_utf8(version.as_bytes()).ok()?;
            version.split('.').next()?.parse().ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(version: &[u8]) -> Vec<u8> {
        let mut entry = vec![7];
        entry.extend(b"versionS");
        entry.extend(u32::try_from(version.len()).unwrap().to_be_bytes());
        entry.extend(version);
        let mut method = vec![0, 10, 0, 10, 0, 9];
        method.extend(u32::try_from(entry.len()).unwrap().to_be_bytes());
        method.extend(entry);
        method
    }

    #[test]
    fn the_first_number_is_read() {
        assert_eq!(version_of(&greeting(b"3.10.8")), Some(3));
        assert_eq!(version_of(&greeting(b"4.1.0-rc.1")), Some(4));
        assert_eq!(version_of(&greeting(b"nightly")), None);
        assert_eq!(version_of(&greeting(b"4.0")[..20]), None);
        assert_eq!(version_of(b""), None);
    }
}
