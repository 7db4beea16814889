//! The suite of every broker, on a server of its own that is restarted. Takes minutes.

mod common;

use std::process::ExitCode;

use common::suite::Suite;
use oncemq_rabbitmq::QueueType;

fn main() -> ExitCode {
    if common::is_left_out() || !common::is_long() {
        return oncemq_core::conformance::main(Suite::none());
    }
    oncemq_core::conformance::main(Suite::own(QueueType::Quorum, "rabbit-restart"))
}
