//! A pipeline in a process of its own: only a real SIGKILL shows what a crash leaves behind.
//! The process is the test binary, told by a variable what it is.

use std::process::{Command, Stdio};
use std::time::Duration;

use oncemq_core::{Context, Message};
use oncemq_kafka::{KafkaBroker, Output};

const VARIABLE: &str = "ONCEMQ_TEST_PIPELINE";

/// What a process copies.
#[derive(Debug, Clone)]
pub struct Job {
    pub url: String,
    pub name: String,
    pub from: String,
    pub to: String,
    /// How long each record takes.
    pub delay: Duration,
}

impl Job {
    /// Starts a process that does it. With a failpoint, as in `kafka.unit_written=kill@2`, it
    /// does that there.
    pub fn start(&self, failpoint: Option<&str>) -> Process {
        let Self { url, name, from, to, delay } = self;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .env(VARIABLE, format!("{url} {name} {from} {to} {}", delay.as_micros()))
            .env_remove("ONCEMQ_FAILPOINT")
            .stdin(Stdio::null());
        if let Some(failpoint) = failpoint {
            command.env("ONCEMQ_FAILPOINT", failpoint);
        }
        Process(command.spawn().unwrap())
    }
}

/// A process; killed when dropped.
pub struct Process(std::process::Child);

impl Process {
    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    pub fn kill(&mut self) {
        assert!(!self.has_ended(), "it ended before");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Copies, if this process was started for that. Returns whether it was.
pub fn was_child() -> bool {
    let Ok(text) = std::env::var(VARIABLE) else { return false };
    let words: Vec<&str> = text.split(' ').collect();
    let [url, name, from, to, delay] = words[..] else { panic!("{text}") };
    let delay = Duration::from_micros(delay.parse().unwrap());
    let to: std::sync::Arc<str> = to.into();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let pipeline = KafkaBroker::from_url(url).unwrap().pipeline(name).topic(from);
    let pipeline = pipeline.records(200).transaction_timeout(Duration::from_secs(2));
    let ran = runtime.block_on(pipeline.run(move |_: Context, message: Message| {
        let output = Output::new(to.clone(), message);
        async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            Ok(vec![output])
        }
    }));
    ran.unwrap();
    true
}
