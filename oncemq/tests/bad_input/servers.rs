//! Real servers, and none.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use oncemq::ErrorKind::{Access, Config, Connection, Schema, Store, Topology as Missing};
use oncemq::{Consumer, Context, Failure, Inbox, Message, Topology, broker};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::{PASSWORD, closed_port, is_left_out, refused_soon, server_url, test};

pub(crate) fn tests(list: &mut Vec<Trial>) {
    list.push(test("a_port_where_no_broker_listens_is_told", rabbitmq_closed));
    list.push(test("a_port_where_no_database_listens_is_told", postgres_closed));
    let rabbitmq = [
        test("rabbitmq_a_wrong_password_is_told", rabbitmq_password),
        test("rabbitmq_a_missing_virtual_host_is_told", rabbitmq_host),
        test("rabbitmq_a_queue_missing_in_verify_is_named", rabbitmq_verify),
    ];
    let without = is_left_out("rabbitmq");
    list.extend(rabbitmq.map(|test| test.with_ignored_flag(without)));
    let postgres = [
        test("postgres_a_wrong_password_is_told", postgres_password),
        test("postgres_tables_missing_in_verify_are_named", postgres_verify),
    ];
    let without = is_left_out("postgres");
    list.extend(postgres.map(|test| test.with_ignored_flag(without)));
}

async fn ignore(_cx: Context, _message: Message) -> Result<(), Failure> {
    Ok(())
}

fn orders(url: &str) -> Consumer {
    Consumer::with_broker("bad-input", broker(url).unwrap()).topic("never-declared").unguarded(ignore)
}

async fn rabbitmq_closed() {
    let url = format!("amqp://u:{PASSWORD}@127.0.0.1:{}/v", closed_port());
    let words = ["127.0.0.1", "check host, port"];
    refused_soon(orders(&url).run(), Connection, &words).await;
    let publisher = async { broker(&url)?.publisher().await.map(drop) };
    refused_soon(publisher, Connection, &words).await;
}

async fn postgres_closed() {
    let url = format!("postgres://u:{PASSWORD}@127.0.0.1:{}/v", closed_port());
    let pool = PgPoolOptions::new().connect_lazy(&url).unwrap();
    let start = Instant::now();
    refused_soon(Box::pin(Inbox::open(pool)), Store, &["refused", "check host and port"]).await;
    // A pool alone would try again until its time is up.
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

/// The server's URL with another password and virtual host.
fn rabbitmq(password: Option<&str>, host: Option<&str>) -> String {
    let url = server_url("ONCEMQ_RABBITMQ_URL");
    let (user, rest) = url.strip_prefix("amqp://").unwrap().split_once(':').unwrap();
    let (own, rest) = rest.split_once('@').unwrap();
    let (address, own_host) = rest.split_once('/').unwrap_or((rest, "%2f"));
    format!("amqp://{user}:{}@{address}/{}", password.unwrap_or(own), host.unwrap_or(own_host))
}

async fn rabbitmq_password() {
    let words = ["check user", "password"];
    refused_soon(orders(&rabbitmq(Some(PASSWORD), None)).run(), Access, &words).await;
}

async fn rabbitmq_host() {
    let words = ["no-such-host", "create virtual host"];
    refused_soon(orders(&rabbitmq(None, Some("no-such-host"))).run(), Config, &words).await;
}

async fn rabbitmq_verify() {
    let url = rabbitmq(None, None);
    let consumer = orders(&url).topology(Topology::Verify);
    refused_soon(consumer.run(), Missing, &["never-declared", "Topology::Declare"]).await;
    let consumer = Consumer::with_broker("bad-input", broker(&url).unwrap())
        .topology(Topology::Verify)
        .topic("orders")
        .queue("no-such-queue")
        .unguarded(ignore);
    refused_soon(consumer.run(), Missing, &["no-such-queue", "queue"]).await;
}

async fn postgres_password() {
    let options: PgConnectOptions = server_url("ONCEMQ_POSTGRES_URL").parse().unwrap();
    let pool = PgPoolOptions::new().connect_lazy_with(options.password(PASSWORD));
    refused_soon(Box::pin(Inbox::open(pool)), Access, &["check user and password"]).await;
}

async fn postgres_verify() {
    let url = server_url("ONCEMQ_POSTGRES_URL");
    let pool = PgPoolOptions::new().acquire_timeout(Duration::from_secs(5)).connect(&url).await.unwrap();
    let opened = Inbox::builder(pool).schema("no_such_schema").topology(Topology::Verify).open();
    refused_soon(Box::pin(opened), Schema, &["missing", "schema()"]).await;
}
