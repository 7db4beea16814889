//! Our consumer against loops over the client alone, on the broker at `ONCEMQ_KAFKA_URL`.
//!
//! A topic of one partition is filled once; every round reads it from the beginning as a new
//! group. The loops take turns, first one and then the other in front, and what is printed is
//! the median over such pairs: a machine that gets slower or faster meanwhile meets both.

mod loops;
mod parallel;
mod topic;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use oncemq_benchmarks::{Figure, Floor, median};

use loops::{Loop, Work};
use topic::Topic;

/// No pair is begun later: a figure is there within 50 s.
const LATEST: Duration = Duration::from_secs(35);
/// An odd number of pairs has a middle.
const PAIRS: usize = 15;

/// Messages of a round whose handlers are ready at once. The end of every client takes a tenth
/// of a second, which would pass for a hundred thousand messages.
const READY: usize = 1_000_000;

/// Our rate over that of a task that receives from the client, stores the offset of each
/// message and has them committed by time: 200 bytes, a handler that is ready at once.
const RAW: [&str; 1] = ["kafka.raw.ratio"];
/// The same over a thread that polls the client and can await nothing.
const THREAD: [&str; 1] = ["kafka.thread.ratio"];
/// Our rate, in the order of keys, over that of a loop that handles one message after the
/// other, which is the order of the partition: handlers of 0 to 5 ms, 2,000 keys, so many in
/// flight.
const LANES_100: [&str; 1] = ["kafka.lanes100.ratio"];
const LANES_1024: [&str; 1] = ["kafka.lanes1024.ratio"];
/// The same over Confluent's Parallel Consumer 0.5.3.3, also in the order of keys. With 1,024
/// in flight it stalls now and then, so there is no such figure.
const PARALLEL: [&str; 1] = ["kafka.parallel100.ratio"];
/// Messages a second with an inbox on PostgreSQL and a handler that writes one row.
const INBOX: [&str; 1] = ["kafka.inbox.rate"];

fn main() -> ExitCode {
    oncemq_benchmarks::main(|printer| {
        for (names, other, floor) in [(&RAW, Loop::Raw, 0.9), (&THREAD, Loop::Thread, 0.0)] {
            printer.group(names, || {
                let ours = (Loop::Ours { in_flight: 1_000 }, READY);
                let value = ratio(READY, ours, (other, READY), Work::Ready)?;
                Ok(vec![Figure { name: names[0], value, unit: "x", floor: Floor::AtLeast(floor) }])
            })?;
        }
        for (names, in_flight, floor) in [(&LANES_100, 100, 15.0), (&LANES_1024, 1_024, 15.0)] {
            printer.group(names, || {
                let ours = (Loop::Ours { in_flight }, 20_000);
                let value = ratio(20_000, ours, (Loop::OneByOne, 250), Work::Sleeping)?;
                Ok(vec![Figure { name: names[0], value, unit: "x", floor: Floor::AtLeast(floor) }])
            })?;
        }
        if parallel::is_built() {
            printer.group(&PARALLEL, || {
                let ours = (Loop::Ours { in_flight: 100 }, 20_000);
                let value = ratio(20_000, ours, (Loop::Parallel { in_flight: 100 }, 20_000), Work::Sleeping)?;
                Ok(vec![Figure { name: PARALLEL[0], value, unit: "x", floor: Floor::AtLeast(1.0) }])
            })?;
        }
        printer.group(&INBOX, || {
            let value = rate(10_000, Loop::Inbox)?;
            Ok(vec![Figure { name: INBOX[0], value, unit: "messages/s", floor: Floor::AtLeast(0.0) }])
        })
    })
}

/// The rate of the first over that of the second, each over so many messages of a topic.
fn ratio(
    filled: usize,
    (first, first_count): (Loop, usize),
    (second, second_count): (Loop, usize),
    work: Work,
) -> Result<f64, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let started = Instant::now();
        let topic = Topic::filled(filled, work == Work::Sleeping).await?;
        // Neither the first connection nor the first allocations are what is measured.
        first.rate(&topic, first_count / 10, work).await?;
        let mut ratios = Vec::new();
        while ratios.len() < PAIRS && (ratios.is_empty() || started.elapsed() < LATEST) {
            let (one, other);
            if ratios.len() % 2 == 0 {
                one = first.rate(&topic, first_count, work).await?;
                other = second.rate(&topic, second_count, work).await?;
            } else {
                other = second.rate(&topic, second_count, work).await?;
                one = first.rate(&topic, first_count, work).await?;
            }
            ratios.push(one / other);
        }
        topic.remove().await?;
        Ok(median(ratios))
    })
}

fn rate(messages: usize, which: Loop) -> Result<f64, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let started = Instant::now();
        let topic = Topic::filled(messages, true).await?;
        let mut rates = Vec::new();
        while rates.len() < PAIRS && (rates.is_empty() || started.elapsed() < LATEST) {
            rates.push(which.rate(&topic, messages, Work::Ready).await?);
        }
        topic.remove().await?;
        Ok(median(rates))
    })
}
