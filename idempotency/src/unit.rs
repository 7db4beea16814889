//! One unit: opened on a lane, claimed, lent, and ended in one of six ways.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncemq_core::{
    Claim, Classify, Context, Ending, Entry, Error, ErrorKind, Failure, Unit, Verdict, failpoint,
};
use tokio::sync::OwnedSemaphorePermit;

use crate::dialect::{Dialect, Trouble};
use crate::error::{bounded, store};
use crate::execute::plain;
use crate::inbox::Inner;
use crate::lane::{Lane, secret};
use crate::slot::{Recalled, Slot};
use crate::tx::Tx;

/// How long the database may take to end a unit before the end counts as unknown.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Claims that met a serialization failure are tried this often, each in a new transaction.
const CLAIM_TRIES: u32 = 5;

/// An open transaction of an inbox. Dropped, it is rolled back.
pub struct InboxUnit<DB: Dialect> {
    inner: Arc<Inner<DB>>,
    slot: Arc<Slot<DB>>,
    limit: Duration,
    // After the slot: the place is free when the lane is out of the way.
    place: Option<OwnedSemaphorePermit>,
}

impl<DB: Dialect> InboxUnit<DB> {
    pub(crate) fn new(
        inner: Arc<Inner<DB>>,
        lane: Lane<DB>,
        limit: Duration,
        place: OwnedSemaphorePermit,
    ) -> Self {
        Self { inner, slot: Slot::new(lane), limit, place: Some(place) }
    }

    async fn claim_once(&self, entries: &[Entry]) -> Result<Vec<Verdict>, sqlx::Error> {
        let mut hold = self.slot.hold()?;
        let lane = hold.lane()?;
        lane.busy();
        let (conn, reins) = lane.parts()?;
        let claim = DB::claim(conn, Some(reins), &self.inner.statements, entries);
        let verdicts = bounded(DB::CALL_LIMIT, claim).await?;
        lane.idle();
        Ok(verdicts)
    }

    async fn open_again(&self) -> Result<(), sqlx::Error> {
        let mut hold = self.slot.hold()?;
        let lane = hold.lane()?;
        lane.busy();
        bounded(DB::CALL_LIMIT, plain::<DB>(lane.conn()?, "ROLLBACK")).await?;
        lane.open(&self.inner.server, self.limit).await
    }

    /// Takes the lane back from the handler, or says why it cannot be had.
    async fn recall(&mut self) -> Result<Lane<DB>, Ending> {
        match self.slot.recall() {
            Recalled::Lane { lane, kept: false } => Ok(*lane),
            Recalled::Lane { mut lane, kept: true } => {
                let _ = end(&mut lane, "ROLLBACK").await;
                lane.close().await;
                Err(Ending::NotReturned)
            }
            // It is closed where its statement ends.
            Recalled::Away => Err(Ending::NotReturned),
        }
    }

    /// Rolls back what is left of a unit that went wrong, and closes its connection.
    async fn discard(&mut self, mut lane: Lane<DB>) {
        if !lane.is_busy() && !matches!(lane.trouble(), Some((Trouble::Broken, _))) {
            let _ = end(&mut lane, "ROLLBACK").await;
        }
        lane.close().await;
        self.place = None;
    }

    fn keep(&mut self, lane: Lane<DB>) {
        self.inner.park(lane);
        self.place = None;
    }
}

/// What was known about the unit before its end was tried.
fn known<DB: Dialect>(lane: &Lane<DB>) -> Option<Ending> {
    if lane.is_busy() {
        return Some(Ending::Broken(Error::new(
            ErrorKind::Store,
            "a statement of the handler was cancelled while the database worked on it",
        )));
    }
    match lane.trouble() {
        Some((Trouble::Redo, text)) => Some(Ending::Redo(Error::new(ErrorKind::Store, text.clone()))),
        Some((Trouble::Broken, text)) => Some(Ending::Broken(Error::new(ErrorKind::Store, text.clone()))),
        _ => None,
    }
}

/// Sends the text that ends a unit.
async fn end<DB: Dialect>(lane: &mut Lane<DB>, text: impl Into<String>) -> Result<(), sqlx::Error> {
    lane.busy();
    bounded(END_LIMIT, plain::<DB>(lane.conn()?, text)).await?;
    lane.idle();
    Ok(())
}

/// Refused by the handler's own doing: whatever it was, another version of it may do better.
fn refused(text: String) -> Ending {
    Ending::Refused(Failure::system(text))
}

impl<DB: Dialect> Unit for InboxUnit<DB> {
    type Loan = Tx<DB>;

    async fn claim(&mut self, entries: &[Entry]) -> Result<Vec<Verdict>, Error> {
        let mut tries = 1;
        loop {
            let error = match self.claim_once(entries).await {
                Ok(verdicts) => {
                    failpoint!("inbox.claimed");
                    return Ok(verdicts);
                }
                Err(error) => error,
            };
            if let ([_], true) = (entries, DB::waited(&error)) {
                // Somebody inserts the key without having announced it. This unit is over.
                if let Ok(mut hold) = self.slot.hold() {
                    hold.lane().map_err(|e| store("claim a key", e))?.failed(&error);
                }
                return Ok(vec![Verdict::new(Claim::Busy, None)]);
            }
            if DB::judge(&error) != Trouble::Redo || tries == CLAIM_TRIES {
                return Err(store("claim a key", error));
            }
            // Nothing was done yet, so a new transaction is as good as this one.
            tries += 1;
            self.open_again().await.map_err(|error| store("open a transaction", error))?;
        }
    }

    fn lend(&mut self, context: Context) -> Tx<DB> {
        Tx::new(self.slot.clone(), context)
    }

    async fn commit(mut self) -> Ending {
        let mut lane = match self.recall().await {
            Ok(lane) => lane,
            Err(ending) => return ending,
        };
        let before = match known(&lane) {
            Some(ending) => Some(ending),
            None => before_commit(&mut lane).await,
        };
        if let Some(ending) = before {
            self.discard(lane).await;
            return ending;
        }
        failpoint!("inbox.committing");
        DB::allow_commit(&lane.reins, true);
        // The release fails unless this very transaction is whole; then nothing commits.
        let text = format!("RELEASE SAVEPOINT {}; COMMIT", secret());
        let result = end(&mut lane, text).await;
        let Err(error) = result else {
            failpoint!("inbox.committed");
            self.keep(lane);
            return Ending::Committed;
        };
        let class = error.class();
        let ending = match DB::judge(&error) {
            Trouble::Redo => Ending::Redo(store("commit", error)),
            Trouble::Broken => Ending::Unknown(store("commit, or its answer was lost", error)),
            Trouble::Harmless | Trouble::Aborted => {
                // A constraint that is checked here is the message's fault as it is elsewhere.
                let why = Error::with_source(ErrorKind::Store, "the commit was refused", error);
                Ending::Refused(Failure::classified(class, why))
            }
        };
        if !matches!(ending, Ending::Unknown(_)) {
            // The server answered: nothing runs there any more.
            lane.idle();
        }
        DB::allow_commit(&lane.reins, false);
        self.discard(lane).await;
        ending
    }

    async fn rollback(mut self) -> Ending {
        let mut lane = match self.recall().await {
            Ok(lane) => lane,
            Err(ending) => return ending,
        };
        if let Some(ending) = known(&lane) {
            self.discard(lane).await;
            return ending;
        }
        let failed = lane.trouble().is_some() || DB::rolled_back(&lane.reins);
        // Going back to the savepoint fails if the handler ended the transaction.
        let text = format!("ROLLBACK TO SAVEPOINT {}; ROLLBACK", secret());
        match end(&mut lane, text).await {
            Ok(()) if failed => {
                lane.close().await;
                Ending::RolledBack
            }
            Ok(()) => {
                self.keep(lane);
                Ending::RolledBack
            }
            Err(error) => {
                let ending = match DB::judge(&error) {
                    Trouble::Broken => Ending::Broken(store("roll back", error)),
                    // The database did it before us, as SQLite does on a full disk.
                    _ if DB::rolled_back(&lane.reins) => Ending::RolledBack,
                    _ => refused(format!("the handler ended its transaction: {error}")),
                };
                if !matches!(ending, Ending::Broken(_)) {
                    lane.idle();
                }
                self.discard(lane).await;
                ending
            }
        }
    }
}

/// Looks for what makes a commit useless.
async fn before_commit<DB: Dialect>(lane: &mut Lane<DB>) -> Option<Ending> {
    if lane.settle_savepoints().await.is_err() {
        return known(lane).or_else(|| Some(refused("a savepoint could not be taken back".into())));
    }
    if let Some((_, text)) = lane.trouble() {
        return Some(refused(format!("the handler went on after a database error: {text}")));
    }
    if DB::rolled_back(&lane.reins) {
        return Some(refused("the database rolled the transaction back inside the handler".into()));
    }
    None
}

impl<DB: Dialect> fmt::Debug for InboxUnit<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxUnit").finish_non_exhaustive()
    }
}

impl<DB: Dialect> Drop for InboxUnit<DB> {
    fn drop(&mut self) {
        // Dropped without an end: what the lane holds is rolled back by closing it.
        if let Recalled::Lane { lane, .. } = self.slot.recall() {
            drop(lane);
        }
    }
}
