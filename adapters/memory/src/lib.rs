//! An in-process broker for oncemq.
