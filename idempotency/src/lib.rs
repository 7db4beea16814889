//! Record stores of oncemq.
