//! Reading URLs. Errors name the part that is wrong, never the whole text: it contains the
//! password.

use oncemq_core::{Error, ErrorKind, url};

use super::{Config, Start, config};

const OPTIONS: &str = "publish_timeout, connect_timeout, revoke_timeout, commit_interval, commit_each, start, \
                       partitions, replication, and every property of librdkafka (they have a dot)";
const FORM: &str = "kafka://host:9092 or kafka://user:password@host1:9092,host2:9092";

pub(super) fn parse(text: &str) -> Result<Config, Error> {
    let (scheme, rest) =
        text.split_once("://").ok_or_else(|| config(format!("the Kafka URL has no scheme; write {FORM}")))?;
    let tls = match scheme.to_ascii_lowercase().as_str() {
        "kafka" => false,
        "kafkas" => true,
        other if other.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) => {
            let text = format!("{other}:// is not a scheme of Kafka; write kafka:// or kafkas://");
            return Err(Error::new(ErrorKind::Scheme, text));
        }
        _ => return Err(config("the Kafka URL does not begin with kafka:// or kafkas://")),
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    // An @ after the hosts means that a / or ? in the password has cut it in two, and one of
    // the parts would be shown.
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if path.contains('@') || query.contains('@') {
        return Err(config(
            "there is an @ after the hosts in the Kafka URL; a / or ? in the password must be written as %2f or \
             %3f, an @ elsewhere as %40",
        ));
    }
    if !path.is_empty() {
        return Err(config(format!(
            "the Kafka URL has something after the hosts; topics are named by the consumer: write {FORM}"
        )));
    }
    let mut parsed = Config { tls, ..Config::default() };
    authority_into(authority, &mut parsed)?;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        option_into(name, decode(value, name)?, &mut parsed)?;
    }
    parsed.check()?;
    Ok(parsed)
}

fn authority_into(authority: &str, parsed: &mut Config) -> Result<(), Error> {
    let places = match authority.rsplit_once('@') {
        Some((login, places)) => {
            let (user, password) = login.split_once(':').ok_or_else(|| {
                config(format!("the Kafka URL names a user without a password; write {FORM}"))
            })?;
            parsed.login = Some((decode(user, "user name")?, decode(password, "password")?));
            places
        }
        None => authority,
    };
    let mut brokers = Vec::new();
    for place in places.split(',') {
        brokers.push(broker(&decode(place, "host")?)?);
    }
    parsed.brokers = brokers.join(",");
    Ok(())
}

/// `host:port` with the port filled in.
fn broker(place: &str) -> Result<String, Error> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, port) =
                rest.split_once(']').ok_or_else(|| config("a host in the Kafka URL has a [ but no ]"))?;
            (format!("[{host}]"), port.strip_prefix(':'))
        }
        None => match place.split_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (place.to_owned(), None),
        },
    };
    if host.is_empty() {
        return Err(config(format!("the Kafka URL has no host; write {FORM}")));
    }
    let port = match port {
        None => 9092,
        Some(port) => port.parse::<u16>().ok().filter(|port| *port != 0).ok_or_else(|| {
            config(
                "a port in the Kafka URL is not a number from 1 to 65535; a special character in the password must \
                 be written as %xx",
            )
        })?,
    };
    Ok(format!("{host}:{port}"))
}

fn option_into(name: &str, value: String, parsed: &mut Config) -> Result<(), Error> {
    let wrong = |want: &str| config(format!("{name}={value} in the Kafka URL: {want}"));
    let time = || url::duration(&value).ok_or_else(|| wrong("write a time such as 500ms, 30s or 5m"));
    let number = || value.parse::<i32>().map_err(|_| wrong("write a number"));
    match name {
        "publish_timeout" => parsed.publish_timeout = time()?,
        "connect_timeout" => parsed.connect_timeout = time()?,
        "revoke_timeout" => parsed.revoke_timeout = time()?,
        "commit_interval" => parsed.commit_interval = time()?,
        "commit_each" => parsed.commit_each = value.parse().map_err(|_| wrong("write true or false"))?,
        "partitions" => parsed.partitions = Some(number()?),
        "replication" => parsed.replication = Some(number()?),
        "start" => {
            parsed.start = match value.as_str() {
                "earliest" => Start::Earliest,
                "latest" => Start::Latest,
                _ => return Err(wrong("write earliest or latest")),
            };
        }
        _ if name.contains('.') || name == "acks" || name == "partitioner" || name == "debug" => {
            parsed.options.insert(name.to_owned(), value);
        }
        _ => return Err(config(format!("unknown option {name:?} in the Kafka URL; there are {OPTIONS}"))),
    }
    Ok(())
}

/// `what` names the part in the error, since its text may be secret.
fn decode(text: &str, what: &str) -> Result<String, Error> {
    url::decode(text).ok_or_else(|| {
        config(format!("the {what} in the Kafka URL is not percent-encoded UTF-8; write % itself as %25"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_read() {
        let read =
            parse("kafka://u%40x:p%2Fw@a:1,b?start=latest&partitions=3&session.timeout.ms=6000").unwrap();
        assert_eq!(read.login, Some(("u@x".to_owned(), "p/w".to_owned())));
        assert_eq!(
            (read.brokers.as_str(), read.start, read.partitions),
            ("a:1,b:9092", Start::Latest, Some(3))
        );
        assert_eq!(read.options.get("session.timeout.ms").map(String::as_str), Some("6000"));
        assert_eq!(parse("kafka://[::1]:19092").unwrap().brokers, "[::1]:19092");
    }

    #[test]
    fn kf4_properties_that_break_the_promise_are_refused_by_name() {
        for name in ["enable.auto.commit=true", "enable.auto.offset.store=true", "acks=1", "group.id=x"] {
            let error = parse(&format!("kafka://a?{name}")).unwrap_err();
            let name = name.split('=').next().unwrap_or_default();
            assert!(error.kind() == ErrorKind::Config && error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn a_wrong_url_is_an_error_without_its_password() {
        for url in [
            "kafka://user:secret@",
            "kafka://user:secret@a:x",
            "kafka://user:secret@a:0",
            "kafka://user:sec%ret@a",
            "kafka://user:secret@a/topic",
            "kafka://user:se/cret@a",
            "kafka://user:se?cret@a",
            "kafka://user:secret@a?start=now",
            "kafka://user:secret@a?retries=3",
            "kafka://user:secret@a?partitions=0",
            "nats://user:secret@a",
        ] {
            let error = parse(url).unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(!text.contains("secret") && !text.contains("cret"), "{url}: {text}");
        }
        let read = parse("kafka://user:secret@a?ssl.key.password=hidden").unwrap();
        let text = format!("{read:?}");
        assert!(!text.contains("secret") && !text.contains("hidden"), "{text}");
    }
}
