//! The inbox on a real PostgreSQL, whose address is in `ONCEMQ_POSTGRES_URL`.
//!
//! Without it every test fails, unless `ONCEMQ_WITHOUT` names postgres: then they are listed
//! as ignored.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::large_futures,
    reason = "a test program: what goes wrong ends the test"
)]

#[path = "../common/mod.rs"]
mod common;
mod proxy;
mod server;
mod support;

mod broken;
mod claims;
mod decisions;
mod handlers;
mod load;
mod rights;
mod schema;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = libtest_mimic::Arguments::from_args();
    let mut cases = Vec::new();
    cases.extend(claims::cases());
    cases.extend(decisions::cases());
    cases.extend(handlers::cases());
    cases.extend(broken::cases());
    cases.extend(schema::cases());
    cases.extend(rights::cases());
    cases.extend(load::cases());
    let trials = cases.into_iter().map(support::Case::trial).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
