//! A server of its own, for tests that stop it.

use std::path::PathBuf;
use std::process::Command;

/// Another instance of the server, removed at the end.
pub struct Server {
    name: String,
    pub url: String,
}

impl Server {
    pub fn start(name: &str) -> Self {
        let name = format!("postgres@{name}");
        services(&["start", &name]);
        let env = services(&["env", &name]);
        let url = env
            .lines()
            .find_map(|line| line.strip_prefix("export ONCEMQ_POSTGRES_URL="))
            .unwrap_or_else(|| panic!("no address in {env}"))
            .to_owned();
        Self { name, url }
    }

    pub fn pause(&self) {
        services(&["pause", &self.name]);
    }

    pub fn resume(&self) {
        services(&["resume", &self.name]);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        services(&["remove", &self.name]);
    }
}

fn services(arguments: &[&str]) -> String {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../scripts/services");
    let output = Command::new(script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
