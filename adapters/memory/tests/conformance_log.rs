//! The suite of every broker, in log mode.

#[path = "common/harness.rs"]
mod harness;

use std::process::ExitCode;

use oncemq_memory::MemoryBroker;

fn main() -> ExitCode {
    oncemq_core::conformance::main(harness::Memory(MemoryBroker::log(3)))
}
