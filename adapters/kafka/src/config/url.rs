//! Reading URLs.

use oncemq_core::{Error, url};

use super::{Config, Start};

const OPTIONS: &str = "publish_timeout, connect_timeout, revoke_timeout, commit_interval, commit_each, start, \
                       partitions, replication, and every property of librdkafka (they have a dot)";
const FORM: url::Form = url::Form {
    broker: "Kafka",
    scheme: "kafka",
    tls_scheme: "kafkas",
    port: 9092,
    tls_port: 9092,
    login: ("user name", "password"),
    path: None,
    example: "kafka://host:9092 or kafka://user:password@host1:9092,host2:9092",
};

pub(super) fn parse(text: &str) -> Result<Config, Error> {
    let parts = FORM.read(text)?;
    let login = FORM.full_login(&parts)?;
    let brokers = parts.addresses().join(",");
    let mut parsed = Config { tls: parts.tls, login, brokers, ..Config::default() };
    for (name, value) in parts.options {
        option_into(&name, value, &mut parsed)?;
    }
    parsed.check()?;
    Ok(parsed)
}

fn option_into(name: &str, value: String, parsed: &mut Config) -> Result<(), Error> {
    let time = || FORM.time(name, &value);
    let number = || value.parse::<i32>().map_err(|_| FORM.wrong_value(name, &value, "write a number"));
    match name {
        "publish_timeout" => parsed.publish_timeout = time()?,
        "connect_timeout" => parsed.connect_timeout = time()?,
        "revoke_timeout" => parsed.revoke_timeout = time()?,
        "commit_interval" => parsed.commit_interval = time()?,
        "commit_each" => parsed.commit_each = FORM.flag(name, &value)?,
        "partitions" => parsed.partitions = Some(number()?),
        "replication" => parsed.replication = Some(number()?),
        "start" => {
            parsed.start = match value.as_str() {
                "earliest" => Start::Earliest,
                "latest" => Start::Latest,
                _ => return Err(FORM.wrong_value(name, &value, "write earliest or latest")),
            };
        }
        _ if name.contains('.') || name == "acks" || name == "partitioner" || name == "debug" => {
            parsed.options.insert(name.to_owned(), value);
        }
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
            "kafka://user:secret@a/topic",
            "kafka://user:secret@a?start=now",
            "kafka://user:secret@a?retries=3",
            "kafka://user:secret@a?partitions=0",
            "kafka://user:secret@a?partitions=4&partitions=5",
            "kafka://secret@a",
            "nats://user:secret@a",
        ] {
            let error = parse(url).unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(!text.contains("secret"), "{url}: {text}");
        }
        let read = parse("kafka://user:secret@a?ssl.key.password=hidden").unwrap();
        let text = format!("{read:?}");
        assert!(!text.contains("secret") && !text.contains("hidden"), "{text}");
    }
}
