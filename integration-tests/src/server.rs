//! Servers of a test's own, to be killed, stopped and started again.

use std::path::PathBuf;
use std::process::Command;

/// Has every quorum queue that has no leader elect one.
const ELECT: &str = "[ra:trigger_election({Name, node()}) || Q <- rabbit_amqqueue:list(), \
    {Name, _} <- [amqqueue:get_pid(Q)], ets:lookup(ra_state, Name) =/= [{Name, leader}]].";

/// An instance of a server, removed at the end.
#[derive(Debug)]
pub struct Server {
    name: String,
    /// Its address.
    pub url: String,
}

impl Server {
    /// Starts `service@instance`.
    ///
    /// # Panics
    /// It does not start.
    pub async fn start(service: &str, instance: &str) -> Self {
        let name = format!("{service}@{instance}");
        services(&["start", &name]).await;
        let url = variable(&name, &format!("ONCEMQ_{}_URL", service.to_uppercase())).await;
        Self { name, url }
    }

    /// Starts a RabbitMQ that was killed. Version 3.10 now and then leaves a quorum queue
    /// without a leader then, for as long as nobody asks for one.
    ///
    /// # Panics
    /// It does not start.
    pub async fn start_killed_rabbitmq(&self) {
        self.make("start").await;
        let ctl = variable(&self.name, "ONCEMQ_RABBITMQ_CTL").await;
        run(tokio::process::Command::new(ctl).args(["--quiet", "eval", ELECT])).await;
    }

    /// Does to it what `scripts/services` calls this: `kill`, `start`, `pause`, `resume`.
    ///
    /// # Panics
    /// It does not work.
    pub async fn make(&self, command: &'static str) {
        services(&[command, &self.name]).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // What stays is one process and its data, both under the name of this test.
        let _ = Command::new(script()).args(["remove", &self.name]).output();
    }
}

fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../scripts/services")
}

/// A variable of an instance's environment.
async fn variable(instance: &str, name: &str) -> String {
    let lines = services(&["env", instance]).await;
    let start = format!("export {name}=");
    let value = lines.lines().find_map(|line| line.strip_prefix(&start));
    value.unwrap_or_else(|| panic!("no {name} in {lines}")).replace('\\', "")
}

async fn services(arguments: &[&str]) -> String {
    run(tokio::process::Command::new(script()).args(arguments)).await
}

async fn run(command: &mut tokio::process::Command) -> String {
    let output = command.output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}
