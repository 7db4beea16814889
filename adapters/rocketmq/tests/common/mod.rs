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

/// Runs the broker's own tool and returns what it printed.
pub fn admin(arguments: &[&str]) -> String {
    let output = std::process::Command::new(ROCKETMQ.get("ADMIN")).args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}
