//! A store with crash semantics: what is not committed vanishes, and replies can be lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Rng, Steps};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    Claim, Context, Ending, Entry, Error, ErrorKind, Failed, Marks, Note, Record, RecordFacts, TrailId, Unit,
    Verdict,
};

type StoredKey = (String, String, Vec<u8>);

/// How often something goes wrong, in percent of the calls that can go wrong.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// The reply to a commit is lost, half of the time after it was applied.
    pub lost_commits: u64,
    /// A unit ends in a deadlock.
    pub deadlocks: u64,
    /// The connection breaks at the end of a unit.
    pub broken: u64,
    /// A claim or note fails and works again at once.
    pub hiccups: u64,
}

/// The disk and the server: survives every process.
#[derive(Debug, Default)]
struct Server {
    done: BTreeMap<StoredKey, Done>,
    notes: BTreeMap<TrailId, Note>,
    effects: BTreeMap<Vec<u8>, i64>,
    /// Keys claimed by units that are open, and by which.
    claimed: BTreeMap<StoredKey, u64>,
    next_unit: u64,
    down: bool,
    faults: Faults,
    rng: Option<Rng>,
}

#[derive(Debug, Clone, Copy)]
struct Done {
    body: [u8; 32],
    conflict: Option<[u8; 32]>,
}

/// One process's connections to the simulated server.
#[derive(Debug, Clone)]
pub struct SimStore {
    server: Arc<Mutex<Server>>,
    process: Steps,
    retention: Duration,
    units: usize,
    places: Arc<Semaphore>,
}

impl SimStore {
    /// A new, empty server, seen by a process that never dies.
    pub fn new(seed: u64, faults: Faults) -> Self {
        let server = Server { faults, rng: Some(Rng::new(seed)), ..Server::default() };
        Self {
            server: Arc::new(Mutex::new(server)),
            process: Steps::default(),
            retention: Duration::from_secs(7 * 24 * 3600),
            units: Semaphore::MAX_PERMITS,
            places: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
        }
    }

    /// So many units at once in each process, from now on.
    #[must_use]
    pub fn units(self, units: usize) -> Self {
        Self { units, places: Arc::new(Semaphore::new(units)), ..self }
    }

    /// The same server seen by another process.
    pub fn for_process(&self, process: &Steps) -> Self {
        Self { process: process.clone(), ..self.clone() }.units(self.units)
    }

    /// Ends every open unit, as the server does when their process is gone.
    pub fn drop_open_units(&self) {
        self.lock().claimed.clear();
    }

    /// Stops or starts the server. Open units are lost with it.
    pub fn set_down(&self, down: bool) {
        let mut server = self.lock();
        server.down = down;
        if down {
            server.claimed.clear();
        }
    }

    /// Nothing goes wrong from here on.
    pub fn calm(&self) {
        self.lock().faults = Faults::default();
    }

    /// The committed effects: how often each name was added.
    pub fn effects(&self) -> BTreeMap<Vec<u8>, i64> {
        self.lock().effects.clone()
    }

    /// The business keys with a done row.
    pub fn done_keys(&self) -> BTreeSet<Vec<u8>> {
        self.lock().done.keys().map(|(_, _, key)| key.clone()).collect()
    }

    /// Notes that still carry a crash mark.
    pub fn marked(&self) -> usize {
        self.lock().notes.values().filter(|note| note.marks > 0).count()
    }

    fn lock(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A round trip: time passes, the process may die, the server may be away.
    async fn call(&self) -> Result<(), Error> {
        self.process.pass().await;
        let mut server = self.lock();
        let hiccups = server.faults.hiccups;
        if server.down || server.chance(hiccups) {
            return Err(Error::new(ErrorKind::Store, "the simulated server does not answer"));
        }
        Ok(())
    }

    /// The reply's way back, on which the process may die too.
    async fn reply(&self) {
        self.process.pass().await;
    }

    async fn change_note<T>(&self, id: &TrailId, change: impl FnOnce(&mut Note) -> T) -> Result<T, Error> {
        self.call().await?;
        let result = {
            let mut server = self.lock();
            let note = server.notes.entry(*id).or_default();
            let result = change(note);
            if *note == Note::default() {
                server.notes.remove(id);
            }
            result
        };
        self.reply().await;
        Ok(result)
    }
}

impl Server {
    fn chance(&mut self, percent: u64) -> bool {
        percent > 0 && self.rng.as_mut().is_some_and(|rng| rng.chance(percent))
    }
}

fn stored(entry: &Entry) -> Option<StoredKey> {
    let key = entry.key.as_ref()?;
    let mut bytes = vec![key.tag().byte()];
    bytes.extend_from_slice(key.as_bytes());
    Some((entry.trail.consumer.to_string(), entry.trail.kind.to_string(), bytes))
}

impl Record for SimStore {
    type Loan = SimTx;
    type Unit = SimUnit;

    fn facts(&self) -> RecordFacts {
        RecordFacts::new("simulated", self.retention, self.units)
    }

    async fn begin(&self, _limit: Duration) -> Result<SimUnit, Error> {
        // It is never closed.
        let place = self.places.clone().acquire_owned().await.ok();
        self.call().await?;
        let id = {
            let mut server = self.lock();
            server.next_unit += 1;
            server.next_unit
        };
        Ok(SimUnit {
            store: self.clone(),
            id,
            rows: Vec::new(),
            loan: Arc::default(),
            open: true,
            _place: place,
        })
    }

    async fn probe(&self) -> Result<(), Error> {
        self.process.pass().await;
        if self.lock().down { Err(Error::new(ErrorKind::Store, "still away")) } else { Ok(()) }
    }

    async fn mark(&self, id: &TrailId, below: u32) -> Result<Option<Note>, Error> {
        self.change_note(id, |note| {
            (note.marks < below).then(|| {
                note.marks += 1;
                note.clone()
            })
        })
        .await
    }

    async fn unmark(&self, id: &TrailId, marks: Marks) -> Result<(), Error> {
        self.change_note(id, |note| match marks {
            Marks::All => note.marks = 0,
            Marks::One => note.marks = note.marks.saturating_sub(1),
        })
        .await
    }

    async fn charge(&self, id: &TrailId, attempt: u32) -> Result<(), Error> {
        self.change_note(id, |note| note.attempts = note.attempts.max(attempt)).await
    }

    async fn fail(&self, entry: &Entry, failed: &Failed) -> Result<bool, Error> {
        self.call().await?;
        let written = {
            let mut server = self.lock();
            let done = stored(entry).is_some_and(|key| server.done.contains_key(&key));
            if !done {
                let note = server.notes.entry(entry.trail.id).or_default();
                note.failed = Some(failed.clone());
            }
            !done
        };
        self.reply().await;
        Ok(written)
    }
}

/// An open unit of the simulated store.
#[derive(Debug)]
pub struct SimUnit {
    store: SimStore,
    id: u64,
    rows: Vec<(StoredKey, Done)>,
    loan: Arc<Mutex<Loan>>,
    open: bool,
    _place: Option<OwnedSemaphorePermit>,
}

#[derive(Debug, Default)]
struct Loan {
    out: bool,
    effects: Vec<Vec<u8>>,
}

impl SimUnit {
    /// Ends the unit on the server.
    fn close(&mut self) {
        self.open = false;
        let id = self.id;
        self.store.lock().claimed.retain(|_, owner| *owner != id);
    }

    /// Whether the server still knows the unit: it forgets all when it stops.
    fn is_known(&self) -> bool {
        let server = self.store.lock();
        !server.down && self.rows.iter().all(|(key, _)| server.claimed.get(key) == Some(&self.id))
    }

    fn apply(&mut self) {
        let effects = {
            let mut loan = self.loan.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut loan.effects)
        };
        {
            let mut server = self.store.lock();
            for (key, done) in self.rows.drain(..) {
                server.done.insert(key, done);
            }
            for name in effects {
                *server.effects.entry(name).or_default() += 1;
            }
        }
        self.close();
    }
}

impl Unit for SimUnit {
    type Loan = SimTx;

    async fn claim(&mut self, entries: &[Entry]) -> Result<Vec<Verdict>, Error> {
        self.store.call().await?;
        let mut verdicts = Vec::with_capacity(entries.len());
        {
            let mut server = self.store.lock();
            for entry in entries {
                let note = server.notes.get(&entry.trail.id).cloned();
                let Some(key) = stored(entry) else {
                    return Err(Error::new(ErrorKind::Internal, "a claim without a key"));
                };
                let claim = if let Some(done) = server.done.get(&key) {
                    Claim::Done {
                        same_body: done.body == entry.body,
                        conflict: entry.conflict.is_some() && done.conflict != entry.conflict,
                    }
                } else if server.claimed.contains_key(&key) {
                    Claim::Busy
                } else {
                    server.claimed.insert(key.clone(), self.id);
                    self.rows.push((key, Done { body: entry.body, conflict: entry.conflict }));
                    Claim::New
                };
                verdicts.push(Verdict::new(claim, note));
            }
        }
        self.store.reply().await;
        Ok(verdicts)
    }

    fn lend(&mut self, context: Context) -> SimTx {
        self.loan.lock().unwrap_or_else(PoisonError::into_inner).out = true;
        SimTx { context, loan: self.loan.clone(), process: self.store.process.clone() }
    }

    async fn commit(mut self) -> Ending {
        let error = || Error::new(ErrorKind::Store, "injected");
        self.store.process.pass().await;
        if self.loan.lock().unwrap_or_else(PoisonError::into_inner).out {
            self.close();
            return Ending::NotReturned;
        }
        if !self.is_known() {
            self.close();
            return Ending::Broken(error());
        }
        let (deadlock, broken, lost, applied) = {
            let mut server = self.store.lock();
            let faults = server.faults;
            let dice = (
                server.chance(faults.deadlocks),
                server.chance(faults.broken),
                server.chance(faults.lost_commits),
            );
            (dice.0, dice.1, dice.2, server.chance(50))
        };
        if deadlock || broken {
            self.close();
            return if deadlock { Ending::Redo(error()) } else { Ending::Broken(error()) };
        }
        if lost && !applied {
            self.close();
            return Ending::Unknown(error());
        }
        self.apply();
        self.store.process.pass().await;
        if lost { Ending::Unknown(error()) } else { Ending::Committed }
    }

    async fn rollback(mut self) -> Ending {
        self.store.process.pass().await;
        let known = self.is_known();
        self.close();
        if self.loan.lock().unwrap_or_else(PoisonError::into_inner).out {
            return Ending::NotReturned;
        }
        if known {
            Ending::RolledBack
        } else {
            Ending::Broken(Error::new(ErrorKind::Store, "the unit is gone"))
        }
    }
}

impl Drop for SimUnit {
    fn drop(&mut self) {
        if self.open {
            self.close();
        }
    }
}

/// What handlers of the simulation receive.
#[derive(Debug)]
pub struct SimTx {
    context: Context,
    loan: Arc<Mutex<Loan>>,
    process: Steps,
}

impl SimTx {
    /// What is known about the run.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Adds one to the effect of this name, if the unit commits.
    pub async fn add(&mut self, name: &[u8]) {
        self.process.pass().await;
        self.loan.lock().unwrap_or_else(PoisonError::into_inner).effects.push(name.to_vec());
        self.process.pass().await;
    }

    /// Ends the process, as a message that makes it run out of memory does.
    pub async fn kill_process(&self) {
        self.process.die();
        self.process.pass().await;
    }
}

impl Drop for SimTx {
    fn drop(&mut self) {
        self.loan.lock().unwrap_or_else(PoisonError::into_inner).out = false;
    }
}
