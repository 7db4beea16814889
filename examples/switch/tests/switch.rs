//! The program as it was built, over each broker that it was built for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use libtest_mimic::Trial;
use oncemq_test_kit::{Server, main as run, test};

/// The brokers, and what their URL needs so that a topic is made.
const BROKERS: [(Server, &str); 3] =
    [(Server("rabbitmq"), ""), (Server("kafka"), "?partitions=4"), (Server("rocketmq"), "?queues=4")];

fn main() {
    let built = [cfg!(feature = "rabbitmq"), cfg!(feature = "kafka"), cfg!(feature = "rocketmq")];
    let tests = BROKERS.into_iter().zip(built).map(|((server, option), built)| {
        let name = format!("orders_sent_twice_over_{}_count_once", server.0);
        let left_out = !built || server.is_left_out();
        let trial: Trial = test(&name, move || async move {
            tokio::task::spawn_blocking(move || counts_once(&format!("{}{option}", server.url())))
                .await
                .unwrap();
        });
        trial.with_ignored_flag(left_out)
    });
    run(tests.collect(), 3);
}

fn counts_once(url: &str) {
    let directory = tempfile::tempdir().unwrap();
    let program = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_switch"));
        command
            .args(words)
            .env("BROKER_URL", url)
            .env("DATABASE_URL", format!("sqlite:{}", directory.path().join("points.db").display()))
            .stdout(Stdio::piped());
        Killed(command.spawn().unwrap())
    };
    let mut service = program(&["serve", "100"]);
    let mut lines = BufReader::new(service.0.stdout.take().unwrap()).lines();
    // It prints its plan once queue and topic are there.
    let plan = lines.next().unwrap().unwrap();
    assert!(plan.contains("switch-points-service"), "{plan}");
    let sent = program(&["send", "100"]).0.wait().unwrap();
    assert!(sent.success());
    let end = lines.last().unwrap().unwrap();
    assert!(service.0.wait().unwrap().success());
    assert!(end.ends_with(" 100 points"), "{end}");
}

/// A process that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
