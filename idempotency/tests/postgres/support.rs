//! A schema of its own for each test.

use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use oncemq_core::Failure;
use oncemq_idempotency::{Inbox, Tx};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool, Postgres};

use crate::common::postgres::{left_out, unique, url};

pub type Run = fn(Fixture) -> Pin<Box<dyn Future<Output = ()>>>;

/// A named test.
pub struct Case {
    pub name: &'static str,
    pub run: Run,
}

/// Lists async functions of a fixture as cases.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub fn cases() -> Vec<crate::support::Case> {
            vec![$(crate::support::Case { name: stringify!($name), run: |f| Box::pin($name(f)) }),*]
        }
    };
}
pub(crate) use cases;

impl Case {
    pub fn trial(self) -> Trial {
        Trial::test(self.name, move || self.start()).with_ignored_flag(left_out().is_some())
    }

    fn start(self) -> Result<(), Failed> {
        let url = url()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let limited = async move {
            let fixture = Fixture::new(&url).await;
            let cleanup = (fixture.admin.clone(), fixture.schema.clone());
            tokio::time::timeout(Duration::from_secs(180), (self.run)(fixture)).await?;
            // A failed test leaves its schema for a look.
            let (admin, schema) = cleanup;
            execute(&admin, format!("DROP SCHEMA IF EXISTS {schema} CASCADE")).await;
            Ok::<_, Failed>(())
        };
        let result = runtime.block_on(limited);
        runtime.shutdown_timeout(Duration::from_secs(5));
        result
    }
}

pub struct Fixture {
    pub schema: String,
    /// Two connections that see the schema and belong to the test.
    pub admin: PgPool,
    pub options: PgConnectOptions,
}

impl Fixture {
    async fn new(url: &str) -> Self {
        let schema = unique("t");
        let options = PgConnectOptions::from_str(url)
            .unwrap()
            .application_name(&schema)
            .options([("search_path", schema.as_str())]);
        let admin = PgPoolOptions::new().max_connections(2).connect_with(options.clone()).await.unwrap();
        execute(&admin, format!("CREATE SCHEMA {schema}")).await;
        for text in [
            "CREATE TABLE account (user_id bigint PRIMARY KEY, points bigint NOT NULL)",
            "CREATE TABLE effect (k text NOT NULL UNIQUE)",
            "INSERT INTO account VALUES (1, 0)",
        ] {
            execute(&admin, text.to_owned()).await;
        }
        Self { schema, admin, options }
    }

    pub async fn pool(&self, size: u32) -> PgPool {
        PgPoolOptions::new().max_connections(size).connect_with(self.options.clone()).await.unwrap()
    }

    pub async fn inbox(&self, size: u32) -> Inbox<Postgres> {
        Inbox::open(self.pool(size).await).await.unwrap()
    }

    /// An inbox whose transactions have this isolation level unless told otherwise.
    pub async fn inbox_at(&self, size: u32, level: &str) -> Inbox<Postgres> {
        let options = self.options.clone().options([("default_transaction_isolation", level)]);
        let pool = PgPoolOptions::new().max_connections(size).connect_with(options).await.unwrap();
        Inbox::open(pool).await.unwrap()
    }

    pub async fn int(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&self.admin).await.unwrap()
    }

    pub async fn effects(&self) -> i64 {
        self.int("SELECT count(*) FROM effect").await
    }

    pub async fn done(&self) -> i64 {
        self.int("SELECT count(*) FROM oncemq_inbox").await
    }

    pub async fn execute(&self, sql: impl Into<String>) {
        execute(&self.admin, sql.into()).await;
    }
}

pub async fn execute(pool: &PgPool, sql: String) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.unwrap();
}

/// The handler of most tests.
pub async fn effect(mut tx: Tx<Postgres>) -> Result<(), Failure> {
    let key = tx.key().unwrap().text();
    sqlx::query("INSERT INTO effect VALUES ($1)").bind(key).execute(tx.db()).await?;
    Ok(())
}

/// Waits until a condition holds.
pub async fn until<F, Fut>(limit: Duration, what: &str, condition: F)
where
    F: Fn() -> Fut,
    Fut: Future<Output = bool>,
{
    let started = std::time::Instant::now();
    while !condition().await {
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
