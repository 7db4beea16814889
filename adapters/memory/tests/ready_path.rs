//! What a message costs on the ready path: no allocation from receive to settle.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::alloc::System;
use std::future::poll_fn;
use std::time::Instant;

use common::{open, publisher};
use oncemq_core::{Ack, Event, Message, Source};
use oncemq_memory::MemoryBroker;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const MESSAGES: usize = 20_000;

/// Takes and accepts so many messages, 256 at a time, with one waiting poll in between.
async fn work(source: &mut Box<dyn Source>, events: &mut Vec<Event>, messages: usize) {
    let mut done = 0;
    while done < messages {
        poll_fn(|cx| source.poll_events(cx, 256.min(messages - done), events)).await.unwrap();
        for event in events.drain(..) {
            if let Event::Delivery(delivery) = event {
                delivery.ack(Ack::Accept);
                done += 1;
            }
        }
    }
}

#[tokio::test]
async fn receive_to_accept_allocates_nothing_after_warm_up() {
    for broker in [MemoryBroker::queue(), MemoryBroker::log(4)] {
        let mut source = open(&broker, "points", &["orders"]).await;
        let publisher = publisher(&broker).await;
        for n in 0..2 * MESSAGES {
            publisher.publish("orders", &Message::new("x").with_id(n.to_string())).await.unwrap();
        }
        let mut events = Vec::with_capacity(512);
        work(&mut source, &mut events, MESSAGES).await;
        let region = Region::new(ALLOCATOR);
        let begin = Instant::now();
        work(&mut source, &mut events, MESSAGES).await;
        let nanos = begin.elapsed().as_nanos() / MESSAGES as u128;
        let change = region.change();
        println!("{:?}: {nanos} ns a message in this build", broker.mode());
        assert_eq!((change.allocations, change.reallocations), (0, 0), "{:?}", broker.mode());
        assert_eq!(broker.left("points"), 0);
    }
}
