//! Commits: synchronous, on a thread of their own, since an asynchronous one never tells how
//! it ended.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use oncemq_core::partitions::Assignment;
use oncemq_core::{Error, ErrorKind, failpoint};
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{Offset, TopicPartitionList};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::context::Client;
use super::part::{Commit, Member, Stage};
use super::shared::Shared;

/// What the thread is asked.
#[derive(Debug)]
pub(crate) enum Request {
    /// Commit what there is, and tell.
    Now(Option<oneshot::Sender<()>>),
    /// Commit once more and end.
    End,
}

/// Commits by time and when asked.
pub(crate) struct Committer {
    pub(crate) client: Arc<Client>,
    pub(crate) member: Member,
    pub(crate) shared: Arc<Shared>,
    pub(crate) cluster: String,
    pub(crate) interval: Duration,
    pub(crate) runtime: Handle,
}

/// A commit of one partition, and which one it was.
struct Due {
    which: Assignment,
    topic: Arc<str>,
    number: i32,
    commit: Commit,
}

pub(crate) fn requests() -> (Sender<Request>, Receiver<Request>) {
    channel()
}

impl Committer {
    pub(crate) fn run(self, requests: &Receiver<Request>) {
        loop {
            let mut waiting = Vec::new();
            let mut end = false;
            match requests.recv_timeout(self.interval) {
                Ok(Request::Now(reply)) => waiting.extend(reply),
                Ok(Request::End) | Err(RecvTimeoutError::Disconnected) => end = true,
                Err(RecvTimeoutError::Timeout) => {}
            }
            // One round answers all that came meanwhile.
            while let Ok(request) = requests.try_recv() {
                match request {
                    Request::Now(reply) => waiting.extend(reply),
                    Request::End => end = true,
                }
            }
            self.round();
            for reply in waiting {
                // Whoever asked may have gone.
                let _ = reply.send(());
            }
            if end {
                return;
            }
        }
    }

    fn round(&self) {
        let due = self.due();
        if due.is_empty() {
            return self.let_go();
        }
        let mut list = TopicPartitionList::with_capacity(due.len());
        for one in &due {
            let mut element = list.add_partition(&one.topic, one.number);
            if element.set_offset(Offset::Offset(one.commit.point.offset)).is_err() {
                return;
            }
            element.set_metadata(one.commit.note.write(&self.cluster, one.commit.point.offset));
        }
        self.runtime.block_on(async {
            failpoint!("kafka.before_commit");
        });
        match self.client.commit(&list, CommitMode::Sync) {
            Ok(()) => self.applied(due),
            Err(refused) => self.refused(&refused),
        }
        self.runtime.block_on(async {
            failpoint!("kafka.committed");
        });
        self.let_go();
    }

    fn due(&self) -> Vec<Due> {
        let mut state = self.shared.settled();
        state.answered();
        let ours = state.parts.iter().filter(|(_, part)| part.member == self.member);
        let due = ours.filter(|(_, part)| part.stage != Stage::Done).filter_map(|(which, part)| {
            Some(Due { which, topic: part.topic.clone(), number: part.number, commit: part.commit()? })
        });
        due.collect()
    }

    fn applied(&self, due: Vec<Due>) {
        let mut state = self.shared.state();
        for one in due {
            if let Some(part) = state.parts.get_mut(one.which) {
                part.committed(one.commit);
            }
        }
        drop(state);
        // More may be handed out now.
        self.shared.answers.wake();
    }

    /// A refusal tells that the group has gone on without this member, or that nobody
    /// answers. Either way what is done comes again, and the record answers for it.
    fn refused(&self, refused: &KafkaError) {
        if let Some(Code::FencedInstanceId | Code::Fenced) = refused.rdkafka_error_code() {
            self.shared.fail(Error::new(
                ErrorKind::Closed,
                "another member of the group runs with the same group.instance.id; give each its own",
            ));
        }
    }

    /// The last commit of what leaves has been tried.
    fn let_go(&self) {
        for part in self.shared.state().held_mut().filter(|part| part.member == self.member) {
            let quiet = part.commit().is_none();
            if matches!(part.stage, Stage::Committing { .. }) && quiet {
                part.stage = Stage::Done;
            }
        }
    }
}
