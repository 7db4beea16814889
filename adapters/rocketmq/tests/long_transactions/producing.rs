//! A publisher of transactions in a process of its own, which is killed in the middle.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use oncemq_core::{Decision, Error, ErrorKind, Message};
use oncemq_rocketmq::{RocketmqBroker, TransactionId};

use crate::local::Local;

const VARIABLE: &str = "ONCEMQ_TEST_TRANSACTION";
/// The number of the signal.
const SIGKILL: i32 = 9;

/// Where the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The half message is stored, the local transaction not begun.
    Half,
    /// The local transaction has written all, and is not committed.
    Open,
    /// The local transaction is committed, and nobody has asked what became of it.
    Committed,
    /// The database has said that it is committed, and the broker is about to be told.
    Decided,
}

impl Place {
    /// Where the library dies by itself; elsewhere the local transaction says that it is there.
    fn failpoint(self) -> Option<&'static str> {
        match self {
            Place::Half => Some("rocketmq.half_stored=kill"),
            Place::Decided => Some("rocketmq.before_end=kill"),
            Place::Open | Place::Committed => None,
        }
    }
}

/// What a process publishes, and with what.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) url: String,
    pub(crate) database: String,
    pub(crate) group: String,
    pub(crate) topic: String,
}

impl Job {
    /// Starts a process that publishes this body and stays where its local transaction is then.
    /// Returns when it is there. It answers no question of a broker.
    pub(crate) fn start_to(&self, place: Place, body: &str) -> Process {
        let mut child = self.command(place, body).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let process = Process(child);
        assert_eq!(line.trim(), "there", "it did not get there");
        process
    }

    /// Publishes in a process that is killed there.
    pub(crate) fn kill_at(&self, place: Place, body: &str) {
        let Some(failpoint) = place.failpoint() else { return self.start_to(place, body).kill() };
        let status = self.command(place, body).env("ONCEMQ_FAILPOINT", failpoint).status().unwrap();
        assert_eq!(status.signal(), Some(SIGKILL), "it did not get to {failpoint}: {status}");
    }

    fn command(&self, place: Place, body: &str) -> Command {
        let Self { url, database, group, topic } = self;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .env(VARIABLE, format!("{url} {database} {group} {topic} {body} {place:?}"))
            .env_remove("ONCEMQ_FAILPOINT")
            .stdin(Stdio::null());
        command
    }
}

/// A process; killed when dropped.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn kill(mut self) {
        assert!(self.0.try_wait().unwrap().is_none(), "it ended before");
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

/// Publishes, if this process was started for that. Returns whether it was.
pub(crate) fn was_child() -> bool {
    let Ok(text) = std::env::var(VARIABLE) else { return false };
    let words: Vec<&str> = text.split(' ').collect();
    let [url, database, group, topic, body, place] = words[..] else { panic!("{text}") };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(publish(url, database, group, topic, body, place));
    true
}

async fn publish(url: &str, database: &str, group: &str, topic: &str, body: &str, place: &str) {
    let local = Local::open(database, group).await;
    let (judge, is_mute) = (local.clone(), place != "Decided");
    let check = move |id: TransactionId| {
        let judge = judge.clone();
        async move {
            if is_mute { Err(Error::new(ErrorKind::Store, "mute")) } else { judge.decide(id.as_str()).await }
        }
    };
    let broker = RocketmqBroker::from_url(url).unwrap();
    let publisher = broker.transactions(group, &[topic], check).await.unwrap();
    let message = Message::new(body.to_owned());
    let run = |id: TransactionId| async move {
        let mut open = local.begin(body).await;
        if place == "Open" {
            local.record(&mut open, id.as_str()).await;
            stay_if(true).await;
        }
        local.commit(open, id.as_str()).await?;
        stay_if(place == "Committed").await;
        Ok::<_, Error>(Decision::Committed)
    };
    publisher.publish(topic, &message, run).await.unwrap();
}

async fn stay_if(here: bool) {
    if here {
        let mut out = std::io::stdout();
        writeln!(out, "there").unwrap();
        out.flush().unwrap();
        std::future::pending::<()>().await;
    }
}
