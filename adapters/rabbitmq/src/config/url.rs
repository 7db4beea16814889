//! Reading URLs.

use std::time::Duration;

use oncemq_core::{Error, url};

use super::{Config, QueueType, config};

const OPTIONS: &str = "heartbeat, connection_timeout, publish_timeout, consumer_timeout, queue_type, \
                       single_active, cacertfile";
const FORM: url::Form = url::Form {
    broker: "RabbitMQ",
    scheme: "amqp",
    tls_scheme: "amqps",
    port: 5672,
    tls_port: 5671,
    login: ("user name", "password"),
    path: Some("virtual host"),
    example: "amqp://user:password@host:5672/vhost",
};

pub(super) fn parse(text: &str) -> Result<Config, Error> {
    let parts = FORM.read(text)?;
    let [host] = parts.hosts.as_slice() else {
        return Err(config(
            "the RabbitMQ URL names several hosts; write the one of a load balancer, or of one node",
        ));
    };
    let mut parsed = Config { tls: parts.tls, host: host.clone(), ..Config::default() };
    if let Some((user, password)) = parts.login {
        (parsed.user, parsed.password) = (user, password.unwrap_or_default());
    }
    if let Some(vhost) = parts.path {
        parsed.vhost = vhost;
    }
    for (name, value) in parts.options {
        option_into(&name, &value, &mut parsed)?;
    }
    parsed.check()?;
    Ok(parsed)
}

fn option_into(name: &str, value: &str, parsed: &mut Config) -> Result<(), Error> {
    let wrong = |want: &str| FORM.wrong_value(name, value, want);
    match name {
        "heartbeat" => {
            parsed.heartbeat = value.parse().map_err(|_| wrong("write seconds from 0 to 65535"))?;
        }
        // Other clients give it in milliseconds without a unit.
        "connection_timeout" => {
            parsed.connect_timeout = match value.parse() {
                Ok(millis) => Duration::from_millis(millis),
                Err(_) => FORM.time(name, value)?,
            };
        }
        "publish_timeout" => parsed.publish_timeout = FORM.time(name, value)?,
        "consumer_timeout" => parsed.consumer_timeout = FORM.time(name, value)?,
        "queue_type" => {
            parsed.queue_type = match value {
                "quorum" => QueueType::Quorum,
                "classic" => QueueType::Classic,
                _ => return Err(wrong("write quorum or classic")),
            };
        }
        "single_active" => parsed.single_active = FORM.flag(name, value)?,
        "cacertfile" => parsed.ca_file = Some(value.into()),
        _ => return Err(FORM.unknown(name, OPTIONS)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use oncemq_core::ErrorKind;

    use super::*;

    #[test]
    fn every_part_is_read() {
        let read = parse("amqp://u%40x:p%2Fw@broker:1234/v%2fh?heartbeat=3&queue_type=classic").unwrap();
        assert_eq!((read.user.as_str(), read.password.as_str()), ("u@x", "p/w"));
        assert_eq!((read.address().as_str(), read.vhost.as_str()), ("broker:1234", "v/h"));
        assert_eq!((read.heartbeat, read.queue_type), (3, QueueType::Classic));
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let read = parse("amqp://broker").unwrap();
        assert_eq!((read.host.port, read.vhost.as_str(), read.user.as_str()), (5672, "/", "guest"));
        assert_eq!(parse("amqp://broker/").unwrap().vhost, "/");
    }

    #[test]
    fn an_ipv6_host_keeps_its_colons() {
        let read = parse("amqp://[::1]:99").unwrap();
        assert_eq!((read.host.name.as_str(), read.host.port), ("::1", 99));
        assert_eq!(read.address(), "[::1]:99");
    }

    #[test]
    fn times_have_units() {
        let read =
            parse("amqp://b?consumer_timeout=3s&publish_timeout=500ms&connection_timeout=250").unwrap();
        assert_eq!(read.consumer_timeout, Duration::from_secs(3));
        assert_eq!(read.publish_timeout, Duration::from_millis(500));
        assert_eq!(read.connect_timeout, Duration::from_millis(250));
    }

    #[test]
    fn every_mistake_is_one_line_without_the_password() {
        for (url, kind, word) in [
            ("http://u:s3cret@b", ErrorKind::Scheme, "http"),
            ("amqp://u:s3cret%zz@b", ErrorKind::Config, "password"),
            ("amqp://u:s3cret@b/a/b", ErrorKind::Config, "%2f"),
            ("amqp://u:s3cret@a,b", ErrorKind::Config, "several hosts"),
            ("amqp://u:s3cret@a?heartbeat=3&heartbeat=4", ErrorKind::Config, "twice"),
            ("amqp://u:s3cret@b?colour=red", ErrorKind::Config, "colour"),
            ("amqp://u:s3cret@b?queue_type=stream", ErrorKind::Config, "quorum"),
            ("amqp://u:s3cret@b?consumer_timeout=-1s", ErrorKind::Config, "consumer_timeout"),
            ("amqp://u:s3cret@b?consumer_timeout=0s", ErrorKind::Config, "zero"),
            ("amqp://u:s3cret@b?heartbeat=x", ErrorKind::Config, "heartbeat"),
            ("amqp://u:s3cret@b?cacertfile=/ca", ErrorKind::Config, "amqps"),
        ] {
            let error = parse(url).unwrap_err();
            let text = format!("{error} {error:?}");
            assert_eq!(error.kind(), kind, "{url}: {text}");
            assert!(text.contains(word), "{url}: {text}");
            assert!(!text.contains("s3cret") && !text.contains('\n'), "{url}: {text}");
        }
    }

    #[test]
    fn debug_shows_no_password() {
        let read = parse("amqp://u:s3cret@b").unwrap();
        assert!(!format!("{read:?}").contains("s3cret"));
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn amqps_without_its_feature_names_the_feature() {
        let error = parse("amqps://u:s3cret@b").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Scheme);
        assert!(error.to_string().contains("`tls`"), "{error}");
    }
}
