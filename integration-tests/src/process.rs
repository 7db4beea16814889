//! A service as a process that is watched, told to stop, or killed.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::service::{Spec, VARIABLE};
use crate::suite::until;

/// What a consumer counted, by name.
pub type Counters = BTreeMap<String, u64>;

/// The number of the signal that nobody can catch.
const SIGKILL: i32 = 9;

/// A process of the service; killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    output: PathBuf,
}

impl Process {
    /// Starts `program` as `service consume` or `service produce`. With a failpoint, as in
    /// `core.ran=kill@2`, it does that there.
    ///
    /// # Panics
    /// The program cannot be started.
    pub fn start(program: &str, role: &str, spec: &Spec, failpoint: Option<&str>, output: &Path) -> Self {
        let file = File::create(output).expect("a file for the output");
        let mut command = Command::new(program);
        command
            .arg(role)
            .env(VARIABLE, serde_json::to_string(spec).expect("a spec is JSON"))
            .env_remove("ONCEMQ_FAILPOINT")
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("the same file again"))
            .stderr(file);
        if let Some(failpoint) = failpoint {
            command.env("ONCEMQ_FAILPOINT", failpoint);
        }
        Self { child: command.spawn().expect("the service starts"), output: output.to_owned() }
    }

    /// What it printed so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// Waits until it prints this.
    ///
    /// # Panics
    /// It does not.
    pub async fn until_said(&self, text: &str, limit: Duration) {
        until(&format!("{text:?} in {}", self.said()), limit, async || self.said().contains(text)).await;
    }

    /// Kills it as the kernel does when memory runs out.
    ///
    /// # Panics
    /// It ended by itself before.
    pub fn kill(mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "it ended before: {}", self.said());
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop.
    ///
    /// # Panics
    /// It ended before.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends it a signal: `STOP` lets it hang, `CONT` wakes it.
    ///
    /// # Panics
    /// It ended before, or there is no `kill` command.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap();
        assert!(status.success(), "no process for SIG{signal}: {}", self.said());
    }

    /// Whether it ended.
    ///
    /// # Panics
    /// It cannot be asked.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// It does not end.
    pub async fn ended(&mut self, limit: Duration) -> ExitStatus {
        let mut status = None;
        until("the process ends", limit, async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }

    /// Waits until it was killed, by a failpoint or by a message.
    ///
    /// # Panics
    /// It ends in another way or not at all.
    pub async fn killed(&mut self, limit: Duration) {
        let status = self.ended(limit).await;
        assert_eq!(status.signal(), Some(SIGKILL), "{status}: {}", self.said());
    }

    /// Stops it in order and returns its counters.
    ///
    /// # Panics
    /// It does not stop, or not in order.
    pub async fn stop(mut self, limit: Duration) -> Counters {
        self.terminate();
        let status = self.ended(limit).await;
        assert!(status.success(), "{status}: {}", self.said());
        self.summary()
    }

    /// Its counters, once it ended in order.
    ///
    /// # Panics
    /// It printed none.
    pub fn summary(&self) -> Counters {
        let said = self.said();
        let line = said.lines().find_map(|line| line.strip_prefix("summary "));
        let pairs = line.unwrap_or_else(|| panic!("no summary in {said}")).split(' ');
        pairs
            .filter_map(|pair| {
                let (name, value) = pair.split_once('=')?;
                Some((name.to_owned(), value.parse().ok()?))
            })
            .collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
