//! Commits: each one's answer is awaited, so that what was refused is tried again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use oncemq_core::failpoint;
use oncemq_core::partitions::{Assignment, Point};
use tokio::sync::{mpsc, oneshot};

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
        let due: Vec<(Queue, Assignment, Point)> = {
            let mut state = self.shared.settled();
            state.answered();
            let due = state
                .parts
                .iter()
                .filter_map(|(which, part)| Some((part.queue.clone(), which, part.commit()?)));
            due.collect()
        };
        if due.is_empty() {
            return;
        }
        failpoint!("rocketmq.before_commit");
        join_all(due.into_iter().map(|(queue, which, point)| self.commit(queue, which, point))).await;
        failpoint!("rocketmq.committed");
    }

    /// A refusal is no loss: what is done comes again if it is never committed, and the record
    /// answers for it.
    async fn commit(&self, queue: Queue, which: Assignment, point: Point) {
        if self.cluster.commit(&self.group, &queue, point.offset).await.is_err() {
            return;
        }
        if let Some(part) = self.shared.state().parts.get_mut(which) {
            part.committed(point);
        }
        // More may be handed out now.
        self.shared.answers.wake();
    }
}
