//! The tables: made, checked, and understood across versions.

use std::sync::Arc;

use oncemq_core::{Error, ErrorKind, Topology};
use sqlx::Pool;

use crate::dialect::Dialect;
use crate::error::{bounded, store};
use crate::execute::rows;
use crate::names::Names;
use crate::notes::Aside;

/// Creations that met another process doing the same are tried this often.
const TRIES: u32 = 5;

/// Tables that are made and checked together. Each set has a version of its own, so that a
/// change of one asks nothing of who uses the other.
#[doc(hidden)]
#[derive(Debug)]
pub struct Tables {
    /// The table by which a search path is asked where the set is.
    pub(crate) main: &'static str,
    /// The table that holds the version.
    pub(crate) version_table: &'static str,
    /// The version that this code makes.
    pub(crate) version: i64,
    /// The oldest code that can work with tables of this version. During a rolling deploy
    /// both work on them.
    pub(crate) oldest_reader: i64,
    /// Every table and its columns.
    all: &'static [(&'static str, &'static [&'static str])],
}

const VERSION_COLUMNS: &[&str] = &["id", "version", "oldest_reader"];

pub(crate) static INBOX: Tables = Tables {
    main: "inbox",
    version_table: "inbox_schema",
    version: 1,
    oldest_reader: 1,
    all: &[
        ("inbox_schema", VERSION_COLUMNS),
        (
            "inbox",
            &[
                "k",
                "consumer",
                "kind",
                "key_text",
                "message_id",
                "origin",
                "body",
                "conflict",
                "outcome",
                "done_at",
            ],
        ),
        (
            "inbox_note",
            &[
                "d",
                "k",
                "consumer",
                "kind",
                "key_text",
                "failed_class",
                "failed_reason",
                "failed_at",
                "attempts",
                "marks",
                "touched_at",
            ],
        ),
    ],
};

pub(crate) static DECISIONS: Tables = Tables {
    main: "decision",
    version_table: "decision_schema",
    version: 1,
    oldest_reader: 1,
    all: &[("decision_schema", VERSION_COLUMNS), ("decision", &["id", "committed", "decided_at"])],
};

/// The text for people who run migrations themselves.
pub(crate) fn text<DB: Dialect>(names: &Names, tables: &Tables) -> String {
    let mut text = String::new();
    for statement in DB::ddl(names, tables) {
        text.push_str(&statement);
        text.push_str(";\n");
    }
    text
}

/// Makes or checks the tables.
pub(crate) async fn ready<DB: Dialect>(
    pool: &Pool<DB>,
    names: &Names,
    tables: &Tables,
    topology: Topology,
) -> Result<(), Error> {
    if topology == Topology::Trust {
        return Ok(());
    }
    let mut tries = 0;
    loop {
        let missing = missing::<DB>(pool, names, tables).await.map_err(|e| store("look at its tables", e))?;
        if missing.is_empty() {
            return readable::<DB>(pool, names, tables).await;
        }
        // The version is looked at first: in tables of a newer version, columns may be gone
        // on purpose.
        if !missing.iter().any(|m| m.ends_with(tables.version_table)) {
            readable::<DB>(pool, names, tables).await?;
        }
        let partial = missing.iter().any(|m| m.contains(" column "));
        if topology == Topology::Verify || partial {
            return Err(Error::new(
                ErrorKind::Schema,
                format!(
                    "the record tables are not complete, missing: {}; run the statements of schema(){}",
                    missing.join(", "),
                    if partial { "" } else { ", or open with Topology::Declare" }
                ),
            ));
        }
        tries += 1;
        match DB::create(pool, names, tables).await {
            Ok(()) => {}
            Err(error) if tries == TRIES => return Err(cannot_create(error)),
            // Another process made a part at the same time; looking again tells.
            Err(error) if is_race(&error) => {}
            Err(error) => return Err(cannot_create(error)),
        }
        if tries > TRIES {
            return Err(Error::new(
                ErrorKind::Schema,
                format!("the record tables were created and are not there: {}", missing.join(", ")),
            ));
        }
    }
}

fn cannot_create(error: sqlx::Error) -> Error {
    Error::with_source(
        ErrorKind::Store,
        "cannot create the record tables; let an account with that right run the statements of schema()",
        error,
    )
}

/// Two sessions created the same thing: the catalog's unique indexes and "already exists"
/// errors say so.
fn is_race(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|e| e.code());
    matches!(code.as_deref(), Some("23505" | "42P07" | "42P06" | "42710" | "XX000" | "40P01" | "5"))
}

async fn missing<DB: Dialect>(
    pool: &Pool<DB>,
    names: &Names,
    tables: &Tables,
) -> Result<Vec<String>, sqlx::Error> {
    let look = async {
        let mut aside = Aside::<DB>::take(pool).await?;
        let mut missing = Vec::new();
        for (table, columns) in tables.all {
            let sql: Arc<str> = DB::columns_sql(names, table).into();
            let mut there = Vec::new();
            for row in rows::<DB>(aside.conn()?, &sql).await? {
                there.extend(DB::text(&row, 0)?);
            }
            if there.is_empty() {
                missing.push(format!("table {}", names.bare(table)));
                continue;
            }
            for column in columns.iter().filter(|c| !there.iter().any(|t| t == *c)) {
                missing.push(format!("{} column {column}", names.bare(table)));
            }
        }
        aside.done();
        Ok(missing)
    };
    bounded(DB::CALL_LIMIT, look).await
}

/// Refuses tables that are newer than this code can read.
async fn readable<DB: Dialect>(pool: &Pool<DB>, names: &Names, tables: &Tables) -> Result<(), Error> {
    let table = tables.version_table;
    let ours = tables.version;
    let look = async {
        let mut aside = Aside::<DB>::take(pool).await?;
        let sql: Arc<str> =
            format!("SELECT version, oldest_reader FROM {} ORDER BY version DESC", names.table(table)).into();
        let found = rows::<DB>(aside.conn()?, &sql).await?;
        let versions = match found.first() {
            Some(row) => DB::int(row, 0)?.zip(DB::int(row, 1)?),
            None => None,
        };
        aside.done();
        Ok(versions)
    };
    let versions = bounded(DB::CALL_LIMIT, look).await.map_err(|e| store("read its version", e))?;
    match versions {
        Some((_, oldest)) if oldest <= ours => Ok(()),
        Some((version, oldest)) => Err(Error::new(
            ErrorKind::Schema,
            format!(
                "the record tables have version {version} and need code that reads version {oldest}; this code reads {ours}: update oncemq"
            ),
        )),
        None => Err(Error::new(
            ErrorKind::Schema,
            format!("table {} is empty; run the statements of schema()", names.bare(table)),
        )),
    }
}
