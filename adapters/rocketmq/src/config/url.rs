//! Reading URLs.

use std::time::Duration;

use oncemq_core::{Error, ErrorKind, url};

use super::{Config, Start};

const OPTIONS: &str = "publish_timeout, connect_timeout, revoke_timeout, commit_interval, commit_each, start, queues, \
                       delay_levels, tls_ca and model";
const FORM: url::Form = url::Form {
    broker: "RocketMQ",
    scheme: "rocketmq",
    tls_scheme: "rocketmqs",
    port: 9876,
    tls_port: 9876,
    login: ("access key", "secret key"),
    path: None,
    example: "rocketmq://host:9876 or rocketmq://key:secret@host1:9876,host2:9876",
};

pub(super) fn parse(text: &str) -> Result<Config, Error> {
    let parts = FORM.read(text)?;
    let login = FORM.full_login(&parts)?;
    let name_servers = parts.addresses();
    let mut parsed = Config { tls: parts.tls, login, name_servers, ..Config::default() };
    for (name, value) in parts.options {
        option_into(&name, value, &mut parsed)?;
    }
    parsed.check()?;
    Ok(parsed)
}

fn option_into(name: &str, value: String, parsed: &mut Config) -> Result<(), Error> {
    let time = || FORM.time(name, &value);
    let wrong = |want: &str| FORM.wrong_value(name, &value, want);
    match name {
        "publish_timeout" => parsed.publish_timeout = time()?,
        "connect_timeout" => parsed.connect_timeout = time()?,
        "revoke_timeout" => parsed.revoke_timeout = time()?,
        "commit_interval" => parsed.commit_interval = time()?,
        "commit_each" => parsed.commit_each = FORM.flag(name, &value)?,
        "queues" => parsed.queues = Some(value.parse().map_err(|_| wrong("write a number"))?),
        "delay_levels" => {
            parsed.delay_levels = Some(levels(&value).ok_or_else(|| wrong("write 1s+5s+10s"))?);
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
        _ => return Err(FORM.unknown(name, OPTIONS)),
    }
    Ok(())
}

/// The broker's own form: times with spaces between, which a URL may also write as `+`.
pub(crate) fn levels(text: &str) -> Option<Vec<Duration>> {
    let words = text.split([' ', '+']).filter(|word| !word.is_empty());
    let levels: Vec<Duration> = words.map(url::duration).collect::<Option<_>>()?;
    (!levels.is_empty()).then_some(levels)
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
            "rocketmq://key:secret@a/topic",
            "rocketmq://key:secret@a?start=now",
            "rocketmq://key:secret@a?retries=3",
            "rocketmq://key:secret@a?queues=0",
            "rocketmq://key:secret@a?queues=4&queues=5",
            "rocketmq://secret@a",
            "rocketmq://key:secret@a?delay_levels=soon",
            "nats://key:secret@a",
        ] {
            let error = parse(url).unwrap_err();
            let text = format!("{error} {error:?}");
            // The form that it shows is no secret.
            let text = text.replace(FORM.example, "").replace("secret key", "");
            assert!(!text.contains("secret"), "{url}: {text}");
        }
        let kept = Config { login: Some(("key".to_owned(), "hidden".to_owned())), ..Config::default() };
        assert!(!format!("{kept:?}").contains("hidden"));
    }
}
