//! Confluent's Parallel Consumer, in a process of its own.

use std::path::PathBuf;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::loops::Failed;
use crate::topic::Topic;

/// Where scripts/bench puts the compiled program of benchmarks/parallel-consumer.
const VARIABLE: &str = "ONCEMQ_PARALLEL_CONSUMER";

const LIMIT: Duration = Duration::from_secs(60);

/// Whether it is there.
pub(crate) fn is_built() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Messages a second, as `Loop.java` measures it: a virtual machine that starts does not count.
pub(crate) async fn rate(
    topic: &Topic,
    group: &str,
    in_flight: usize,
    messages: usize,
) -> Result<f64, Failed> {
    let built = PathBuf::from(std::env::var_os(VARIABLE).unwrap_or_default());
    let classes = format!("{}:{}", built.join("classes").display(), built.join("lib/*").display());
    let mut command = Command::new("java");
    command
        .args(["-Xmx1g", "-cp", &classes, "Loop", topic.url.trim_start_matches("kafka://")])
        .args([&topic.name, group, &in_flight.to_string(), &messages.to_string()])
        .kill_on_drop(true);
    let ran = timeout(LIMIT, command.output()).await.map_err(|_| "Parallel Consumer stalled")??;
    let nanos: Option<f64> = String::from_utf8_lossy(&ran.stdout).trim().parse().ok();
    match nanos {
        Some(nanos) if ran.status.success() => Ok(messages as f64 * 1e9 / nanos),
        _ => Err(format!(
            "Parallel Consumer ended with {}: {}",
            ran.status,
            String::from_utf8_lossy(&ran.stderr)
        )
        .into()),
    }
}
