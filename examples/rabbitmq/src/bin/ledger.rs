//! Is every point right? Asked of the database. Exit status 1 if not.
//!
//! Run it when the producer is done and the consumer idle: what is still on its way counts
//! as lost.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> Result<ExitCode, shop_example::Error> {
    shop_example::ledger::check().await
}
