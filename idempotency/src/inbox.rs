//! The inbox: a store of done keys beside the effects.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncemq_core::{
    Entry, Error, ErrorKind, Failed, Guard, Handler, Marks, Note, Record, RecordFacts, TrailId,
};
use sqlx::{ConnectOptions, Pool};
use tokio::sync::Semaphore;

use crate::acquire::Look;
use crate::builder::Builder;
use crate::dialect::{Dialect, Statements, Trouble};
use crate::error::{bounded, store};
use crate::execute::plain;
use crate::lane::Lane;
use crate::names::Names;
use crate::tx::Tx;
use crate::unit::InboxUnit;

/// How long a probe waits for an answer.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// Remembers which keys are done, in the database that the effects go to.
///
/// A handler behind [`handler`](Self::handler) writes through a [`Tx`]; "this key is done"
/// commits in the same transaction, or neither does. Without a consumer use
/// [`once`](Self::once).
///
/// Clones share everything. Unless it is switched off, a task of the current runtime removes
/// what is older than the retention; it ends with the last clone.
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # async fn f(database_url: &str) -> Result<(), Box<dyn std::error::Error>> {
/// use oncemq_idempotency::Inbox;
/// let pool = sqlx::PgPool::connect(database_url).await?;
/// let inbox = Inbox::open(pool).await?;
/// # Ok(()) }
/// ```
pub struct Inbox<DB: Dialect> {
    pub(crate) inner: Arc<Inner<DB>>,
}

impl<DB: Dialect> Clone for Inbox<DB> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

pub(crate) struct Inner<DB: Dialect> {
    pub(crate) pool: Pool<DB>,
    pub(crate) look: Look,
    pub(crate) names: Names,
    pub(crate) server: DB::Server,
    pub(crate) statements: Statements,
    pub(crate) retention: Duration,
    pub(crate) batch: u32,
    pub(crate) units: usize,
    /// One permit an open unit; where there is one writer, also for every other write.
    pub(crate) places: Arc<Semaphore>,
    /// Lanes between units. The last one is the warmest.
    pub(crate) lanes: Mutex<Vec<Lane<DB>>>,
    /// Tells the purge that nobody needs it any more, by being dropped.
    pub(crate) _alive: tokio::sync::oneshot::Sender<()>,
}

impl<DB: Dialect> Inner<DB> {
    /// Puts a lane aside for the next unit.
    pub(crate) fn park(&self, lane: Lane<DB>) {
        if !lane.is_old() && !self.pool.is_closed() {
            self.lanes.lock().unwrap_or_else(PoisonError::into_inner).push(lane);
        }
    }

    fn parked(&self) -> Option<Lane<DB>> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = lanes.pop()?;
        drop(lanes);
        (!lane.is_old()).then_some(lane)
    }

    /// Closes what is parked.
    pub(crate) fn forget_lanes(&self) {
        let lanes = std::mem::take(&mut *self.lanes.lock().unwrap_or_else(PoisonError::into_inner));
        drop(lanes);
    }

    /// A lane with an open unit.
    async fn open_lane(&self, limit: Duration) -> Result<Lane<DB>, sqlx::Error> {
        if let Some(mut lane) = self.parked() {
            match lane.open(&self.server, limit).await {
                Ok(()) => return Ok(lane),
                // A parked connection may have died long ago, and the others with it.
                Err(error) if DB::judge(&error) == Trouble::Broken => self.forget_lanes(),
                Err(error) => return Err(error),
            }
        }
        let mut lane =
            bounded(DB::CALL_LIMIT, Lane::take(&self.pool, &self.look, self.statements.named)).await?;
        lane.open(&self.server, limit).await?;
        Ok(lane)
    }
}

impl<DB: Dialect> Inbox<DB> {
    /// Opens the inbox of a pool with the usual settings, and creates its tables where they
    /// are missing; safe while other processes do the same.
    ///
    /// # Errors
    /// The database does not answer, the account may not create the tables, they were made
    /// by a version that this one cannot read, or the pool cannot hold an inbox.
    pub async fn open(pool: Pool<DB>) -> Result<Self, Error> {
        Builder::new(pool).open().await
    }

    /// Opens it with other settings.
    pub fn builder(pool: Pool<DB>) -> Builder<DB> {
        Builder::new(pool)
    }

    /// Guards a handler: its effect and the record of the key commit together.
    pub fn handler<H, M>(&self, handler: H) -> Guard<Self, H, M>
    where
        H: Handler<Tx<DB>, M>,
        M: Send + 'static,
    {
        Guard::new(Arc::new(self.clone()), handler)
    }

    /// The pool it was opened with.
    pub fn pool(&self) -> &Pool<DB> {
        &self.inner.pool
    }

    /// The statements that make the tables, for people who run migrations themselves and
    /// open with `Topology::Verify`.
    pub fn schema(&self) -> String {
        crate::schema::text::<DB>(&self.inner.names, &crate::schema::INBOX)
    }
}

impl<DB: Dialect> Record for Inbox<DB> {
    type Loan = Tx<DB>;
    type Unit = InboxUnit<DB>;

    fn facts(&self) -> RecordFacts {
        RecordFacts::new(DB::STORE, self.inner.retention, self.inner.units)
    }

    async fn begin(&self, limit: Duration) -> Result<InboxUnit<DB>, Error> {
        let closed = |_| Error::new(ErrorKind::Closed, "the inbox is closed");
        let place = self.inner.places.clone().acquire_owned().await.map_err(closed)?;
        let lane = self.inner.open_lane(limit).await.map_err(|error| store("open a transaction", error))?;
        Ok(InboxUnit::new(self.inner.clone(), lane, limit, place))
    }

    async fn probe(&self) -> Result<(), Error> {
        let options = self.inner.pool.connect_options();
        // A connection of its own: the pool may be exhausted because the server hangs.
        let probe = async {
            let mut conn = options.connect().await?;
            plain::<DB>(&mut conn, self.inner.statements.probe.to_string()).await?;
            sqlx::Connection::close(conn).await
        };
        bounded(PROBE_LIMIT, probe).await.map_err(|error| store("connect", error))
    }

    async fn mark(&self, id: &TrailId, below: u32) -> Result<Option<Note>, Error> {
        self.add_mark(id, below).await.map_err(|error| store("write a mark", error))
    }

    async fn unmark(&self, id: &TrailId, marks: Marks) -> Result<(), Error> {
        self.take_marks(id, marks).await.map_err(|error| store("take a mark back", error))
    }

    async fn charge(&self, id: &TrailId, attempt: u32) -> Result<(), Error> {
        self.set_attempts(id, attempt).await.map_err(|error| store("write an attempt", error))
    }

    async fn fail(&self, entry: &Entry, failed: &Failed) -> Result<bool, Error> {
        self.add_failed(entry, failed).await.map_err(|error| store("note a failure", error))
    }
}

impl<DB: Dialect> fmt::Debug for Inbox<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox")
            .field("store", &DB::STORE)
            .field("names", &self.inner.names)
            .field("retention", &self.inner.retention)
            .field("units", &self.inner.units)
            .finish_non_exhaustive()
    }
}
