//! Taking, settling and giving back.

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use oncemq_core::{Ack, Delivery, Error, ErrorKind, Event, Facts, Health, Message, Settle, Source, Token};
use tokio::time::{Instant, Interval, interval, sleep};

use crate::{failed, files};

/// Between two looks into the folders: other processes cannot wake this one.
const TICK: Duration = Duration::from_millis(10);
/// The longest reason on a dead letter, in bytes.
const REASON_MAX: usize = 16 * 1024;
/// Ends the name of what may have been delivered before.
const AGAIN: &str = ".again";

type Answer = (u64, Message, Ack);
/// Folder and name of what is out by its number, and whether it is answered. It stays until
/// the answer is on disk: only then is its place free.
type Out = HashMap<u64, (PathBuf, String, bool)>;

/// What the source shares with its deliveries, and with the thread that applies answers.
#[derive(Debug)]
struct Desk {
    /// Folder and lock of each. The system unlocks it when the process dies, however it dies.
    queues: Vec<(PathBuf, File)>,
    out: Mutex<Out>,
    answers: Sender<Option<Answer>>,
}

impl Settle for Desk {
    /// A hand-off that neither blocks nor needs a runtime.
    fn settle(&self, token: Token, message: Message, ack: Ack) {
        // Not out any more after a close: the message is back, and this answer is void.
        if let Some((_, _, answered)) = self.out().get_mut(&token.id) {
            *answered = true;
            let _ = self.answers.send(Some((token.id, message, ack)));
        }
    }
}

impl Desk {
    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread's work until the source ends.
    fn work(&self, answers: &Receiver<Option<Answer>>) {
        while let Ok(Some((id, message, ack))) = answers.recv() {
            let Some((folder, name, _)) = self.out().get(&id).cloned() else { continue };
            if apply(&folder, &name, &message, ack).is_err() {
                // If this fails too, it stays taken and comes back at the next start.
                let _ = give_back(&folder, &name);
            }
            self.out().remove(&id);
        }
        self.out().drain().for_each(|(_, (folder, name, _))| drop(give_back(&folder, &name)));
        self.queues.iter().for_each(|(_, lock)| drop(lock.unlock()));
    }

    async fn wait(&self, limit: Duration, until: fn(&Out) -> bool) -> bool {
        let end = Instant::now() + limit;
        while !until(&self.out()) && Instant::now() < end {
            sleep(Duration::from_millis(1)).await;
        }
        until(&self.out())
    }
}

fn apply(folder: &Path, name: &str, message: &Message, ack: Ack) -> io::Result<()> {
    let taken = folder.join("taken").join(name);
    match ack {
        Ack::Accept | Ack::Discard { .. } => {}
        Ack::Retry(retry) => files::store(folder, retry.after, &retry.copy(message))?,
        Ack::Reject(reject) => {
            files::store(&folder.join("dead"), Duration::ZERO, &reject.copy(message, REASON_MAX))?;
        }
        // The same message, later: no copy, nothing charged.
        Ack::Defer { after } => return fs::rename(taken, folder.join(files::name(after))),
        // Also a word that this version does not know: nothing may be lost by it.
        _ => return give_back(folder, name),
    }
    // Only now that the copy is on disk.
    fs::remove_file(taken)
}

fn give_back(folder: &Path, name: &str) -> io::Result<()> {
    let again = format!("{}{AGAIN}", name.trim_end_matches(AGAIN));
    fs::rename(folder.join("taken").join(name), folder.join(again))
}

struct FolderSource {
    desk: Arc<Desk>,
    /// The queues whose lock is ours.
    ours: Vec<bool>,
    last: u64,
    timer: Interval,
    health: Option<Health>,
    closed: bool,
}

pub(crate) fn start(folders: Vec<PathBuf>) -> io::Result<Box<dyn Source>> {
    let lock = |folder: PathBuf| File::create(folder.join(".lock")).map(|lock| (folder, lock));
    let queues = folders.into_iter().map(lock).collect::<io::Result<Vec<_>>>()?;
    let ((answers, inbox), ours) = (channel(), vec![false; queues.len()]);
    let desk = Arc::new(Desk { queues, out: Mutex::default(), answers });
    let worker = desk.clone();
    std::thread::Builder::new().name("folder".into()).spawn(move || worker.work(&inbox))?;
    let (timer, health) = (interval(TICK), Some(Health::Up));
    Ok(Box::new(FolderSource { desk, ours, last: 0, timer, health, closed: false }))
}

impl FolderSource {
    fn fill(&mut self, max: usize, events: &mut Vec<Event>) -> io::Result<()> {
        events.extend(self.health.take().map(Event::Health));
        let mut due = Vec::new();
        for (place, (folder, lock)) in self.desk.queues.iter().enumerate() {
            match lock.try_lock() {
                // Another process consumes this queue; this one waits for its end.
                Err(TryLockError::WouldBlock) => continue,
                locked => locked?,
            }
            if !std::mem::replace(&mut self.ours[place], true) {
                // Whoever took these is dead.
                let taken = files::names(&folder.join("taken"))?;
                taken.iter().try_for_each(|name| give_back(folder, name))?;
            }
            let names = files::names(folder)?.into_iter().filter(|name| files::is_due(name));
            due.extend(names.map(|name| (name, place)));
        }
        due.sort_unstable();
        for (name, place) in due.into_iter().take(max) {
            let folder = &self.desk.queues[place].0;
            let taken = folder.join("taken").join(&name);
            fs::rename(folder.join(&name), &taken)?;
            let message = files::load(&taken, &folder.file_name().unwrap_or_default().to_string_lossy())?;
            let facts = Facts::new(u16::try_from(place).unwrap_or(u16::MAX), name.ends_with(AGAIN));
            self.last += 1;
            self.desk.out().insert(self.last, (folder.clone(), name, false));
            let token = Token { epoch: 0, scope: 0, id: self.last };
            events.push(Event::Delivery(Delivery::new(message, facts, token, self.desk.clone())));
        }
        Ok(())
    }
}

#[async_trait]
impl Source for FolderSource {
    fn poll_events(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
        events: &mut Vec<Event>,
    ) -> Poll<Result<(), Error>> {
        if self.closed {
            return Poll::Ready(Err(Error::new(ErrorKind::Closed, "the source of the folder is closed")));
        }
        let before = events.len();
        loop {
            if let Err(error) = self.fill(max, events) {
                self.closed = true;
                return Poll::Ready(Err(failed(error)));
            }
            // The tick also finds the places that settlements made free.
            match self.timer.poll_tick(cx) {
                _ if events.len() > before => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(_) => {}
            }
        }
    }

    fn outstanding(&self) -> usize {
        self.desk.out().len()
    }

    async fn flush(&mut self, limit: Duration) -> bool {
        self.desk.wait(limit, |out| !out.values().any(|(_, _, answered)| *answered)).await
    }

    async fn close(&mut self, limit: Duration) -> Result<(), Error> {
        self.closed = true;
        let _ = self.desk.answers.send(None);
        match self.desk.wait(limit, HashMap::is_empty).await {
            true => Ok(()),
            false => {
                Err(Error::new(ErrorKind::Connection, format!("the disk did not answer within {limit:?}")))
            }
        }
    }
}

impl Drop for FolderSource {
    fn drop(&mut self) {
        let _ = self.desk.answers.send(None);
    }
}
