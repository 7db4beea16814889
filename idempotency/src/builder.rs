//! Settings of an inbox, checked when it is opened.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncemq_core::{Error, Topology};
use sqlx::Pool;
use tokio::sync::{Semaphore, oneshot};

use crate::acquire::Look;
use crate::dialect::Dialect;
use crate::error::config;
use crate::inbox::{Inbox, Inner};
use crate::names::Names;
use crate::{purge, schema};

pub(crate) const RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);
pub(crate) const BATCH: u32 = 1000;
/// What an i64 of microseconds can hold, with room to add a date.
const RETENTION_MAX: Duration = Duration::from_secs(1000 * 365 * 24 * 3600);

/// Settings of an [`Inbox`].
#[must_use = "nothing is opened before `open`"]
pub struct Builder<DB: Dialect> {
    pool: Pool<DB>,
    retention: Duration,
    schema: Option<String>,
    prefix: Option<String>,
    topology: Topology,
    max_units: Option<usize>,
    purge: Purge,
    named: bool,
}

/// Who removes what is older than the retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purge {
    /// A task of this process, in steps of so many rows. One process at a time does it,
    /// however many are running. Where the account may not delete nothing is removed;
    /// [`Inbox::purge`] says so.
    Batch(u32),
    /// Nobody, until somebody calls [`Inbox::purge`]. Needs no right to delete.
    Off,
}

impl Default for Purge {
    fn default() -> Self {
        Purge::Batch(BATCH)
    }
}

/// Refuses what cannot work; the purge's batch, if it is on.
pub(crate) fn check_purge(retention: Duration, purge: Purge) -> Result<Option<u32>, Error> {
    if retention < Duration::from_secs(1) || retention > RETENTION_MAX {
        return Err(config("the retention must be between one second and a thousand years"));
    }
    match purge {
        Purge::Batch(0) => Err(config("a purge in steps of 0 rows never ends; use Purge::Off")),
        Purge::Batch(rows) => Ok(Some(rows)),
        Purge::Off => Ok(None),
    }
}

impl<DB: Dialect> Builder<DB> {
    pub(crate) fn new(pool: Pool<DB>) -> Self {
        Self {
            pool,
            retention: RETENTION,
            schema: None,
            prefix: None,
            topology: Topology::Declare,
            max_units: None,
            purge: Purge::default(),
            named: true,
        }
    }

    /// How long a done key is remembered; 30 days unless set. Choose more than the longest
    /// way of a message: the broker's retention, the ladder, and the age at which people
    /// still replay dead letters. After it the key may run again.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// The schema of the tables; the connection's current one unless set. On SQLite the
    /// name of an attached database.
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = Some(name.into());
        self
    }

    /// What the names of the tables begin with; `oncemq_` unless set.
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Whether tables are made, checked or assumed. `Verify` and `Trust` need no right to
    /// create.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// At most so many units at once. Without it the pool's size decides: one connection
    /// is kept for notes, the others may each hold a unit.
    pub fn max_units(mut self, units: usize) -> Self {
        self.max_units = Some(units);
        self
    }

    /// Who removes expired rows.
    pub fn purge(mut self, purge: Purge) -> Self {
        self.purge = purge;
        self
    }

    /// Says that a proxy which pools by transaction, such as PgBouncer, stands before the
    /// server: no prepared statement is kept between two of them. Statements of handlers
    /// through `tx.db()` are covered, those of the application elsewhere are its own.
    pub fn behind_pooler(mut self) -> Self {
        self.named = false;
        self
    }

    /// Opens the inbox. Cancel safe.
    ///
    /// # Errors
    /// As for [`Inbox::open`]; also a setting that cannot work, such as no retention.
    pub async fn open(self) -> Result<Inbox<DB>, Error> {
        let batch = self.check()?;
        let names = Names::new(self.schema, self.prefix)?;
        let (names, server) = DB::learn(&self.pool, &names, &schema::INBOX).await?;
        schema::ready::<DB>(&self.pool, &names, &schema::INBOX, self.topology).await?;
        let mut units = DB::units(self.pool.options().get_max_connections());
        if let Some(most) = self.max_units {
            units = units.min(most);
        }
        let (alive, over) = oneshot::channel();
        let inner = Arc::new(Inner {
            statements: DB::statements(&names, &server, self.named),
            places: Arc::new(Semaphore::new(units.max(1))),
            pool: self.pool,
            look: Look::default(),
            names,
            server,
            retention: self.retention,
            batch: batch.unwrap_or(BATCH),
            units,
            lanes: Mutex::default(),
            _alive: alive,
        });
        purge::keep(&inner, over, batch.is_some());
        Ok(Inbox { inner })
    }

    /// Refuses settings that cannot work; the purge's batch, if it is on.
    fn check(&self) -> Result<Option<u32>, Error> {
        if self.max_units == Some(0) {
            return Err(config("an inbox needs at least one unit: max_units(0) runs nothing"));
        }
        check_purge(self.retention, self.purge)
    }
}

impl<DB: Dialect> std::fmt::Debug for Builder<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("retention", &self.retention)
            .field("schema", &self.schema)
            .field("prefix", &self.prefix)
            .field("topology", &self.topology)
            .field("max_units", &self.max_units)
            .field("purge", &self.purge)
            .finish_non_exhaustive()
    }
}
