//! x
mod common;
fn main() {}
