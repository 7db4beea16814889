//! What the URLs of all brokers are made of, for authors of adapters.

mod form;

use std::fmt;
use std::time::Duration;

pub use form::{Form, Host, Parts};

/// A time such as `500ms`, `30s`, `10m`, `2h` or `1d`: a whole number and its unit. `None` for
/// anything else, and for more than a clock can hold.
pub fn duration(text: &str) -> Option<Duration> {
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().ok()?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(millis).map(Duration::from_millis)
}

/// A time as ladders and URLs write it: `30d`, `90s`, `2500ms`. [`duration`] reads
/// what is not finer than a millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
        match units.into_iter().find(|(_, unit)| millis >= *unit && millis.is_multiple_of(*unit)) {
            Some((name, unit)) if self.0.subsec_nanos().is_multiple_of(1_000_000) => {
                write!(f, "{}{name}", millis / unit)
            }
            _ => write!(f, "{:?}", self.0),
        }
    }
}

/// Turns `%2f` into `/`. `None` if a `%` is not followed by two hexadecimal digits, or if the
/// result is not UTF-8. The text may be a password: an error should name the part, and not show
/// it.
pub fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (hex, tail) = rest.split_at_checked(2)?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let value = digit(hex[0])? * 16 + digit(hex[1])?;
        bytes.push(u8::try_from(value).ok()?);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_number_and_a_unit() {
        assert_eq!(duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(duration("2h"), Some(Duration::from_secs(7200)));
        assert_eq!(duration("1d"), Some(Duration::from_secs(86_400)));
        for wrong in ["", "5", "s", "-1s", "1.5s", "5 s", "5S", "99999999999999999d", "5s5"] {
            assert_eq!(duration(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn times_are_written_as_they_are_read() {
        let (ms, day) = (Duration::from_millis, 86_400_000);
        for (time, text) in [
            (ms(30 * day), "30d"),
            (ms(36 * 3_600_000), "36h"),
            (ms(600_000), "10m"),
            (ms(90_000), "90s"),
            (ms(2_500), "2500ms"),
            (Duration::from_micros(1_500), "1.5ms"),
        ] {
            assert_eq!(Time(time).to_string(), text);
            assert!(duration(text).is_none_or(|read| read == time));
        }
    }

    #[test]
    fn escapes_are_two_hexadecimal_digits() {
        assert_eq!(decode("p%2Fw%40%c3%a9 x").as_deref(), Some("p/w@\u{e9} x"));
        for wrong in ["%", "%2", "%g0", "a%", "%ff", "%+1"] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }
}
