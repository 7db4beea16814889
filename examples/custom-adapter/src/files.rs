//! Messages as files.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use oncemq_core::{Message, Origin, Parts};
use serde::{Deserialize, Serialize};

/// The first line of a file, as JSON; the payload follows.
#[derive(Serialize, Deserialize)]
struct Head {
    id: Option<String>,
    content_type: Option<String>,
    key: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
    tombstone: bool,
}

/// Nanoseconds since 1970.
fn now() -> u128 {
    UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos()
}

/// A new name, due after this time. Names sort by it, then as they were made.
pub(crate) fn name(after: Duration) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (due, next) = (now() + after.as_nanos(), NEXT.fetch_add(1, Ordering::Relaxed));
    format!("{due:030}-{next:020}-{}", std::process::id())
}

/// The names in a folder whose time has come, in their order. What was put here by hand
/// has no time and is due at once; what is being written is hidden.
pub(crate) fn due(folder: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    let files = entries.iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let mut names: Vec<_> = files.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let (now, time) = (now(), |name: &str| name.split_once('-')?.0.parse().ok());
    names.retain(|name| !name.starts_with('.') && time(name).unwrap_or(0) <= now);
    names.sort_unstable();
    Ok(names)
}

/// Stores a message. Once this returns it survives a loss of power; nobody sees a part.
pub(crate) fn store(folder: &Path, after: Duration, message: &Message) -> io::Result<()> {
    let head = Head {
        id: message.id().map(str::to_owned),
        content_type: message.content_type().map(str::to_owned),
        key: message.key().map(|bytes| bytes.to_vec()),
        headers: message.headers().iter().map(|(n, v)| (n.to_owned(), v.map(|v| v.to_vec()))).collect(),
        tombstone: message.payload().is_none(),
    };
    let name = name(after);
    let hidden = folder.join(format!(".{name}"));
    let mut file = File::create_new(&hidden)?;
    file.write_all(&[&serde_json::to_vec(&head)?, b"\n".as_slice(), message.body()].concat())?;
    file.sync_all()?;
    fs::rename(&hidden, folder.join(name))?;
    File::open(folder)?.sync_all()
}

/// Reads a message. A file of another form was put here by hand: all of it is the payload.
pub(crate) fn load(path: &Path) -> io::Result<Message> {
    let (file, mut parts) = (Bytes::from(fs::read(path)?), Parts::default());
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default();
    parts.origin = Origin::new(crate::NAME, folder.to_string_lossy());
    parts.timestamp = fs::metadata(path)?.modified().ok();
    let end = file.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let Ok(head) = serde_json::from_slice::<Head>(&file[..end]) else {
        parts.payload = Some(file);
        return Ok(parts.into());
    };
    parts.id = head.id.map(Into::into);
    parts.content_type = head.content_type.map(Into::into);
    parts.key = head.key.map(Into::into);
    head.headers.into_iter().for_each(|(name, value)| parts.headers.push(name, value.map(Into::into)));
    parts.payload = (!head.tombstone).then(|| file.slice(end + 1..));
    Ok(parts.into())
}
