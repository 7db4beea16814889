//! Messages as the broker keeps them: a body and properties, which are text.
//!
//! Headers are properties. `KEYS` and `TAGS`, by which the broker's tools find a message and
//! other consumers choose, are headers of that name; the message group is the key of a message,
//! and its id is `UNIQ_KEY`. What the broker writes for itself is not shown.

mod names;
mod read;
#[cfg(test)]
mod tests;
mod text;
mod write;

pub(crate) use read::{Native, read, transaction_of};
pub(crate) use write::{Extra, Record, copy, shortened, write, write_half};
