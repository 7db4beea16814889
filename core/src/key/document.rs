//! The payload parsed as JSON, at most once a message.

use serde_json::Value;

use super::NoKey;
use crate::Message;

/// A payload that is parsed on first use and kept.
#[derive(Debug, Default)]
pub(crate) struct Document {
    parsed: Option<Result<Value, String>>,
}

impl Document {
    /// The whole document.
    pub(crate) fn value(&mut self, message: &Message) -> Result<&Value, NoKey> {
        self.parsed
            .get_or_insert_with(|| {
                serde_json::from_slice(message.body()).map_err(|e| format!("not JSON: {e}"))
            })
            .as_ref()
            .map_err(|why| NoKey::Unreadable(why.clone()))
    }

    /// The text of a string or the digits of an integer at a pointer; empty for anything
    /// else.
    pub(crate) fn text_at(&mut self, message: &Message, pointer: &str) -> Result<String, NoKey> {
        Ok(match self.value(message)?.pointer(pointer) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) if number.is_u64() || number.is_i64() => number.to_string(),
            _ => String::new(),
        })
    }
}
