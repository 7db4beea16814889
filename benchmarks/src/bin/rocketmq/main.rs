//! Our consumer against the client's lite pull consumer and its push consumer, on the cluster
//! at `ONCEMQ_ROCKETMQ_URL`.
//!
//! A topic of four queues is filled once; every round reads it from the beginning as a new
//! group. The loops take turns, first one and then the other in front, and what is printed is
//! the median over such pairs.
#![recursion_limit = "256"]

mod loops;
mod topic;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use oncemq_benchmarks::{Figure, Floor, median};

use loops::{Loop, Work};
use topic::Topic;

/// No pair is begun later: a figure is there within two minutes.
const LATEST: Duration = Duration::from_secs(80);
/// An odd number of pairs has a middle.
const PAIRS: usize = 9;

/// Our rate over that of a loop that polls the lite pull consumer and commits by time: 200
/// bytes, a handler that is ready at once.
const RAW: [&str; 1] = ["rocketmq.raw.ratio"];
/// The same over the client's push consumer, whose listeners get as many threads as they use.
const PUSH: [&str; 1] = ["rocketmq.push.ratio"];
/// The rate of handlers of 100 ms, 200 in flight, over that of 200 which never wait.
const IN_FLIGHT: [&str; 1] = ["rocketmq.inflight200.ratio"];

fn main() -> ExitCode {
    oncemq_benchmarks::main(|printer| {
        for (names, other, floor) in [(&RAW, Loop::Raw, 0.9), (&PUSH, Loop::Push, 0.0)] {
            printer.group(names, || {
                let value = ratio(100_000, other)?;
                Ok(vec![Figure { name: names[0], value, unit: "x", floor: Floor::AtLeast(floor) }])
            })?;
        }
        printer.group(&IN_FLIGHT, || {
            let value = rate(6_000, Loop::Ours { in_flight: 200 }, Work::Sleeping)?;
            let ideal = 200.0 / loops::SLEEP.as_secs_f64();
            let value = value / ideal;
            Ok(vec![Figure { name: IN_FLIGHT[0], value, unit: "x", floor: Floor::AtLeast(0.8) }])
        })
    })
}

fn ratio(messages: usize, other: Loop) -> Result<f64, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let (topic, started) = (Topic::filled(messages).await?, Instant::now());
        let ours = Loop::Ours { in_flight: 1_000 };
        // Neither the first connection nor the first allocations are what is measured.
        ours.rate(&topic, messages / 10, Work::Ready).await?;
        let mut ratios = Vec::new();
        while ratios.len() < PAIRS && (ratios.is_empty() || started.elapsed() < LATEST) {
            let (one, two);
            if ratios.len() % 2 == 0 {
                one = ours.rate(&topic, messages, Work::Ready).await?;
                two = other.rate(&topic, messages, Work::Ready).await?;
            } else {
                two = other.rate(&topic, messages, Work::Ready).await?;
                one = ours.rate(&topic, messages, Work::Ready).await?;
            }
            ratios.push(one / two);
        }
        Ok(median(ratios))
    })
}

fn rate(messages: usize, which: Loop, work: Work) -> Result<f64, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let (topic, started) = (Topic::filled(messages).await?, Instant::now());
        let mut rates = Vec::new();
        while rates.len() < PAIRS && (rates.is_empty() || started.elapsed() < LATEST / 2) {
            rates.push(which.rate(&topic, messages, work).await?);
        }
        Ok(median(rates))
    })
}
