//! From a URL to a broker.

use std::future::Future;
use std::sync::Arc;

use oncemq_core::{Broker, Consumer, Error, ErrorKind};

/// The schemes of the brokers that exist, and the feature each one needs.
const SCHEMES: [(&str, &str); 7] = [
    ("memory", "memory"),
    ("amqp", "rabbitmq"),
    ("amqps", "rabbitmq-tls"),
    ("kafka", "kafka"),
    ("kafkas", "kafka-tls"),
    ("rocketmq", "rocketmq"),
    ("rocketmqs", "rocketmq-tls"),
];
/// How to write a URL, in errors.
const FORMS: &str =
    "amqp://user:password@host:5672/vhost, kafka://host:9092, rocketmq://host:9876 or memory://name";

/// The broker that a URL names: `memory://`, `amqp://`, `amqps://`, `kafka://`, `kafkas://`,
/// `rocketmq://` or `rocketmqs://`.
///
/// Nothing is connected yet: [`Consumer::run`] and [`Broker::publisher`] do that.
///
/// # Errors
/// [`Scheme`](ErrorKind::Scheme) for a scheme that is unknown or whose feature is off,
/// [`Config`](ErrorKind::Config) for a URL that the adapter cannot use. Neither text
/// contains a password.
pub fn broker(url: &str) -> Result<Arc<dyn Broker>, Error> {
    let Some((scheme, _)) = url.split_once("://") else {
        return Err(Error::new(ErrorKind::Config, format!("the broker URL has no scheme; write {FORMS}")));
    };
    // Anything else may be a password that lost its place.
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    if scheme.is_empty() || !scheme.chars().all(is_scheme) {
        return Err(Error::new(
            ErrorKind::Config,
            format!("the broker URL does not begin with a scheme; write {FORMS}"),
        ));
    }
    match scheme.to_ascii_lowercase().as_str() {
        #[cfg(feature = "memory")]
        "memory" => Ok(Arc::new(oncemq_memory::MemoryBroker::from_url(url)?)),
        #[cfg(feature = "rabbitmq")]
        "amqp" => Ok(Arc::new(oncemq_rabbitmq::RabbitBroker::from_url(url)?)),
        #[cfg(feature = "rabbitmq-tls")]
        "amqps" => Ok(Arc::new(oncemq_rabbitmq::RabbitBroker::from_url(url)?)),
        #[cfg(feature = "kafka")]
        "kafka" => Ok(Arc::new(oncemq_kafka::KafkaBroker::from_url(url)?)),
        #[cfg(feature = "kafka-tls")]
        "kafkas" => Ok(Arc::new(oncemq_kafka::KafkaBroker::from_url(url)?)),
        #[cfg(feature = "rocketmq")]
        "rocketmq" => Ok(Arc::new(oncemq_rocketmq::RocketmqBroker::from_url(url)?)),
        #[cfg(feature = "rocketmq-tls")]
        "rocketmqs" => Ok(Arc::new(oncemq_rocketmq::RocketmqBroker::from_url(url)?)),
        scheme => Err(no_adapter(scheme)),
    }
}

fn no_adapter(scheme: &str) -> Error {
    let text = match SCHEMES.iter().find(|(known, _)| *known == scheme) {
        Some((_, feature)) => {
            format!("{scheme}:// needs the Cargo feature `{feature}` of oncemq: add it to the dependency")
        }
        None => {
            let known: Vec<_> = SCHEMES.iter().map(|(known, _)| format!("{known}://")).collect();
            format!("there is no adapter for {scheme:?}; the schemes are {}", known.join(", "))
        }
    };
    Error::new(ErrorKind::Scheme, text)
}

/// `Consumer::connect`, for applications that choose the broker by a URL.
pub trait Connect: Sized {
    /// A consumer of this permanent name on the broker that the URL names.
    ///
    /// # Errors
    /// As [`broker`].
    fn connect(name: &str, url: &str) -> impl Future<Output = Result<Self, Error>> + Send;
}

impl Connect for Consumer {
    async fn connect(name: &str, url: &str) -> Result<Self, Error> {
        Ok(Consumer::with_broker(name, broker(url)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_scheme_names_the_known_ones() {
        let error = broker("nats://user:secret@host").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Scheme);
        for scheme in SCHEMES {
            assert!(error.to_string().contains(&format!("{}://", scheme.0)), "{error}");
        }
        assert!(!format!("{error} {error:?}").contains("secret"));
    }

    #[test]
    fn a_url_without_a_scheme_shows_how_to_write_one() {
        let error = broker("localhost:5672").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("amqp://user"), "{error}");
    }

    #[cfg(not(feature = "rabbitmq"))]
    #[test]
    fn a_scheme_whose_feature_is_off_names_the_feature() {
        let error = broker("amqp://guest:secret@localhost").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Scheme);
        assert!(error.to_string().contains("`rabbitmq`"), "{error}");
    }

    #[cfg(not(feature = "kafka"))]
    #[test]
    fn kafka_without_its_feature_names_the_feature() {
        let error = broker("kafka://u:secret@localhost").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Scheme);
        assert!(error.to_string().contains("`kafka`"), "{error}");
        assert!(!format!("{error} {error:?}").contains("secret"));
    }

    #[cfg(not(feature = "kafka-tls"))]
    #[test]
    fn kafka_over_tls_without_its_feature_names_the_feature() {
        let error = broker("kafkas://u:secret@localhost").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Scheme);
        assert!(error.to_string().contains("`kafka-tls`"), "{error}");
        assert!(!format!("{error} {error:?}").contains("secret"));
    }

    #[cfg(not(feature = "rocketmq"))]
    #[test]
    fn rocketmq_without_its_feature_names_the_feature() {
        for (url, feature) in [("rocketmq://h:9876", "`rocketmq`"), ("rocketmqs://h:9876", "`rocketmq-tls`")]
        {
            let error = broker(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Scheme);
            assert!(error.to_string().contains(feature), "{error}");
        }
    }

    #[cfg(feature = "memory")]
    #[tokio::test]
    async fn connecting_is_a_name_and_a_url() {
        assert!(Consumer::connect("points", "memory://connect-test").await.is_ok());
    }
}
