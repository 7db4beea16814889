//! One order arrives three times too often. Then ten thousand orders do.
//!
//! Runs in one process: the broker is in memory, the database is an SQLite file that is
//! removed at the end. The exit status is 1 if a single point is wrong.

#![allow(clippy::print_stdout, reason = "the example talks to a person")]

mod database;
mod incident;
mod ledger;
mod load;
mod orders;

use std::process::ExitCode;

/// An error of any part of the example.
type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<ExitCode, Error> {
    let folder = tempfile::tempdir()?;
    println!("1. The incident: one order, 100 points, and three reasons to arrive again\n");
    let prevented = incident::replay(folder.path()).await?;
    println!("\n2. Ten thousand orders: 30 % duplicates, 1 % unknown users, 2 % failing at first\n");
    let clean = load::run(folder.path()).await?;
    if prevented && clean {
        println!("\nEvery order counted once.");
        return Ok(ExitCode::SUCCESS);
    }
    println!("\nThe ledger is wrong.");
    Ok(ExitCode::FAILURE)
}
