//! The canonical form that fingerprints are made of.

use serde_json::{Number, Value};
use sha2::{Digest, Sha256};

/// SHA-256 over the fields at `pointers`; `None` if none of them exists.
pub(super) fn fingerprint(document: &Value, pointers: &[String]) -> Option<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut found = false;
    let mut text = String::new();
    for pointer in pointers {
        text.clear();
        // An absent field is an empty text, which no JSON value is.
        if let Some(value) = document.pointer(pointer) {
            found = true;
            write(value, &mut text);
        }
        for part in [pointer.as_bytes(), text.as_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
    }
    found.then(|| hash.finalize().into())
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            // Sorted here, because the order of the map depends on a feature that any
            // other crate of the build may switch on.
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| name.as_bytes());
            out.push('{');
            for (i, (name, member)) in members.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_string(name, out);
                out.push(':');
                write(member, out);
            }
            out.push('}');
        }
    }
}

/// An integral number is written as an integer however it was spelled; any other in the
/// shortest form that reads back as the same 64-bit float.
fn write_number(number: &Number, out: &mut String) {
    // 2^53: beyond it a float no longer names one integer.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match number.as_f64() {
        Some(float) if !number.is_u64() && !number.is_i64() => {
            if float.fract() == 0.0 && float.abs() < EXACT {
                #[allow(clippy::cast_possible_truncation, reason = "integral and below 2^53")]
                out.push_str(&(float as i64).to_string());
            } else {
                out.push_str(&format!("{float:e}"));
            }
        }
        _ => out.push_str(&number.to_string()),
    }
}

/// Only what JSON must escape is escaped, always in the same way.
fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}
