//! The suite of every broker.

mod common;

use std::process::ExitCode;

fn main() -> ExitCode {
    oncemq_core::conformance::main(common::suite::Suite::shared())
}
