//! Servers that a test may stop, kill and starve.

use std::path::PathBuf;
use std::process::Command;

use crate::Server;

/// A server of the tests' own, removed when it is dropped.
pub struct Instance {
    server: Server,
    label: String,
    environment: Vec<(String, String)>,
}

impl Instance {
    /// Starts a fresh `<server>@<name>`. A run that was killed leaves its server behind, with an
    /// alarm that blocks publishing, another timeout, or paused.
    pub fn start(server: Server, name: &str) -> Self {
        let label = format!("{}@{name}", server.0);
        services(&["remove", &label]);
        services(&["start", &label]);
        let mut instance = Self { server, label, environment: Vec::new() };
        instance.environment = instance.read_environment();
        instance
    }

    /// No server: for tests that are not going to run.
    pub fn none(server: Server) -> Self {
        Self { server, label: String::new(), environment: Vec::new() }
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
        self.get(&format!("ONCEMQ_{}_URL", self.server.0.to_uppercase()))
    }

    /// Runs a tool of the server's that a variable names, and returns what it printed.
    pub fn tool(&self, variable: &str, arguments: &[&str]) -> String {
        run(Command::new(self.get(variable)).args(arguments))
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
