//! Servers that a test may stop, kill and starve.

use std::path::PathBuf;
use std::process::Command;

/// A server of the tests' own, removed when it is dropped.
pub struct Instance {
    label: String,
    environment: Vec<(String, String)>,
}

impl Instance {
    /// Starts a fresh `rabbitmq@<name>`. A run that was killed leaves its server behind, with
    /// an alarm that blocks publishing, another consumer timeout, or paused.
    pub fn start(name: &str) -> Self {
        let label = format!("rabbitmq@{name}");
        services(&["remove", &label]);
        services(&["start", &label]);
        let mut instance = Self { label, environment: Vec::new() };
        instance.environment = instance.read_environment();
        instance
    }

    /// No server: for tests that are not going to run.
    pub fn none() -> Self {
        Self { label: String::new(), environment: Vec::new() }
    }

    fn read_environment(&self) -> Vec<(String, String)> {
        let text = services(&["env", &self.label]);
        let line = |line: &str| {
            let (name, value) = line.strip_prefix("export ")?.split_once('=')?;
            Some((name.to_owned(), value.replace('\\', "")))
        };
        text.lines().filter_map(line).collect()
    }

    pub fn get(&self, name: &str) -> String {
        let found = self.environment.iter().find(|(n, _)| n == name);
        found.unwrap_or_else(|| panic!("{name} is not set for {}", self.label)).1.clone()
    }

    pub fn url(&self) -> String {
        self.get("ONCEMQ_RABBITMQ_URL")
    }

    /// Runs rabbitmqctl and returns what it printed.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        run(Command::new(self.get("ONCEMQ_RABBITMQ_CTL")).arg("--quiet").args(arguments))
    }

    pub fn again(&self) {
        services(&["start", &self.label]);
    }

    pub fn stop(&self) {
        services(&["stop", &self.label]);
    }

    pub fn kill(&self) {
        services(&["kill", &self.label]);
    }

    pub fn pause(&self) {
        services(&["pause", &self.label]);
    }

    pub fn resume(&self) {
        services(&["resume", &self.label]);
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if !self.label.is_empty() {
            services(&["remove", &self.label]);
        }
    }
}

fn services(arguments: &[&str]) -> String {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services");
    run(Command::new(script).args(arguments))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
