//! RabbitMQ adapter of oncemq, on lapin.
