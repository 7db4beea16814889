//! Claims on PostgreSQL: one statement for all keys of a unit and their notes.

use std::collections::HashMap;
use std::sync::Arc;

use oncemq_core::{Claim, Entry, Note, Verdict};
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row};

use super::Reins;
use crate::dialect::{Dialect, Statements, Value};
use crate::error::refused;
use crate::execute::collect;
use crate::key_bytes::{TEXT_MAX, clean, done, of_entry};
use crate::notes::note;

pub(super) async fn claim(
    conn: &mut PgConnection,
    reins: Option<&mut Reins>,
    statements: &Statements,
    entries: &[Entry],
) -> Result<Vec<Verdict>, sqlx::Error> {
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<Vec<u8>> = entries
        .iter()
        .map(|entry| of_entry(entry).ok_or_else(|| refused("a claim needs a key")))
        .collect::<Result<_, _>>()?;
    let mut first = HashMap::new();
    for (i, key) in keys.iter().enumerate() {
        first.entry(key.as_slice()).or_insert(i);
    }
    // Each key once, in one order everywhere.
    let mut order: Vec<usize> = first.values().copied().collect();
    order.sort_by(|a, b| keys[*a].cmp(&keys[*b]));
    let text = match reins {
        Some(_) => &statements.claim,
        None => &statements.claim_beside,
    };
    let found = ask(conn, text, statements.named, entries, &keys, &order).await?;
    if let (Some(reins), Some(row)) = (reins, found.first()) {
        let pid: i64 = row.try_get(9)?;
        reins.backend = i32::try_from(pid).ok().zip(row.try_get(10)?);
    }
    let mut answers = HashMap::new();
    for row in &found {
        let key: Vec<u8> = row.try_get(0)?;
        let Some(i) = first.get(key.as_slice()).copied() else { continue };
        let stored = match row.try_get::<i64, _>(1)? {
            0 => Answer::New,
            1 => Answer::Done(stored(conn, statements, row, &key).await?),
            _ => Answer::Busy,
        };
        let note = match row.try_get::<Option<i64>, _>(7)? {
            Some(_) => Some(note::<Postgres>(row, 4)?),
            None => None,
        };
        answers.insert(i, (stored, note));
    }
    let mut verdicts = Vec::with_capacity(entries.len());
    for (i, (entry, key)) in entries.iter().zip(&keys).enumerate() {
        let at = first.get(key.as_slice()).copied().unwrap_or(i);
        let Some((answer, note)) = answers.get(&at) else {
            return Err(refused("the claim gave no answer for a key"));
        };
        verdicts.push(verdict(entry, answer, note.clone(), (at < i).then(|| &entries[at])));
    }
    Ok(verdicts)
}

/// What the database says about one key.
enum Answer {
    New,
    Done(Stored),
    Busy,
}

/// What is stored with a done key.
struct Stored {
    body: Option<Vec<u8>>,
    conflict: Option<Vec<u8>>,
}

/// A key that stands twice in one call was claimed by the first of the two, so for the other
/// it is done, as far as this unit goes.
fn verdict(entry: &Entry, answer: &Answer, note: Option<Note>, twin: Option<&Entry>) -> Verdict {
    match (answer, twin) {
        (Answer::New, None) => Verdict::new(Claim::New, note),
        (Answer::New, Some(twin)) => {
            // The statement looked up the note of the other message.
            let conflict = twin.conflict.as_ref().map(<[u8; 32]>::as_slice);
            Verdict::new(done(entry, Some(&twin.body), conflict), None)
        }
        (Answer::Done(stored), twin) => {
            let claim = done(entry, stored.body.as_deref(), stored.conflict.as_deref());
            Verdict::new(claim, if twin.is_some() { None } else { note })
        }
        (Answer::Busy, _) => Verdict::new(Claim::Busy, note),
    }
}

async fn ask(
    conn: &mut PgConnection,
    text: &Arc<str>,
    named: bool,
    entries: &[Entry],
    keys: &[Vec<u8>],
    order: &[usize],
) -> Result<Vec<sqlx::postgres::PgRow>, sqlx::Error> {
    fn column<T>(order: &[usize], of: impl Fn(usize) -> T) -> Vec<T> {
        order.iter().map(|i| of(*i)).collect()
    }
    let texts = |of: &dyn Fn(&Entry) -> String| column(order, |i| clean(&of(&entries[i]), TEXT_MAX));
    let key_text = |entry: &Entry| entry.key.as_ref().map(|key| key.text()).unwrap_or_default();
    let message_id = |i: usize| entries[i].message_id.as_deref().map(|id| clean(id, TEXT_MAX));
    sqlx::query(AssertSqlSafe(text.clone()))
        .bind(column(order, |i| keys[i].clone()))
        .bind(texts(&|entry| entry.trail.consumer.to_string()))
        .bind(texts(&|entry| entry.trail.kind.to_string()))
        .bind(texts(&key_text))
        .bind(column(order, message_id))
        .bind(texts(&|entry| entry.trail.origin.clone()))
        .bind(column(order, |i| entries[i].body.to_vec()))
        .bind(column(order, |i| entries[i].conflict.map(Vec::from)))
        .bind(column(order, |i| entries[i].trail.id.as_bytes().to_vec()))
        .persistent(named)
        .fetch_all(conn)
        .await
}

/// The claim's own snapshot may be older than the row it ran into; then it is read again.
async fn stored(
    conn: &mut PgConnection,
    statements: &Statements,
    row: &sqlx::postgres::PgRow,
    key: &[u8],
) -> Result<Stored, sqlx::Error> {
    let body: Option<Vec<u8>> = row.try_get(2)?;
    if body.is_some() {
        return Ok(Stored { body, conflict: row.try_get(3)? });
    }
    let key = vec![Value::Bytes(key.to_vec())];
    let (found, _) = collect::<Postgres>(conn, &statements.done, key, statements.named).await?;
    match found.first() {
        Some(row) => Ok(Stored { body: Postgres::bytes(row, 0)?, conflict: Postgres::bytes(row, 1)? }),
        // Purged this moment: it was done, and nothing more is known.
        None => Ok(Stored { body: None, conflict: None }),
    }
}
