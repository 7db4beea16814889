//! Taking, settling and giving back.

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use oncemq_core::{Ack, Delivery, Error, ErrorKind, Event, Facts, Health};
use oncemq_core::{Message, Settle, Source, Token};
use tokio::time::{Interval, interval};

use crate::{DEAD, NOW, failed, files};

/// Between two looks into the folders: neither other processes nor answers wake this one.
const TICK: Duration = Duration::from_millis(10);
/// Ends the name of what may have been delivered before.
const AGAIN: &str = ".again";

type Answer = (PathBuf, Message, Ack);

/// A file that is out, and where its answer goes.
#[derive(Debug)]
struct Taken(PathBuf, mpsc::Sender<Answer>);

impl Settle for Taken {
    /// A hand-off that neither blocks nor needs a runtime.
    fn settle(&self, _token: Token, message: Message, ack: Ack) {
        let _ = self.1.send((self.0.clone(), message, ack));
    }
}

struct Queue {
    folder: PathBuf,
    /// Held by the one process that consumes the queue. The system unlocks it when that
    /// process dies, however it dies.
    lock: Option<File>,
}

impl Queue {
    /// Nothing while another process consumes the queue: this one waits for its end.
    fn due(&mut self) -> io::Result<Vec<String>> {
        if self.lock.is_none() {
            let lock = File::create(self.folder.join(".lock"))?;
            match lock.try_lock() {
                Ok(()) => self.lock = Some(lock),
                Err(TryLockError::WouldBlock) => return Ok(Vec::new()),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        files::due(&self.folder)
    }

    /// Where a message lies while it is out. If this process dies, it comes back flagged.
    fn taken(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{}{AGAIN}", name.trim_end_matches(AGAIN)))
    }
}

pub(crate) struct FolderSource {
    /// None are left at the end.
    queues: Vec<Queue>,
    /// Handed out, until the answer is on disk: only then is its place free.
    out: HashSet<PathBuf>,
    answers: (mpsc::Sender<Answer>, mpsc::Receiver<Answer>),
    timer: Interval,
    health: Option<Health>,
}

impl FolderSource {
    pub(crate) fn new(folders: Vec<PathBuf>) -> Self {
        let queues = folders.into_iter().map(|folder| Queue { folder, lock: None }).collect();
        let (out, timer, health) = (HashSet::new(), interval(TICK), Some(Health::Up));
        Self { queues, out, answers: mpsc::channel(), timer, health }
    }

    /// What cannot be applied goes back, which is to be out no more.
    fn apply_answers(&mut self) {
        for (file, message, ack) in self.answers.1.try_iter() {
            // After the end none is out: a late answer would be about what others have taken.
            if self.out.remove(&file) {
                let _ = apply(&file, &message, ack);
            }
        }
    }

    /// Applies what was answered. The rest is back as soon as the locks are gone.
    fn end(&mut self) {
        self.apply_answers();
        self.out.clear();
        self.queues.clear();
    }

    fn fill(&mut self, max: usize, events: &mut Vec<Event>) -> io::Result<()> {
        self.apply_answers();
        events.extend(self.health.take().map(Event::Health));
        let mut due = Vec::new();
        for (place, queue) in self.queues.iter_mut().enumerate() {
            due.extend(queue.due()?.into_iter().map(|name| (name, place)));
        }
        due.retain(|(name, place)| !self.out.contains(&self.queues[*place].taken(name)));
        due.sort_unstable();
        for (name, place) in due.into_iter().take(max) {
            let folder = &self.queues[place].folder;
            let file = self.queues[place].taken(&name);
            fs::rename(folder.join(&name), &file)?;
            let message = files::load(&file)?;
            let facts = Facts::new(u16::try_from(place).unwrap_or(u16::MAX), name.ends_with(AGAIN));
            let taken = Arc::new(Taken(file.clone(), self.answers.0.clone()));
            // Each settles by itself, so no token needs to say which one it is.
            let token = Token { epoch: 0, scope: 0, id: 0 };
            events.push(Event::Delivery(Delivery::new(message, facts, token, taken)));
            self.out.insert(file);
        }
        Ok(())
    }
}

fn apply(file: &Path, message: &Message, ack: Ack) -> io::Result<()> {
    let folder = file.parent().unwrap_or(file);
    match ack {
        Ack::Accept | Ack::Discard { .. } => {}
        Ack::Retry(retry) => files::store(folder, retry.after, &retry.copy(message))?,
        // A file takes a reason of any length.
        Ack::Reject(reject) => files::store(&folder.join(DEAD), NOW, &reject.copy(message, usize::MAX))?,
        // The same message, later: no copy, nothing charged.
        Ack::Defer { after } => return fs::rename(file, folder.join(files::name(after))),
        // Also a word that this version does not know: nothing may be lost by it.
        _ => return Ok(()),
    }
    // Only now that the copy is on disk.
    fs::remove_file(file)
}

#[async_trait]
impl Source for FolderSource {
    fn poll_events(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
        events: &mut Vec<Event>,
    ) -> Poll<Result<(), Error>> {
        if self.queues.is_empty() {
            return Poll::Ready(Err(Error::new(ErrorKind::Closed, "the source of the folder is closed")));
        }
        let before = events.len();
        while events.len() == before {
            ready!(self.timer.poll_tick(cx));
            self.fill(max, events).map_err(failed).inspect_err(|_| self.end())?;
        }
        Poll::Ready(Ok(()))
    }

    fn outstanding(&self) -> usize {
        self.out.len()
    }

    async fn flush(&mut self, _limit: Duration) -> bool {
        self.apply_answers();
        true
    }

    async fn close(&mut self, _limit: Duration) -> Result<(), Error> {
        self.end();
        Ok(())
    }
}

impl Drop for FolderSource {
    fn drop(&mut self) {
        self.end();
    }
}
