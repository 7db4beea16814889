//! Tables and statements on SQLite.

use std::sync::Arc;

use sqlx::{Connection, Pool, Sqlite};

use crate::dialect::{DecisionTexts, Statements};
use crate::execute::plain;
use crate::names::Names;
use crate::notes::Aside;
use crate::schema::{INBOX, Tables};

/// Microseconds since 1970, UTC, by the machine that holds the file.
const NOW: &str = "CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000";
/// A note's columns, in the order that is read.
const NOTE: &str = "failed_class, failed_reason, failed_at, attempts, marks";

pub(super) fn ddl(names: &Names, tables: &Tables) -> Vec<String> {
    let mut ddl = if tables.main == INBOX.main { inbox_tables(names) } else { decision_tables(names) };
    let Tables { version_table, version, oldest_reader, .. } = tables;
    let name = names.table(version_table);
    ddl.push(format!(
        "CREATE TABLE IF NOT EXISTS {name} (
  id INTEGER NOT NULL PRIMARY KEY,
  version INTEGER NOT NULL,
  oldest_reader INTEGER NOT NULL
)"
    ));
    ddl.push(format!("INSERT OR IGNORE INTO {name} VALUES (1, {version}, {oldest_reader})"));
    ddl
}

/// A table that is only added to: a row is a transaction that is decided, and stays so.
fn decision_tables(names: &Names) -> Vec<String> {
    let (decision, bare) = (names.decision(), names.index("decision"));
    vec![
        format!(
            "CREATE TABLE IF NOT EXISTS {decision} (
  id BLOB NOT NULL PRIMARY KEY,
  committed INTEGER NOT NULL,
  decided_at INTEGER NOT NULL
) WITHOUT ROWID"
        ),
        format!("CREATE INDEX IF NOT EXISTS {} ON {bare} (decided_at)", names.table("decision_decided_at")),
    ]
}

fn inbox_tables(names: &Names) -> Vec<String> {
    let (inbox, note) = (names.inbox(), names.note());
    let (note_bare, inbox_bare) = (names.index("inbox_note"), names.index("inbox"));
    let in_schema = |index: &str| names.table(index);
    vec![
        format!(
            "CREATE TABLE IF NOT EXISTS {inbox} (
  k BLOB NOT NULL PRIMARY KEY,
  consumer TEXT NOT NULL,
  kind TEXT NOT NULL,
  key_text TEXT NOT NULL,
  message_id TEXT,
  origin TEXT NOT NULL,
  body BLOB NOT NULL,
  conflict BLOB,
  outcome TEXT,
  done_at INTEGER NOT NULL
) WITHOUT ROWID"
        ),
        format!("CREATE INDEX IF NOT EXISTS {} ON {inbox_bare} (done_at)", in_schema("inbox_done_at")),
        format!(
            "CREATE TABLE IF NOT EXISTS {note} (
  d BLOB NOT NULL PRIMARY KEY,
  k BLOB,
  consumer TEXT,
  kind TEXT,
  key_text TEXT,
  failed_class TEXT,
  failed_reason TEXT,
  failed_at INTEGER,
  attempts INTEGER NOT NULL DEFAULT 0,
  marks INTEGER NOT NULL DEFAULT 0,
  touched_at INTEGER NOT NULL
) WITHOUT ROWID"
        ),
        format!(
            "CREATE INDEX IF NOT EXISTS {} ON {note_bare} (touched_at)",
            in_schema("inbox_note_touched_at")
        ),
    ]
}

pub(super) async fn create(pool: &Pool<Sqlite>, names: &Names, tables: &Tables) -> Result<(), sqlx::Error> {
    let mut aside = Aside::<Sqlite>::take(pool).await?;
    let mut tx = aside.conn()?.begin_with("BEGIN IMMEDIATE").await?;
    for statement in ddl(names, tables) {
        plain::<Sqlite>(&mut tx, statement).await?;
    }
    tx.commit().await?;
    aside.done();
    Ok(())
}

pub(super) fn columns(names: &Names, table: &str) -> String {
    let schema = names.schema().unwrap_or("main");
    format!("SELECT name FROM pragma_table_info({}, {})", literal(&names.bare(table)), literal(schema))
}

pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

pub(super) fn statements(names: &Names, named: bool) -> Statements {
    let (inbox, note) = (names.inbox(), names.note());
    let touch = format!("touched_at = {NOW}");
    let claim: Arc<str> = format!(
        "INSERT INTO {inbox} (k, consumer, kind, key_text, message_id, origin, body, conflict, done_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, {NOW}) ON CONFLICT (k) DO NOTHING RETURNING 1"
    )
    .into();
    Statements {
        claim: claim.clone(),
        claim_beside: claim,
        named,
        done: format!("SELECT body, conflict, outcome FROM {inbox} WHERE k = $1").into(),
        // An empty file, made because the old one is gone, is no store.
        probe: format!("SELECT version FROM {}", names.table(INBOX.version_table)).into(),
        note: format!("SELECT {NOTE} FROM {note} WHERE d = $1").into(),
        mark: format!(
            "INSERT INTO {note} (d, marks, touched_at) VALUES ($1, 1, {NOW})
ON CONFLICT (d) DO UPDATE SET marks = marks + 1, {touch} WHERE marks < $2 RETURNING {NOTE}"
        )
        .into(),
        unmark: format!("UPDATE {note} SET marks = max(marks - $2, 0), {touch} WHERE d = $1").into(),
        charge: format!(
            "INSERT INTO {note} (d, attempts, touched_at) VALUES ($1, $2, {NOW})
ON CONFLICT (d) DO UPDATE SET attempts = max(attempts, excluded.attempts), {touch}"
        )
        .into(),
        fail: format!(
            "INSERT INTO {note} (d, k, consumer, kind, failed_class, failed_reason, key_text, failed_at, touched_at)
SELECT $1, $2, $3, $4, $5, $6, $7, {NOW}, {NOW} WHERE NOT EXISTS (SELECT 1 FROM {inbox} WHERE k = $2)
ON CONFLICT (d) DO UPDATE SET k = excluded.k, consumer = excluded.consumer, kind = excluded.kind,
key_text = excluded.key_text, failed_class = excluded.failed_class,
failed_reason = excluded.failed_reason, failed_at = excluded.failed_at, {touch}"
        )
        .into(),
        purge_done: format!(
            "DELETE FROM {inbox} WHERE k IN
(SELECT k FROM {inbox} WHERE done_at < {NOW} - $1 ORDER BY done_at LIMIT $2)"
        )
        .into(),
        purge_notes: format!(
            "DELETE FROM {note} WHERE d IN
(SELECT d FROM {note} WHERE touched_at < {NOW} - $1 ORDER BY touched_at LIMIT $2)"
        )
        .into(),
        finish: format!("UPDATE {inbox} SET outcome = $2 WHERE k = $1 AND outcome IS NULL").into(),
    }
}

pub(super) fn decisions(names: &Names) -> DecisionTexts {
    let decision = names.decision();
    let insert = |or: &str, committed: i64| {
        format!("INSERT {or} INTO {decision} (id, committed, decided_at) VALUES ($1, {committed}, {NOW})")
    };
    DecisionTexts {
        commit: insert("", 1).into(),
        // Alone, the statement would fail and the rest of the unit could commit. Elsewhere
        // the driver must not lose its transaction behind its back.
        commit_in_unit: insert("OR ROLLBACK", 1).into(),
        read: format!("SELECT committed FROM {decision} WHERE id = $1").into(),
        // Whoever is deciding holds the file, and is waited for by the busy timeout.
        begin: "BEGIN IMMEDIATE",
        refuse: insert("OR IGNORE", 0).into(),
        purge: format!(
            "DELETE FROM {decision} WHERE id IN
(SELECT id FROM {decision} WHERE decided_at < {NOW} - $1 ORDER BY decided_at LIMIT $2)"
        )
        .into(),
    }
}
