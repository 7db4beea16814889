//! Reading URLs. Errors name the part that is wrong, never the whole text: it contains the
//! password.

use std::time::Duration;

use oncemq_core::{Error, ErrorKind, url};

use super::{Config, Start, config};

const OPTIONS: &str = "publish_timeout, connect_timeout, revoke_timeout, commit_interval, commit_each, start, queues, \
                       delay_levels, tls_ca and model";
const FORM: &str = "rocketmq://host:9876 or rocketmq://key:secret@host1:9876,host2:9876";

pub(super) fn parse(text: &str) -> Result<Config, Error> {
    let (scheme, rest) = text
        .split_once("://")
        .ok_or_else(|| config(format!("the RocketMQ URL has no scheme; write {FORM}")))?;
    let tls = match scheme.to_ascii_lowercase().as_str() {
        "rocketmq" => false,
        "rocketmqs" => true,
        other if other.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) => {
            let text = format!("{other}:// is not a scheme of RocketMQ; write rocketmq:// or rocketmqs://");
            return Err(Error::new(ErrorKind::Scheme, text));
        }
        _ => return Err(config("the RocketMQ URL does not begin with rocketmq:// or rocketmqs://")),
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    // An @ after the hosts means that a / or ? in the password has cut it in two, and one of
    // the parts would be shown.
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if path.contains('@') || query.contains('@') {
        return Err(config(
            "there is an @ after the hosts in the RocketMQ URL; a / or ? in the password must be written as %2f or \
             %3f, an @ elsewhere as %40",
        ));
    }
    if !path.is_empty() {
        return Err(config(format!(
            "the RocketMQ URL has something after the hosts; topics are named by the consumer: write {FORM}"
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
                config(format!("the RocketMQ URL names an access key without a secret key; write {FORM}"))
            })?;
            parsed.login = Some((decode(user, "access key")?, decode(password, "password")?));
            places
        }
        None => authority,
    };
    let mut servers = Vec::new();
    for place in places.split(',') {
        servers.push(server(&decode(place, "host")?)?);
    }
    parsed.name_servers = servers;
    Ok(())
}

/// `host:port` with the port filled in.
fn server(place: &str) -> Result<String, Error> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, port) =
                rest.split_once(']').ok_or_else(|| config("a host in the RocketMQ URL has a [ but no ]"))?;
            (format!("[{host}]"), port.strip_prefix(':'))
        }
        None => match place.split_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (place.to_owned(), None),
        },
    };
    if host.is_empty() {
        return Err(config(format!("the RocketMQ URL has no host; write {FORM}")));
    }
    if host.chars().any(|c| c.is_whitespace() || c.is_control() || !c.is_ascii()) {
        return Err(config(
            "a host in the RocketMQ URL has a blank or a character that is not ASCII; an international name must be \
             written in its form with xn--",
        ));
    }
    let port = match port {
        None => 9876,
        Some(port) => port.parse::<u16>().ok().filter(|port| *port != 0).ok_or_else(|| {
            config(
                "a port in the RocketMQ URL is not a number from 1 to 65535; a special character in the password must \
                 be written as %xx",
            )
        })?,
    };
    Ok(format!("{host}:{port}"))
}

fn option_into(name: &str, value: String, parsed: &mut Config) -> Result<(), Error> {
    let wrong = |want: &str| config(format!("{name}={value} in the RocketMQ URL: {want}"));
    let time = || url::duration(&value).ok_or_else(|| wrong("write a time such as 500ms, 30s or 5m"));
    match name {
        "publish_timeout" => parsed.publish_timeout = time()?,
        "connect_timeout" => parsed.connect_timeout = time()?,
        "revoke_timeout" => parsed.revoke_timeout = time()?,
        "commit_interval" => parsed.commit_interval = time()?,
        "commit_each" => parsed.commit_each = value.parse().map_err(|_| wrong("write true or false"))?,
        "queues" => parsed.queues = Some(value.parse().map_err(|_| wrong("write a number"))?),
        "delay_levels" => {
            parsed.delay_levels = Some(levels(&value).ok_or_else(|| wrong("write \"1s 5s 10s\""))?)
        }
        "tls_ca" => parsed.tls_ca = Some(value),
        "model" => match value.as_str() {
            "clustering" => {}
            "broadcasting" => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "model=broadcasting in the RocketMQ URL: a broadcast has no retry and no dead letter on the broker, \
                     and forgets what fails; give each member a consumer name of its own instead",
                ));
            }
            _ => return Err(wrong("there is only clustering")),
        },
        "start" => {
            parsed.start = match value.as_str() {
                "earliest" => Start::Earliest,
                "latest" => Start::Latest,
                _ => return Err(wrong("write earliest or latest")),
            };
        }
        _ => return Err(config(format!("unknown option {name:?} in the RocketMQ URL; there are {OPTIONS}"))),
    }
    Ok(())
}

/// The broker's own form: times with spaces between, which a URL may also write as `+`.
pub(crate) fn levels(text: &str) -> Option<Vec<Duration>> {
    let words = text.split([' ', '+']).filter(|word| !word.is_empty());
    let levels: Vec<Duration> = words.map(url::duration).collect::<Option<_>>()?;
    (!levels.is_empty()).then_some(levels)
}

/// `what` names the part in the error, since its text may be secret.
fn decode(text: &str, what: &str) -> Result<String, Error> {
    url::decode(text).ok_or_else(|| {
        config(format!("the {what} in the RocketMQ URL is not percent-encoded UTF-8; write % itself as %25"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "acl")]
    #[test]
    fn a_key_and_its_secret_are_read() {
        let read = parse("rocketmq://k%40x:p%2Fw@a:1,b?start=latest&queues=3").unwrap();
        assert_eq!(read.login, Some(("k@x".to_owned(), "p/w".to_owned())));
    }

    #[test]
    fn every_part_is_read() {
        let read = parse("rocketmq://a:1,b?start=latest&queues=3&delay_levels=1s+5s+2h").unwrap();
        assert_eq!((read.start, read.queues), (Start::Latest, Some(3)));
        assert_eq!(read.name_servers, ["a:1", "b:9876"]);
        let seconds: Vec<_> = read.delay_levels.unwrap().iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [1, 5, 7200]);
        assert_eq!(parse("rocketmq://[::1]:19876").unwrap().name_servers, ["[::1]:19876"]);
    }

    #[test]
    fn rm6_broadcasting_is_refused() {
        let error = parse("rocketmq://a?model=broadcasting").unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unsupported && error.to_string().contains("dead letter"),
            "{error}"
        );
        assert!(parse("rocketmq://a?model=clustering").is_ok());
    }

    #[test]
    fn a_wrong_url_is_an_error_without_its_secret() {
        for url in [
            "rocketmq://key:secret@",
            "rocketmq://key:secret@a:x",
            "rocketmq://key:secret@a:0",
            "rocketmq://key:sec%ret@a",
            "rocketmq://key:secret@a/topic",
            "rocketmq://key:se/cret@a",
            "rocketmq://key:se?cret@a",
            "rocketmq://key:secret@a?start=now",
            "rocketmq://key:secret@a?retries=3",
            "rocketmq://key:secret@a?queues=0",
            "rocketmq://key:secret@a?delay_levels=soon",
            "nats://key:secret@a",
        ] {
            let error = parse(url).unwrap_err();
            let text = format!("{error} {error:?}");
            // The form that it shows is no secret.
            let text = text.replace(FORM, "");
            assert!(!text.contains("secret") && !text.contains("cret@"), "{url}: {text}");
        }
        let kept = Config { login: Some(("key".to_owned(), "hidden".to_owned())), ..Config::default() };
        assert!(!format!("{kept:?}").contains("hidden"));
    }
}
