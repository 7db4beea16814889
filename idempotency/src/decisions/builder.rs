//! Settings of a memory of decisions, checked when it is opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncemq_core::{Error, Topology};
use sqlx::Pool;
use tokio::sync::oneshot;

use super::{Decisions, Inner};
use crate::acquire::Look;
use crate::builder::{BATCH, Purge, RETENTION, check_purge};
use crate::dialect::Dialect;
use crate::names::Names;
use crate::purge;
use crate::schema::{self, DECISIONS};

/// Settings of [`Decisions`].
#[must_use = "nothing is opened before `open`"]
pub struct DecisionsBuilder<DB: Dialect> {
    pool: Pool<DB>,
    retention: Duration,
    schema: Option<String>,
    prefix: Option<String>,
    topology: Topology,
    purge: Purge,
    named: bool,
}

impl<DB: Dialect> DecisionsBuilder<DB> {
    pub(super) fn new(pool: Pool<DB>) -> Self {
        Self {
            pool,
            retention: RETENTION,
            schema: None,
            prefix: None,
            topology: Topology::Declare,
            purge: Purge::default(),
            named: true,
        }
    }

    /// How long a decision is remembered; 30 days unless set. Choose more than the time in
    /// which somebody may still ask: what was committed before counts as rolled back.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// The schema of the tables; the connection's current one unless set. On SQLite the name
    /// of an attached database.
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

    /// Who removes expired rows.
    pub fn purge(mut self, purge: Purge) -> Self {
        self.purge = purge;
        self
    }

    /// Says that a proxy which pools by transaction, such as PgBouncer, stands before the
    /// server: no prepared statement is kept between two of them.
    pub fn behind_pooler(mut self) -> Self {
        self.named = false;
        self
    }

    /// Opens the memory. Cancel safe.
    ///
    /// # Errors
    /// As for [`Decisions::open`]; also a setting that cannot work, such as no retention.
    pub async fn open(self) -> Result<Decisions<DB>, Error> {
        let batch = check_purge(self.retention, self.purge)?;
        let names = Names::new(self.schema, self.prefix)?;
        let (names, _) = DB::learn(&self.pool, &names, &DECISIONS).await?;
        schema::ready::<DB>(&self.pool, &names, &DECISIONS, self.topology).await?;
        let (alive, over) = oneshot::channel();
        let inner = Arc::new(Inner {
            texts: DB::decisions(&names),
            look: Look::default(),
            named: self.named,
            retention: self.retention,
            batch: batch.unwrap_or(BATCH),
            pool: self.pool,
            names,
            _alive: alive,
        });
        purge::keep(&inner, over, batch.is_some());
        Ok(Decisions { inner })
    }
}

impl<DB: Dialect> fmt::Debug for DecisionsBuilder<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionsBuilder")
            .field("retention", &self.retention)
            .field("schema", &self.schema)
            .field("prefix", &self.prefix)
            .field("topology", &self.topology)
            .field("purge", &self.purge)
            .finish_non_exhaustive()
    }
}
