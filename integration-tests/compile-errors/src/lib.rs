//! The tests of this package pin what the compiler says when a handler is wrong.
