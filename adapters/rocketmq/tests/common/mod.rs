//! What the tests against a real broker share.
#![allow(dead_code, reason = "every test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "shared by several binaries")]

pub mod suite;

use oncemq_rocketmq::RocketmqBroker;
use oncemq_test_kit::Server;

pub const ROCKETMQ: Server = Server("rocketmq");

pub fn broker() -> RocketmqBroker {
    with("")
}

/// The cluster, with these options.
pub fn with(options: &str) -> RocketmqBroker {
    RocketmqBroker::from_url(&format!("{}?{options}", ROCKETMQ.url())).unwrap().queues(1)
}

/// Runs the broker's own tool and returns what it printed. It starts a virtual machine and
/// then waits three seconds at most: on a busy machine it fails once in a while by itself.
pub fn admin(arguments: &[&str]) -> String {
    admin_with(&ROCKETMQ.get("ADMIN"), arguments)
}

/// The same, with this tool.
pub fn admin_with(tool: &str, arguments: &[&str]) -> String {
    let mut text = String::new();
    for _ in 0..5 {
        let output = std::process::Command::new(tool).args(arguments).output().unwrap();
        text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !text.contains("Exception") && text.lines().any(|line| !line.contains(" WARN ")) {
            break;
        }
    }
    text
}

/// The committed offset of each queue of a topic, in order of their numbers.
pub fn committed(group: &str, topic: &str) -> Vec<i64> {
    committed_with(&ROCKETMQ.get("ADMIN"), group, topic)
}

/// The same, asked with this tool.
pub fn committed_with(tool: &str, group: &str, topic: &str) -> Vec<i64> {
    let text = admin_with(tool, &["consumerProgress", "-g", group, "-t", topic]);
    let offset = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        if words.first() != Some(&topic) {
            return None;
        }
        Some((words[2].parse::<i32>().ok()?, words[4].parse().ok()?))
    };
    let mut found: Vec<(i32, i64)> = text.lines().filter_map(offset).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, offset)| offset).collect()
}

pub fn ladder(text: &str) -> oncemq_core::RetryPolicy {
    text.parse().unwrap()
}

pub async fn publish(topic: &str, bodies: impl IntoIterator<Item = String>) {
    let publisher = oncemq_core::Broker::publisher(&broker()).await.unwrap();
    for body in bodies {
        publisher.publish(topic, &oncemq_core::Message::new(body.clone()).with_id(body)).await.unwrap();
    }
    publisher.close().await.unwrap();
}

pub fn numbers(n: u32) -> impl Iterator<Item = String> {
    (0..n).map(|n| n.to_string())
}

/// Counts the runs of each body.
pub fn counts(log: &oncemq_test_kit::Log) -> std::collections::BTreeMap<String, usize> {
    let mut counts = std::collections::BTreeMap::new();
    log.bodies().into_iter().for_each(|body| *counts.entry(body).or_default() += 1);
    counts
}
