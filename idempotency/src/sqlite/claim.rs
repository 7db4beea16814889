//! Claims on SQLite. The unit holds the file's write lock, so a key is new or done, never
//! busy.

use oncemq_core::{Claim, Entry, Verdict};
use sqlx::{Sqlite, SqliteConnection};

use crate::dialect::{Dialect, Statements, Value};
use crate::execute::collect;
use crate::key_bytes::{TEXT_MAX, clean, of_entry};
use crate::notes::note;

pub(super) async fn claim(
    conn: &mut SqliteConnection,
    statements: &Statements,
    entries: &[Entry],
) -> Result<Vec<Verdict>, sqlx::Error> {
    let named = statements.named;
    let mut verdicts = Vec::with_capacity(entries.len());
    for entry in entries {
        let claim = one(conn, statements, entry).await?;
        let id = Value::Bytes(entry.trail.id.as_bytes().to_vec());
        let (found, _) = collect::<Sqlite>(conn, &statements.note, vec![id], named).await?;
        let note = found.first().map(|row| note::<Sqlite>(row, 0)).transpose()?;
        verdicts.push(Verdict::new(claim, note));
    }
    Ok(verdicts)
}

async fn one(
    conn: &mut SqliteConnection,
    statements: &Statements,
    entry: &Entry,
) -> Result<Claim, sqlx::Error> {
    let key = of_entry(entry).ok_or_else(|| crate::error::refused("a claim needs a key"))?;
    let trail = &entry.trail;
    let text = entry.key.as_ref().map(|key| key.text()).unwrap_or_default();
    let values = vec![
        Value::Bytes(key.clone()),
        Value::Text(clean(&trail.consumer, TEXT_MAX)),
        Value::Text(clean(&trail.kind, TEXT_MAX)),
        Value::Text(clean(&text, TEXT_MAX)),
        Value::MaybeText(entry.message_id.as_deref().map(|id| clean(id, TEXT_MAX))),
        Value::Text(clean(&trail.origin, TEXT_MAX)),
        Value::Bytes(entry.body.to_vec()),
        Value::MaybeBytes(entry.conflict.map(Vec::from)),
    ];
    let (inserted, _) = collect::<Sqlite>(conn, &statements.claim, values, statements.named).await?;
    if !inserted.is_empty() {
        return Ok(Claim::New);
    }
    let key = vec![Value::Bytes(key)];
    let (found, _) = collect::<Sqlite>(conn, &statements.done, key, statements.named).await?;
    let Some(row) = found.first() else {
        return Err(crate::error::refused("a done key was not found again"));
    };
    let (body, conflict) = (Sqlite::bytes(row, 0)?, Sqlite::bytes(row, 1)?);
    Ok(crate::key_bytes::done(entry, body.as_deref(), conflict.as_deref()))
}
