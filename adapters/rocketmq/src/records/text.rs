//! Bytes as text that the protocol does not corrupt.
//!
//! Properties are one text with a character between name and value and another one after each
//! pair: those two inside a value would silently make other properties of it, and an empty value
//! vanishes. Such a value, and one that is not text, is sent as base64 with a mark before it.

use bytes::Bytes;

/// Between name and value.
pub(super) const IS: char = '\u{1}';
/// After a pair.
pub(super) const END: char = '\u{2}';

const MARK: &str = "=b64=";
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Whether it can be sent as it is.
pub(super) fn is_plain(text: &str) -> bool {
    !text.is_empty() && !text.contains([IS, END])
}

pub(super) fn encode(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if is_plain(text) && !text.starts_with(MARK) => text.to_owned(),
        _ => format!("{MARK}{}", base64(bytes)),
    }
}

/// What somebody else marked and did not encode is taken as it is.
pub(super) fn decode(text: String) -> Bytes {
    match text.strip_prefix(MARK).and_then(from_base64) {
        Some(bytes) => bytes.into(),
        None => text.into(),
    }
}

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |place: usize| u32::from(chunk.get(place).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit) & 63) as usize;
            text.push(if digit <= chunk.len() { char::from(DIGITS[value]) } else { '=' });
        }
    }
    text
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let digits = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut bits, mut count) = (0_u32, 0_u32);
    for digit in digits.bytes() {
        let value = DIGITS.iter().position(|known| *known == digit)?;
        bits = bits << 6 | u32::try_from(value).ok()?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_byte_comes_back() {
        for length in 0..70_usize {
            let bytes: Vec<u8> = (0..length).map(|n| (n * 37 % 256) as u8).collect();
            assert_eq!(decode(encode(&bytes)), bytes, "{length}");
        }
        assert_eq!(encode(b"\x01\x02\x03\x04"), "=b64=AQIDBA==");
        assert_eq!(encode("größe".as_bytes()), "größe");
        assert_eq!(decode("=b64=not base64!".to_owned()), "=b64=not base64!");
    }
}
