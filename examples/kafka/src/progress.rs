//! Which partitions this process works on.
#![allow(clippy::print_stdout, reason = "the example talks to a person")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncemq::Message;
use shop_example::settings::TOPIC;

/// What was run since the last line.
#[derive(Debug, Default)]
struct Since {
    partitions: BTreeSet<i32>,
    orders: usize,
}

/// Prints a line for each second in which something was run.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<Since>>);

impl Progress {
    /// Begins to print.
    pub fn every_second() -> Self {
        let progress = Self::default();
        let shown = progress.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                shown.show();
            }
        });
        progress
    }

    /// A message is about to be run. Of the retry topics only the number is shown.
    pub fn note(&self, message: &Message) {
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        since.orders += 1;
        let origin = message.origin();
        if let Some(partition) = origin.partition.filter(|_| &*origin.topic == TOPIC) {
            since.partitions.insert(partition);
        }
    }

    fn show(&self) {
        let since = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if since.orders > 0 {
            let partitions: Vec<_> = since.partitions.iter().map(i32::to_string).collect();
            println!("{} orders of partitions {}", since.orders, partitions.join(" "));
        }
    }
}
