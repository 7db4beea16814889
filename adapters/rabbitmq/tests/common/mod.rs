//! What the tests against a real server share.
#![allow(dead_code, unused_imports, reason = "every test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "shared by several binaries")]

pub mod management;
pub mod proxy;
pub mod raw;
pub mod suite;

use std::sync::Arc;

use libtest_mimic::Trial;
use oncemq_rabbitmq::RabbitBroker;
use oncemq_test_kit::Server;
pub use oncemq_test_kit::{
    Bare, Instance, Log, Running, is_long, logging, millis, secs, test, unique, until,
};

const RABBITMQ: Server = Server("rabbitmq");

/// Whether the server is left out by name.
pub fn is_left_out() -> bool {
    RABBITMQ.is_left_out()
}

/// Runs the tests against the shared server.
pub fn main(tests: Vec<Trial>) {
    RABBITMQ.main(tests);
}

/// Runs tests one after the other that share a server of their own, and may stop it.
pub fn main_alone(name: &str, long: bool, tests: impl FnOnce(Arc<Instance>) -> Vec<Trial>) {
    RABBITMQ.main_alone(name, long, tests);
}

/// A fresh server of a test's own.
pub fn instance(name: &str) -> Instance {
    Instance::start(RABBITMQ, name)
}

pub fn url() -> String {
    RABBITMQ.url()
}

pub fn broker() -> RabbitBroker {
    RabbitBroker::from_url(&url()).unwrap()
}

/// Runs rabbitmqctl and returns what it printed.
pub fn ctl(server: &Instance, arguments: &[&str]) -> String {
    server.tool("ONCEMQ_RABBITMQ_CTL", &[&["--quiet"], arguments].concat())
}
