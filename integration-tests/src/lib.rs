//! A service that can be killed, and what the tests around it need: servers, stores,
//! processes and the ledger that says whether a guarantee held.
//!
//! The service is a process of its own (`src/bin/service.rs`), since only a real SIGKILL
//! shows what a crash leaves behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

pub mod database;
pub mod event;
pub mod kafka;
pub mod ledger;
pub mod outside;
pub mod process;
pub mod proxy;
pub mod rabbit;
pub mod rocketmq;
pub mod scene;
pub mod service;
pub mod suite;
