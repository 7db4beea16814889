//! Effectively-once message consumers over RabbitMQ, Kafka and RocketMQ.
