//! Tests of oncemq against real servers.
