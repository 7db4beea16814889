//! The suite of every broker, in queue mode.

#[path = "common/harness.rs"]
mod harness;

use std::process::ExitCode;

use oncemq_memory::MemoryBroker;

fn main() -> ExitCode {
    oncemq_core::conformance::main(harness::Memory(MemoryBroker::queue()))
}
