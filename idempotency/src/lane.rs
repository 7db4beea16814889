//! A connection for units: taken from the pool once, used for many units, never given back.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use sqlx::pool::PoolConnection;
use sqlx::{Connection, Either, Executor, Pool};
use tokio::runtime::Handle;

use crate::acquire::{Look, acquire};
use crate::dialect::{Dialect, Trouble};
use crate::error::{bounded, refused};
use crate::execute::{Statement, plain};
use crate::flow::Out;
use crate::sql_text::Kind;

/// A lane older than this is replaced at its next unit.
const AGE_MAX: Duration = Duration::from_secs(30 * 60);

/// The savepoint around every handler. Nobody outside this process can guess it, and a
/// handler has no use for it.
pub(crate) fn secret() -> &'static str {
    static SECRET: OnceLock<String> = OnceLock::new();
    SECRET.get_or_init(|| {
        use std::hash::{BuildHasher, Hasher, RandomState};
        // The standard library's hash keys come from the system's random source.
        let word = || RandomState::new().build_hasher().finish();
        format!("oncemq_{:016x}{:016x}", word(), word())
    })
}

/// Where a statement on the lane stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// None is open.
    Idle,
    /// The database works on one.
    Waiting,
    /// Its reader holds a row; dropped here, it only stopped reading.
    AtRow,
}

/// A pool connection in the hands of units.
pub(crate) struct Lane<DB: Dialect> {
    // Always there; an option so that `drop` can take it into a runtime.
    conn: Option<PoolConnection<DB>>,
    pub(crate) reins: DB::Reins,
    pool: Pool<DB>,
    runtime: Handle,
    born: Instant,
    /// sqlx counts one open transaction, so that a handler's `begin` is a savepoint.
    deep: bool,
    step: Step,
    trouble: Option<(Trouble, String)>,
    /// A savepoint that was dropped and not ended.
    go_back_to: Option<String>,
    /// The driver may keep prepared statements by name.
    named: bool,
}

impl<DB: Dialect> fmt::Debug for Lane<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("step", &self.step).field("trouble", &self.trouble).finish()
    }
}

impl<DB: Dialect> Lane<DB> {
    /// Takes a connection out of the pool for good.
    pub(crate) async fn take(pool: &Pool<DB>, look: &Look, named: bool) -> Result<Self, sqlx::Error> {
        let mut conn = acquire(pool, look).await?;
        // From here on it is closed wherever it is dropped: no transaction of ours ever
        // reaches the pool.
        conn.close_on_drop();
        let mut fresh = Fresh(Some((conn, Handle::current())));
        let reins = match &mut fresh.0 {
            Some((conn, _)) => DB::harness(conn).await?,
            None => return Err(sqlx::Error::PoolClosed),
        };
        let Some((conn, runtime)) = fresh.0.take() else { return Err(sqlx::Error::PoolClosed) };
        Ok(Self {
            conn: Some(conn),
            reins,
            pool: pool.clone(),
            runtime,
            born: Instant::now(),
            deep: false,
            step: Step::Idle,
            trouble: None,
            go_back_to: None,
            named,
        })
    }

    pub(crate) fn is_old(&self) -> bool {
        self.born.elapsed() > self.pool.options().get_max_lifetime().unwrap_or(AGE_MAX).min(AGE_MAX)
    }

    pub(crate) fn conn(&mut self) -> Result<&mut DB::Connection, sqlx::Error> {
        match &mut self.conn {
            Some(conn) => Ok(conn),
            None => Err(sqlx::Error::PoolClosed),
        }
    }

    pub(crate) fn conn_ref(&self) -> Option<&DB::Connection> {
        self.conn.as_deref()
    }

    /// Both at once, for claims.
    pub(crate) fn parts(&mut self) -> Result<(&mut DB::Connection, &mut DB::Reins), sqlx::Error> {
        match &mut self.conn {
            Some(conn) => Ok((conn, &mut self.reins)),
            None => Err(sqlx::Error::PoolClosed),
        }
    }

    /// Opens a unit.
    pub(crate) async fn open(&mut self, server: &DB::Server, limit: Duration) -> Result<(), sqlx::Error> {
        DB::allow_commit(&self.reins, false);
        DB::unit_opens(&self.reins, limit);
        self.trouble = None;
        self.go_back_to = None;
        let text = DB::begin_text(server, secret(), limit);
        self.step = Step::Waiting;
        let deep = self.deep;
        let conn = self.conn()?;
        if deep {
            bounded(DB::CALL_LIMIT, plain::<DB>(conn, text)).await?;
        } else {
            let begin = conn.begin_with(sqlx::AssertSqlSafe(text));
            // Forgotten, so that the driver's depth stays 1 and a handler's own `begin` and
            // `commit` are savepoints inside the unit. The depth is never counted down: the
            // lane belongs to units until it is closed.
            std::mem::forget(bounded(DB::CALL_LIMIT, begin).await?);
            self.deep = true;
        }
        self.step = Step::Idle;
        Ok(())
    }

    /// Runs a piece of our own inside the unit. If the future is dropped the lane knows that
    /// something was left running.
    pub(crate) fn busy(&mut self) {
        self.step = Step::Waiting;
    }

    pub(crate) fn idle(&mut self) {
        self.step = Step::Idle;
    }

    /// Whether something still runs on the connection.
    pub(crate) fn is_busy(&self) -> bool {
        self.step == Step::Waiting
    }

    /// Notes an error of our own statement.
    pub(crate) fn failed(&mut self, error: &sqlx::Error) {
        self.step = Step::Idle;
        self.saw(error);
    }

    pub(crate) fn trouble(&self) -> Option<&(Trouble, String)> {
        self.trouble.as_ref()
    }

    pub(crate) fn leave_savepoint(&mut self, name: String) {
        // Of nested ones the outermost is dropped last, and going back to it ends all.
        self.go_back_to = Some(name);
    }

    /// Takes back a savepoint that was dropped without an end.
    pub(crate) async fn settle_savepoints(&mut self) -> Result<(), sqlx::Error> {
        let Some(name) = self.go_back_to.take() else { return Ok(()) };
        let text = format!("ROLLBACK TO SAVEPOINT {name}; RELEASE SAVEPOINT {name}");
        self.step = Step::Waiting;
        let result = plain::<DB>(self.conn()?, text).await;
        self.step = Step::Idle;
        match &result {
            Ok(()) => self.heal(),
            Err(error) => self.saw(error),
        }
        result
    }

    /// Whether a handler may have the bare connection.
    pub(crate) fn usable(&self) -> Result<(), sqlx::Error> {
        self.may_run(Kind::Ordinary)
    }

    /// Whether a handler may send a statement of this kind now.
    fn may_run(&self, kind: Kind) -> Result<(), sqlx::Error> {
        if self.step == Step::Waiting {
            return Err(refused("a statement of this transaction was cancelled; nothing can follow it"));
        }
        if DB::rolled_back(&self.reins) {
            return Err(refused("the database rolled this transaction back; nothing can follow it"));
        }
        match &self.trouble {
            None => Ok(()),
            Some((Trouble::Aborted, _)) if kind == Kind::RollbackTo || self.go_back_to.is_some() => Ok(()),
            Some((_, text)) => Err(refused(&format!("this transaction failed and cannot go on: {text}"))),
        }
    }

    /// Remembers what an error means for the unit. The worst one stays.
    fn saw(&mut self, error: &sqlx::Error) {
        let trouble = DB::judge(error);
        let worse = match (&self.trouble, trouble) {
            (_, Trouble::Harmless) => false,
            (None | Some((Trouble::Aborted, _)), _) => true,
            (Some(_), _) => false,
        };
        if worse {
            self.trouble = Some((trouble, error.to_string()));
        }
    }

    fn heal(&mut self) {
        if let Some((Trouble::Aborted, _)) = self.trouble {
            self.trouble = None;
        }
    }

    /// Sends a handler's statement and hands its results on.
    pub(crate) async fn run(
        &mut self,
        statement: Statement<DB>,
        kind: Kind,
        out: &mut Out<Either<DB::QueryResult, DB::Row>>,
    ) -> Result<(), sqlx::Error> {
        self.may_run(kind)?;
        self.settle_savepoints().await?;
        self.step = Step::Waiting;
        let statement = if self.named { statement } else { statement.unnamed() };
        let Self { conn: Some(conn), step, .. } = self else { return Err(sqlx::Error::PoolClosed) };
        let mut stream = DB::executor(conn).fetch_many(statement);
        let result = loop {
            match stream.try_next().await {
                Ok(Some(item)) => {
                    *step = Step::AtRow;
                    out.item(item).await;
                    *step = Step::Waiting;
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        drop(stream);
        self.finish(kind, result)
    }

    /// The same for at most one row.
    pub(crate) async fn run_optional(
        &mut self,
        statement: Statement<DB>,
        kind: Kind,
    ) -> Result<Option<DB::Row>, sqlx::Error> {
        self.may_run(kind)?;
        self.settle_savepoints().await?;
        self.step = Step::Waiting;
        let statement = if self.named { statement } else { statement.unnamed() };
        let result = DB::executor(self.conn()?).fetch_optional(statement).await;
        self.finish(kind, result)
    }

    /// The same for a statement that is only prepared.
    pub(crate) async fn prepare(
        &mut self,
        sql: sqlx::SqlStr,
        kind: Kind,
        parameters: &[DB::TypeInfo],
    ) -> Result<DB::Statement, sqlx::Error> {
        self.may_run(kind)?;
        self.settle_savepoints().await?;
        self.step = Step::Waiting;
        let result = DB::executor(self.conn()?).prepare_with(sql, parameters).await;
        // Preparing a ROLLBACK TO does not run it.
        self.finish(Kind::Ordinary, result)
    }

    fn finish<T>(&mut self, kind: Kind, result: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        self.step = Step::Idle;
        match &result {
            Ok(_) if kind == Kind::RollbackTo => self.heal(),
            Ok(_) => {}
            Err(error) => self.saw(error),
        }
        result
    }

    /// Closes the connection and, where a statement may still run, has it stopped. Waits a
    /// moment for that, so that its locks are gone when the unit is run again.
    pub(crate) async fn close(mut self) {
        if let Some(stop) = self.stop() {
            drop(self);
            // Whatever is left ends by the limits the unit was opened with.
            let _ = tokio::time::timeout(Duration::from_secs(2), stop).await;
        }
    }

    fn stop(&mut self) -> Option<tokio::task::JoinHandle<()>> {
        if self.step != Step::Waiting {
            return None;
        }
        self.step = Step::Idle;
        Some(self.runtime.spawn(DB::stop(&self.reins, &self.pool)))
    }
}

impl<DB: Dialect> Drop for Lane<DB> {
    fn drop(&mut self) {
        let _ = self.stop();
        // Closing needs a runtime, and this may be a thread without one.
        let _inside = self.runtime.enter();
        self.conn = None;
    }
}

/// A connection on its way to be a lane; safe to drop on any thread.
struct Fresh<DB: Dialect>(Option<(PoolConnection<DB>, Handle)>);

impl<DB: Dialect> Drop for Fresh<DB> {
    fn drop(&mut self) {
        if let Some((conn, runtime)) = self.0.take() {
            let _inside = runtime.enter();
            drop(conn);
        }
    }
}
