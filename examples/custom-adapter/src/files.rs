//! Messages as files.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use oncemq_core::{Message, Origin, Parts};

/// What stands before a payload: id, content type, key, headers, whether there is one.
type Head = (Option<String>, Option<String>, Option<Vec<u8>>, Headers, bool);
type Headers = Vec<(String, Option<Vec<u8>>)>;

fn now() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}

/// A new name, due after this time. Names sort by it, then as they were made.
pub(crate) fn name(after: Duration) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (now, next) = (now(), NEXT.fetch_add(1, Ordering::Relaxed));
    // Rounded up: a delay is a floor.
    let wait = u64::try_from(after.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    let due = now.saturating_add(wait).saturating_add(u64::from(wait > 0));
    format!("{due:020}-{next:020}-{now}-{}", std::process::id())
}

/// Whether the time in a name has come. A file that was put here by hand has none.
pub(crate) fn is_due(name: &str) -> bool {
    let due = name.split_once('-').and_then(|(due, _)| due.parse().ok());
    due.unwrap_or(0) <= now()
}

/// The files in a folder in the order of their names, without those being written.
pub(crate) fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    let files = entries.iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let mut names: Vec<_> = files.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort_unstable();
    Ok(names)
}

/// Stores a message. Once this returns it survives a loss of power; nobody sees a part.
pub(crate) fn store(folder: &Path, after: Duration, message: &Message) -> io::Result<()> {
    let owned = |bytes: &Bytes| bytes.to_vec();
    let head: Head = (
        message.id().map(str::to_owned),
        message.content_type().map(str::to_owned),
        message.key().map(owned),
        message.headers().iter().map(|(name, value)| (name.to_owned(), value.map(owned))).collect(),
        message.payload().is_some(),
    );
    let name = name(after);
    let hidden = folder.join(format!(".{name}"));
    let mut file = File::create_new(&hidden)?;
    file.write_all(&[&serde_json::to_vec(&head)?, b"\n".as_slice(), message.body()].concat())?;
    file.sync_all()?;
    fs::rename(&hidden, folder.join(name))?;
    File::open(folder)?.sync_all()
}

/// Reads a message. A file of another form was put here by hand: all of it is the payload.
pub(crate) fn load(path: &Path, queue: &str) -> io::Result<Message> {
    let (file, mut parts) = (Bytes::from(fs::read(path)?), Parts::default());
    parts.origin = Origin::new(crate::NAME, queue);
    parts.timestamp = fs::metadata(path)?.modified().ok();
    let (head, body) = file.split_at(file.iter().position(|byte| *byte == b'\n').unwrap_or(0));
    let Ok((id, content_type, key, headers, has_payload)) = serde_json::from_slice::<Head>(head) else {
        parts.payload = Some(file);
        return Ok(parts.into());
    };
    parts.id = id.map(Into::into);
    parts.content_type = content_type.map(Into::into);
    parts.key = key.map(Into::into);
    headers.into_iter().for_each(|(name, value)| parts.headers.push(name, value.map(Into::into)));
    parts.payload = has_payload.then(|| file.slice_ref(body).slice(1..));
    Ok(parts.into())
}
