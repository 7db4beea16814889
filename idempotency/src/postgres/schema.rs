//! Tables and statements on PostgreSQL.

use std::sync::Arc;

use sqlx::{Connection, PgConnection, Pool, Postgres};

use crate::dialect::{DecisionTexts, Dialect, Statements};
use crate::execute::{plain, rows};
use crate::names::Names;
use crate::notes::Aside;
use crate::schema::{INBOX, Tables};

/// A note's columns, in the order that is read.
const NOTE: &str = "failed_class, failed_reason, failed_at, attempts, marks";

/// A time as microseconds since 1970, UTC.
pub(super) fn micros(time: &str) -> String {
    format!("(extract(epoch FROM {time}) * 1000000)::bigint")
}

fn now() -> String {
    micros("clock_timestamp()")
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

pub(super) fn ddl(names: &Names, tables: &Tables) -> Vec<String> {
    let mut ddl = if tables.main == INBOX.main { inbox_tables(names) } else { decision_tables(names) };
    let Tables { version_table, version, oldest_reader, .. } = tables;
    let name = names.table(version_table);
    ddl.push(format!(
        "CREATE TABLE IF NOT EXISTS {name} (
  id bigint NOT NULL PRIMARY KEY,
  version bigint NOT NULL,
  oldest_reader bigint NOT NULL
)"
    ));
    ddl.push(format!("INSERT INTO {name} VALUES (1, {version}, {oldest_reader}) ON CONFLICT DO NOTHING"));
    ddl
}

/// A table that is only added to: a row is a transaction that is decided, and stays so.
fn decision_tables(names: &Names) -> Vec<String> {
    let decision = names.decision();
    vec![
        format!(
            "CREATE TABLE IF NOT EXISTS {decision} (
  id bytea NOT NULL PRIMARY KEY,
  committed bigint NOT NULL,
  decided_at bigint NOT NULL
)"
        ),
        format!(
            "CREATE INDEX IF NOT EXISTS {} ON {decision} (decided_at)",
            names.index("decision_decided_at")
        ),
    ]
}

fn inbox_tables(names: &Names) -> Vec<String> {
    let (inbox, note) = (names.inbox(), names.note());
    vec![
        format!(
            "CREATE TABLE IF NOT EXISTS {inbox} (
  k bytea NOT NULL PRIMARY KEY,
  consumer text NOT NULL,
  kind text NOT NULL,
  key_text text NOT NULL,
  message_id text,
  origin text NOT NULL,
  body bytea NOT NULL,
  conflict bytea,
  outcome text,
  done_at bigint NOT NULL
)"
        ),
        format!("CREATE INDEX IF NOT EXISTS {} ON {inbox} (done_at)", names.index("inbox_done_at")),
        format!(
            "CREATE TABLE IF NOT EXISTS {note} (
  d bytea NOT NULL PRIMARY KEY,
  k bytea,
  consumer text,
  kind text,
  key_text text,
  failed_class text,
  failed_reason text,
  failed_at bigint,
  attempts bigint NOT NULL DEFAULT 0,
  marks bigint NOT NULL DEFAULT 0,
  touched_at bigint NOT NULL
)"
        ),
        format!("CREATE INDEX IF NOT EXISTS {} ON {note} (touched_at)", names.index("inbox_note_touched_at")),
    ]
}

/// Where the tables are, or would be made: the named schema, the one in which the search
/// path finds them, or the current one.
pub(super) async fn resolve(
    conn: &mut PgConnection,
    names: &Names,
    tables: &Tables,
) -> Result<Option<String>, sqlx::Error> {
    if let Some(schema) = names.schema() {
        return Ok(Some(schema.to_owned()));
    }
    let sql: Arc<str> = format!(
        "SELECT coalesce((SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.oid = to_regclass({})), current_schema())::text",
        literal(&names.table(tables.main))
    )
    .into();
    let found = rows::<Postgres>(conn, &sql).await?;
    found.first().map_or(Ok(None), |row| Postgres::text(row, 0))
}

/// Whether notes may be deleted at once instead of by a later purge. Unknown before the
/// tables exist: then this account makes them, and owns them.
pub(super) async fn may_delete(conn: &mut PgConnection, names: &Names) -> Result<bool, sqlx::Error> {
    let sql: Arc<str> = format!(
        "SELECT CASE WHEN to_regclass({note}) IS NULL OR has_table_privilege(to_regclass({note}), 'DELETE') \
         THEN 1::bigint ELSE 0::bigint END",
        note = literal(&names.note())
    )
    .into();
    let found = rows::<Postgres>(conn, &sql).await?;
    found.first().map_or(Ok(false), |row| Ok(Postgres::int(row, 0)? == Some(1)))
}

pub(super) async fn create(pool: &Pool<Postgres>, names: &Names, tables: &Tables) -> Result<(), sqlx::Error> {
    let mut aside = Aside::<Postgres>::take(pool).await?;
    let mut tx = aside.conn()?.begin().await?;
    // Others wait here; migrations of other tools do not, which the caller's retries cover.
    let lock = lock_of(names, "create");
    plain::<Postgres>(&mut tx, format!("SELECT pg_advisory_xact_lock({lock})")).await?;
    if let Some(schema) = names.schema() {
        let sql: Arc<str> =
            format!("SELECT 1::bigint FROM pg_namespace WHERE nspname = {}", literal(schema)).into();
        // Asked first: `IF NOT EXISTS` wants the right to create even if nothing is created.
        if rows::<Postgres>(&mut tx, &sql).await?.is_empty() {
            let text = format!("CREATE SCHEMA IF NOT EXISTS {}", crate::names::quoted(schema));
            plain::<Postgres>(&mut tx, text).await?;
        }
    }
    for statement in ddl(names, tables) {
        plain::<Postgres>(&mut tx, statement).await?;
    }
    tx.commit().await?;
    aside.done();
    Ok(())
}

pub(super) fn columns(names: &Names, table: &str) -> String {
    format!(
        "SELECT attname::text FROM pg_attribute \
         WHERE attrelid = to_regclass({}) AND attnum > 0 AND NOT attisdropped",
        literal(&names.table(table))
    )
}

/// The number of an advisory lock for one purpose of these tables.
fn lock_of(names: &Names, purpose: &str) -> String {
    format!("hashtextextended({}, 0)", literal(&format!("oncemq:{purpose}:{}", names.inbox())))
}

/// Judges every key of the first argument; the others run beside it. Waits for nobody: a key
/// whose lock is taken belongs to a transaction that is still open. Rows and notes are looked up key by key: a plan that reads
/// a whole table would be right only while it is small.
fn claim(names: &Names, in_unit: bool) -> String {
    let (inbox, note) = (names.inbox(), names.note());
    let lock = literal(&format!("oncemq:key:{inbox}:"));
    format!(
        "WITH a AS MATERIALIZED (
  SELECT *, pg_try_advisory_xact_lock(hashtextextended({lock} || encode(k, 'hex'), 0)) AS ours
  FROM UNNEST($1::bytea[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[],
    $8::bytea[], $9::bytea[])
    AS a (k, consumer, kind, key_text, message_id, origin, body, conflict, d)
), i AS (
  INSERT INTO {inbox} (k, consumer, kind, key_text, message_id, origin, body, conflict, done_at)
  SELECT k, consumer, kind, key_text, message_id, origin, body, conflict, {now} FROM a WHERE ours
  ON CONFLICT (k) DO NOTHING RETURNING k
)
SELECT a.k, CASE WHEN NOT a.ours THEN 2::bigint WHEN i.k IS NULL THEN 1::bigint ELSE 0::bigint END,
  b.body, b.conflict, n.failed_class, n.failed_reason, n.failed_at, n.attempts, n.marks,
  pg_backend_pid()::bigint, {began}{lift}
FROM a LEFT JOIN i ON i.k = a.k
  LEFT JOIN LATERAL (SELECT body, conflict FROM {inbox} WHERE k = a.k OFFSET 0) b ON true
  LEFT JOIN LATERAL (SELECT {NOTE} FROM {note} WHERE d = a.d OFFSET 0) n ON true",
        now = now(),
        began = micros("now()"),
        // From here on locks are waited for as long as statements run.
        lift = match in_unit {
            true => ", set_config('lock_timeout', current_setting('statement_timeout'), true)",
            false => "",
        },
    )
}

/// Takes marks back; an empty note goes at once where this account may delete.
fn unmark(note: &str, touch: &str, may_delete: bool) -> String {
    let update = format!("UPDATE {note} SET marks = greatest(marks - $2, 0), {touch} WHERE d = $1");
    if !may_delete {
        return update;
    }
    format!(
        "WITH gone AS (
  DELETE FROM {note} WHERE d = $1 AND failed_at IS NULL AND attempts = 0 AND marks <= $2 RETURNING d
) {update} AND NOT EXISTS (SELECT 1 FROM gone)"
    )
}

/// Removes what is older than the first argument. One instance at a time, and none waits:
/// whoever comes second has nothing to do.
fn purge(names: &Names, table: &str, key: &str, time: &str) -> String {
    format!(
        "DELETE FROM {table} WHERE {key} = ANY (ARRAY(
  SELECT {key} FROM {table} WHERE {time} < {now} - $1
    AND (SELECT pg_try_advisory_xact_lock({lock}))
  ORDER BY {time} LIMIT $2 FOR UPDATE SKIP LOCKED))",
        now = now(),
        lock = lock_of(names, "purge"),
    )
}

pub(super) fn statements(names: &Names, may_delete: bool, named: bool) -> Statements {
    let (inbox, note, now) = (names.inbox(), names.note(), now());
    let touch = format!("touched_at = {now}");
    Statements {
        claim: claim(names, true).into(),
        claim_beside: claim(names, false).into(),
        named,
        done: format!("SELECT body, conflict, outcome FROM {inbox} WHERE k = $1").into(),
        probe: "SELECT 1".into(),
        note: format!("SELECT {NOTE} FROM {note} WHERE d = $1").into(),
        mark: format!(
            "INSERT INTO {note} AS n (d, marks, touched_at) VALUES ($1, 1, {now})
ON CONFLICT (d) DO UPDATE SET marks = n.marks + 1, {touch} WHERE n.marks < $2 RETURNING {NOTE}"
        )
        .into(),
        unmark: unmark(&note, &touch, may_delete).into(),
        charge: format!(
            "INSERT INTO {note} AS n (d, attempts, touched_at) VALUES ($1, $2, {now})
ON CONFLICT (d) DO UPDATE SET attempts = greatest(n.attempts, excluded.attempts), {touch}"
        )
        .into(),
        fail: format!(
            "INSERT INTO {note} (d, k, consumer, kind, failed_class, failed_reason, key_text, failed_at, touched_at)
SELECT $1::bytea, $2::bytea, $3::text, $4::text, $5::text, $6::text, $7::text, {now}, {now}
WHERE NOT EXISTS (SELECT 1 FROM {inbox} WHERE k = $2)
ON CONFLICT (d) DO UPDATE SET k = excluded.k, consumer = excluded.consumer, kind = excluded.kind,
key_text = excluded.key_text, failed_class = excluded.failed_class,
failed_reason = excluded.failed_reason, failed_at = excluded.failed_at, {touch}"
        )
        .into(),
        purge_done: purge(names, &inbox, "k", "done_at").into(),
        purge_notes: purge(names, &note, "d", "touched_at").into(),
        finish: format!("UPDATE {inbox} SET outcome = $2 WHERE k = $1 AND outcome IS NULL").into(),
    }
}

pub(super) fn decisions(names: &Names) -> DecisionTexts {
    let (decision, now) = (names.decision(), now());
    // A second row of an id is an error, which also ends the transaction it happens in.
    let commit: Arc<str> =
        format!("INSERT INTO {decision} (id, committed, decided_at) VALUES ($1, 1, {now})").into();
    DecisionTexts {
        commit: commit.clone(),
        commit_in_unit: commit,
        read: format!("SELECT committed FROM {decision} WHERE id = $1").into(),
        // Whoever is deciding holds the id, and is waited for. The level is named because a
        // stricter one makes an error of what was decided meanwhile.
        begin: "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 1000",
        refuse: format!(
            "INSERT INTO {decision} (id, committed, decided_at) VALUES ($1, 0, {now}) ON CONFLICT (id) DO NOTHING"
        )
        .into(),
        purge: purge(names, &decision, "id", "decided_at").into(),
    }
}
