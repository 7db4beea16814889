//! Commits: each one's answer is awaited, so that what was refused is tried again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use oncemq_core::failpoint;
use tokio::sync::{mpsc, oneshot};

use super::part::Commit;
use super::shared::Shared;
use crate::cluster::{Cluster, Queue};

/// Commit what there is, and tell.
pub(crate) type Request = Option<oneshot::Sender<()>>;

/// Commits by time and when asked.
#[derive(Debug)]
pub(crate) struct Committer {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) group: Arc<str>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) interval: Duration,
}

impl Committer {
    /// Until nobody can ask any more.
    pub(crate) async fn run(self, mut requests: mpsc::UnboundedReceiver<Request>) {
        loop {
            let mut waiting = Vec::new();
            match tokio::time::timeout(self.interval, requests.recv()).await {
                Ok(Some(reply)) => waiting.extend(reply),
                Ok(None) => return,
                Err(_) => {}
            }
            // One round answers all that came meanwhile.
            while let Ok(reply) = requests.try_recv() {
                waiting.extend(reply);
            }
            self.round().await;
            for reply in waiting {
                // Whoever asked may have gone.
                let _ = reply.send(());
            }
        }
    }

    async fn round(&self) {
        let due: Vec<(Queue, u64, Commit)> = {
            let mut state = self.shared.settled();
            state.answered();
            let due = |part: &super::part::Part| Some((part.queue.clone(), part.epoch, part.commit()?));
            state.held().filter_map(due).collect()
        };
        if due.is_empty() {
            return;
        }
        failpoint!("rocketmq.before_commit");
        join_all(due.into_iter().map(|(queue, epoch, commit)| self.commit(queue, epoch, commit))).await;
        failpoint!("rocketmq.committed");
    }

    /// A refusal is no loss: what is done comes again if it is never committed, and the record
    /// answers for it.
    async fn commit(&self, queue: Queue, epoch: u64, commit: Commit) {
        if self.cluster.commit(&self.group, &queue, commit.offset).await.is_err() {
            return;
        }
        if let Some(part) = self.shared.state().of_epoch(epoch) {
            part.committed(commit);
        }
        // More may be handed out now.
        self.shared.wake();
    }
}
