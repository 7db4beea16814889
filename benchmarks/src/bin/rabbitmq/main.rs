//! Our consumer against loops over the client alone, on the broker at `ONCEMQ_RABBITMQ_URL`.
//!
//! Each loop empties a queue that was filled before: persistent messages of 200 bytes, a
//! prefetch of 1000, a handler that is ready at once. The loops take turns, first one and
//! then the other in front, and what is printed is the median over such pairs: a machine
//! that gets slower or faster meanwhile meets both.

mod loops;
mod queue;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use oncemq_benchmarks::{Figure, Floor, median};

use loops::{Emptied, Loop};
use queue::{Kind, Queues};

/// Messages out at once, for every loop.
const PREFETCH: u16 = 1000;
/// What a queue is filled with. After some more the broker was seen to pause for half a second
/// to collect garbage, now in the one loop and now in the other.
const MESSAGES: usize = 5000;
/// An odd number of pairs has a middle.
const PAIRS: usize = 31;
/// No pair is begun later: a figure is there within 50 s.
const LATEST: Duration = Duration::from_secs(38);

/// Our rate over that of a loop on the client that acknowledges as we do, many in one frame.
/// And the processor time of this process that a message costs with us, less what it costs
/// with that loop.
const RAW: [&str; 2] = ["rabbitmq.raw.ratio", "rabbitmq.cpu.us"];
/// Our rate over that of the loop everyone writes, which acknowledges each message and waits
/// until that is written, on a classic queue.
const NAIVE_CLASSIC: [&str; 1] = ["rabbitmq.naive.classic.ratio"];
/// The same on a quorum queue.
const NAIVE_QUORUM: [&str; 1] = ["rabbitmq.naive.quorum.ratio"];

fn main() -> ExitCode {
    oncemq_benchmarks::main(|printer| {
        printer.group(&RAW, || {
            let pairs = pairs(Kind::Classic, Loop::Raw)?;
            let cpu = median(pairs.iter().map(|(ours, raw)| ours.cpu_us - raw.cpu_us).collect());
            Ok(vec![
                ratio(RAW[0], &pairs, 0.9),
                Figure { name: RAW[1], value: cpu, unit: "us/message", floor: Floor::AtMost(2.0) },
            ])
        })?;
        printer.group(&NAIVE_CLASSIC, || {
            let pairs = pairs(Kind::Classic, Loop::Naive)?;
            Ok(vec![ratio(NAIVE_CLASSIC[0], &pairs, 2.0)])
        })?;
        printer.group(&NAIVE_QUORUM, || {
            let pairs = pairs(Kind::Quorum, Loop::Naive)?;
            Ok(vec![ratio(NAIVE_QUORUM[0], &pairs, 2.5)])
        })
    })
}

fn ratio(name: &'static str, pairs: &[(Emptied, Emptied)], floor: f64) -> Figure {
    let value = median(pairs.iter().map(|(ours, other)| ours.rate / other.rate).collect());
    Figure { name, value, unit: "x", floor: Floor::AtLeast(floor) }
}

/// Our loop and another, pair by pair.
fn pairs(kind: Kind, other: Loop) -> Result<Vec<(Emptied, Emptied)>, Box<dyn Error>> {
    let url = std::env::var("ONCEMQ_RABBITMQ_URL")
        .map_err(|_| "ONCEMQ_RABBITMQ_URL names no broker; scripts/bench starts one and sets it")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let started = Instant::now();
        let queues = Queues::open(&url, kind).await?;
        // Neither the first connection nor the first allocations are what is measured.
        for which in [Loop::Ours, other] {
            round(&queues, &url, which).await?;
        }
        let mut pairs = Vec::new();
        while pairs.len() < PAIRS && (pairs.is_empty() || started.elapsed() < LATEST) {
            let ours_first = pairs.len() % 2 == 0;
            let (first, second) = if ours_first { (Loop::Ours, other) } else { (other, Loop::Ours) };
            let first = round(&queues, &url, first).await?;
            let second = round(&queues, &url, second).await?;
            pairs.push(if ours_first { (first, second) } else { (second, first) });
        }
        queues.close().await?;
        Ok(pairs)
    })
}

async fn round(queues: &Queues, url: &str, which: Loop) -> Result<Emptied, Box<dyn Error>> {
    let queue = queues.fill(MESSAGES).await?;
    let emptied = which.empty(url, &queue, MESSAGES).await?;
    // What was not acknowledged is back in the queue now.
    queues.remove_empty(&queue).await.map_err(|error| format!("{which:?}: {error}"))?;
    Ok(emptied)
}
