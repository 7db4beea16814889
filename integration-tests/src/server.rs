//! Servers of a test's own, to be killed, stopped and started again.

use std::path::PathBuf;
use std::process::Command;

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
        let lines = services(&["env", &name]).await;
        let variable = format!("export ONCEMQ_{}_URL=", service.to_uppercase());
        let url = lines.lines().find_map(|line| line.strip_prefix(&variable));
        let url = url.unwrap_or_else(|| panic!("no address in {lines}")).replace('\\', "");
        Self { name, url }
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

async fn services(arguments: &[&str]) -> String {
    let output = tokio::process::Command::new(script()).args(arguments).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "services {arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}
