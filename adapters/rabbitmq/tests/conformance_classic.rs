//! The suite of every broker, on classic queues.

mod common;

use std::process::ExitCode;

use common::suite::Suite;
use oncemq_rabbitmq::QueueType;

fn main() -> ExitCode {
    oncemq_core::conformance::main(Suite::shared(QueueType::Classic))
}
