//! Reading URLs. Errors name the part that is wrong, never the whole text: it contains the
//! password.

use std::time::Duration;

use oncemq_core::{Error, ErrorKind, url};

use super::{Config, QueueType, config};

const OPTIONS: &str = "heartbeat, connection_timeout, publish_timeout, consumer_timeout, queue_type, \
                       single_active, cacertfile";

pub(super) fn parse(text: &str) -> Result<Config, Error> {
    // Of a secret that was read from a file the end of the line is often still there.
    if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(config(
            "the RabbitMQ URL contains white space, perhaps an end of line; remove it, or write a space as %20",
        ));
    }
    let (scheme, rest) = text.split_once("://").ok_or_else(|| {
        config("the RabbitMQ URL has no scheme; write amqp://user:password@host:5672/vhost")
    })?;
    let tls = match scheme.to_ascii_lowercase().as_str() {
        "amqp" => false,
        "amqps" => true,
        other if other.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) => {
            let text = format!("{other}:// is not a scheme of RabbitMQ; write amqp:// or amqps://");
            return Err(Error::new(ErrorKind::Scheme, text));
        }
        _ => return Err(config("the RabbitMQ URL does not begin with amqp:// or amqps://")),
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, vhost) = match rest.split_once('/') {
        Some((authority, vhost)) => (authority, Some(vhost)),
        None => (rest, None),
    };
    // An @ after the host means that a / or ? in the password has cut it in two, and one of
    // the parts would be shown as host, virtual host or option.
    if vhost.is_some_and(|vhost| vhost.contains('@')) || query.contains('@') {
        return Err(config(
            "there is an @ after the host in the RabbitMQ URL; a / or ? in the password must be written as \
             %2f or %3f, an @ elsewhere as %40",
        ));
    }
    let mut parsed = Config { tls, port: if tls { 5671 } else { 5672 }, ..Config::default() };
    authority_into(authority, &mut parsed)?;
    if let Some(vhost) = vhost.filter(|vhost| !vhost.is_empty()) {
        if vhost.contains('/') {
            return Err(config("the virtual host in the RabbitMQ URL contains a /; write it as %2f"));
        }
        parsed.vhost = decode(vhost, "virtual host")?;
    }
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        option_into(name, &decode(value, name)?, &mut parsed)?;
    }
    parsed.check()?;
    Ok(parsed)
}

fn authority_into(authority: &str, parsed: &mut Config) -> Result<(), Error> {
    let place = match authority.rsplit_once('@') {
        Some((user, place)) => {
            let (user, password) = user.split_once(':').unwrap_or((user, ""));
            parsed.user = decode(user, "user name")?;
            parsed.password = decode(password, "password")?;
            place
        }
        None => authority,
    };
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest
                .split_once(']')
                .ok_or_else(|| config("the host in the RabbitMQ URL has a [ but no ]"))?;
            (host, port.strip_prefix(':'))
        }
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    if host.is_empty() {
        return Err(config("the RabbitMQ URL has no host; write amqp://user:password@host:5672/vhost"));
    }
    parsed.host = decode(host, "host")?;
    if let Some(port) = port {
        parsed.port = port.parse().ok().filter(|port| *port != 0).ok_or_else(|| {
            config(
                "the port in the RabbitMQ URL is not a number from 1 to 65535; a special character in the \
                 password must be written as %xx",
            )
        })?;
    }
    Ok(())
}

fn option_into(name: &str, value: &str, parsed: &mut Config) -> Result<(), Error> {
    let wrong = |want: &str| config(format!("{name}={value} in the RabbitMQ URL: {want}"));
    let time = || url::duration(value).ok_or_else(|| wrong("write a time such as 500ms, 30s or 30m"));
    match name {
        "heartbeat" => {
            parsed.heartbeat = value.parse().map_err(|_| wrong("write seconds from 0 to 65535"))?;
        }
        // Other clients give it in milliseconds without a unit.
        "connection_timeout" => {
            parsed.connect_timeout = match value.parse() {
                Ok(millis) => Duration::from_millis(millis),
                Err(_) => time()?,
            };
        }
        "publish_timeout" => parsed.publish_timeout = time()?,
        "consumer_timeout" => parsed.consumer_timeout = time()?,
        "queue_type" => {
            parsed.queue_type = match value {
                "quorum" => QueueType::Quorum,
                "classic" => QueueType::Classic,
                _ => return Err(wrong("write quorum or classic")),
            };
        }
        "single_active" => {
            parsed.single_active = value.parse().map_err(|_| wrong("write true or false"))?;
        }
        "cacertfile" => parsed.ca_file = Some(value.into()),
        _ => {
            let known = format!("unknown option {name:?} in the RabbitMQ URL; there are {OPTIONS}");
            return Err(config(known));
        }
    }
    Ok(())
}

/// `what` names the part in the error, since its text may be secret.
fn decode(text: &str, what: &str) -> Result<String, Error> {
    url::decode(text).ok_or_else(|| {
        config(format!("the {what} in the RabbitMQ URL is not percent-encoded UTF-8; write % itself as %25"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_read() {
        let read = parse("amqp://u%40x:p%2Fw@broker:1234/v%2fh?heartbeat=3&queue_type=classic").unwrap();
        assert_eq!((read.user.as_str(), read.password.as_str()), ("u@x", "p/w"));
        assert_eq!((read.host.as_str(), read.port, read.vhost.as_str()), ("broker", 1234, "v/h"));
        assert_eq!((read.heartbeat, read.queue_type), (3, QueueType::Classic));
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let read = parse("amqp://broker").unwrap();
        assert_eq!((read.port, read.vhost.as_str(), read.user.as_str()), (5672, "/", "guest"));
        assert_eq!(parse("amqp://broker/").unwrap().vhost, "/");
    }

    #[test]
    fn an_ipv6_host_keeps_its_colons() {
        let read = parse("amqp://[::1]:99").unwrap();
        assert_eq!((read.host.as_str(), read.port), ("::1", 99));
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
            ("broker", ErrorKind::Config, "scheme"),
            ("http://u:s3cret@b", ErrorKind::Scheme, "http"),
            ("u:s3cret@b://x", ErrorKind::Config, "amqp"),
            ("amqp://u:s3cret@", ErrorKind::Config, "host"),
            ("amqp://u:s3cret@b:0", ErrorKind::Config, "port"),
            ("amqp://u:s3cret@b:70000", ErrorKind::Config, "port"),
            ("amqp://u:s3cret#x/@b", ErrorKind::Config, "%2f"),
            ("amqp://u:s3cret%zz@b", ErrorKind::Config, "password"),
            ("amqp://u:12/s3cret@b", ErrorKind::Config, "%2f"),
            ("amqp://u:12?s3cret@b", ErrorKind::Config, "%3f"),
            ("amqp://u:12?heartbeat=s3cret@b", ErrorKind::Config, "%3f"),
            ("amqp://u:s3cret@b/a/b", ErrorKind::Config, "%2f"),
            ("amqp://u:s3cret@[::1", ErrorKind::Config, "]"),
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
