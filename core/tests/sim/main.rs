#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

//! The consumer in a simulated world: crashes at every step, lost replies, deadlocks,
//! outages, duplicates. Each history is named by a seed; `SIM_SEED=n` replays one, and
//! `SIM_SEEDS=n` says how many are tried.

mod every_step;
mod histories;
mod keys;
mod ledger;
mod orders;
mod outage;
mod replay;
