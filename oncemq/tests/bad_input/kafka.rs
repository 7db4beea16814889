//! Kafka, and none.

use libtest_mimic::Trial;
use oncemq::ErrorKind::{Access, Config, Connection, Topology as Missing};
use oncemq::{Consumer, Context, Failure, Message, Topology, broker};

use crate::{PASSWORD, closed_port, is_left_out, refused_soon, server_url, test};

pub(crate) fn tests(list: &mut Vec<Trial>) {
    list.push(test("a_port_where_no_kafka_listens_is_told", closed));
    list.push(test("a_kafka_address_that_does_not_exist_is_told", address));
    list.push(test("a_server_that_does_not_answer_kafka_is_told", silent));
    list.push(test("a_kafka_property_that_does_not_exist_is_named", property));
    let kafka = [
        test("kafka_a_topic_missing_in_verify_is_named", verify),
        test("kafka_a_topic_missing_in_declare_asks_for_its_partitions", declare),
    ];
    let without = is_left_out("kafka");
    list.extend(kafka.map(|test| test.with_ignored_flag(without)));
    let login = test("kafka_a_wrong_password_is_told", password);
    // A broker that somebody else runs may have no listener with a login.
    let without = without || std::env::var_os("ONCEMQ_KAFKA_SASL_URL").is_none();
    list.push(login.with_ignored_flag(without));
}

async fn ignore(_cx: Context, _message: Message) -> Result<(), Failure> {
    Ok(())
}

fn orders(url: &str) -> Consumer {
    Consumer::with_broker("bad-input", broker(url).unwrap()).topic("never-declared").unguarded(ignore)
}

/// Both a consumer and a publisher say so.
async fn unreachable(url: &str, words: &[&str]) {
    refused_soon(orders(url).run(), Connection, words).await;
    // Without a look at the topics.
    refused_soon(orders(url).topology(Topology::Trust).run(), Connection, words).await;
    let publisher = async { broker(url)?.publisher().await.map(drop) };
    refused_soon(publisher, Connection, words).await;
}

async fn closed() {
    let port = closed_port();
    let url = format!("kafka://u:{PASSWORD}@127.0.0.1:{port}?connect_timeout=2s");
    unreachable(&url, &[&format!("127.0.0.1:{port}"), "check address and port", "refused"]).await;
}

async fn address() {
    let url = format!("kafka://u:{PASSWORD}@no-such-host.invalid?connect_timeout=2s");
    unreachable(&url, &["no-such-host.invalid:9092", "check address and port", "resolve"]).await;
}

/// Somebody listens there and never says a word.
async fn silent() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = format!("kafka://u:{PASSWORD}@127.0.0.1:{port}?connect_timeout=1s");
    unreachable(&url, &[&format!("127.0.0.1:{port}"), "check address and port"]).await;
}

async fn property() {
    let url = |pair: &str| format!("kafka://u:{PASSWORD}@127.0.0.1:{}?{pair}", closed_port());
    refused_soon(orders(&url("fetch.colour=red")).run(), Config, &["fetch.colour"]).await;
    refused_soon(orders(&url("fetch.min.bytes=red")).run(), Config, &["fetch.min.bytes"]).await;
}

async fn verify() {
    let consumer = orders(&server_url("ONCEMQ_KAFKA_URL")).topology(Topology::Verify);
    refused_soon(consumer.run(), Missing, &["never-declared", "Topology::Declare"]).await;
}

async fn declare() {
    let consumer = orders(&server_url("ONCEMQ_KAFKA_URL"));
    refused_soon(consumer.run(), Missing, &["never-declared", "partitions(n)", "?partitions=n"]).await;
}

async fn password() {
    let url = server_url("ONCEMQ_KAFKA_SASL_URL");
    let (_, address) = url.rsplit_once('@').unwrap();
    let url = format!("kafka://oncemq:{PASSWORD}@{address}?connect_timeout=2s");
    let words = ["check user, password", address];
    refused_soon(orders(&url).run(), Access, &words).await;
    refused_soon(orders(&url).topology(Topology::Trust).run(), Access, &words).await;
    let publisher = async { broker(&url)?.publisher().await.map(drop) };
    refused_soon(publisher, Access, &words).await;
}
