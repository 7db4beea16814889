//! Keys that no message can have, or that would not do what they are for.

use super::{Key, KeySource};

impl Key {
    /// What is wrong with it and how to write it, if it could never find anything.
    pub(crate) fn problem(&self) -> Option<String> {
        match &*self.source {
            KeySource::Json(pointer) => pointer_problem(pointer),
            KeySource::Fingerprint(pointers) if pointers.is_empty() => {
                Some("is a fingerprint of no field; name some".into())
            }
            KeySource::Fingerprint(pointers) => pointers.iter().find_map(|pointer| pointer_problem(pointer)),
            KeySource::Header(name) if name.is_empty() => Some("names no header; give it a name".into()),
            KeySource::All(parts) if parts.is_empty() => Some("is made of no parts; name some".into()),
            KeySource::All(parts) => parts.iter().find_map(Key::problem),
            KeySource::Or(first, second) => first.problem().or_else(|| second.problem()),
            KeySource::Header(_) | KeySource::RecordKey | KeySource::MessageId | KeySource::Custom(_) => None,
        }
    }

    /// Whether its values are digests, the only ones that conflicts are found by.
    pub(crate) fn is_fingerprint(&self) -> bool {
        matches!(&*self.source, KeySource::Fingerprint(_))
    }
}

/// An empty pointer is the whole document.
fn pointer_problem(pointer: &str) -> Option<String> {
    let rooted = pointer.is_empty() || pointer.starts_with('/');
    (!rooted).then(|| {
        format!("has the JSON pointer {pointer:?}, which does not begin with /; write \"/{pointer}\"")
    })
}
