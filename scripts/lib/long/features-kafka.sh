# shellcheck shell=bash
# Each feature alone of everything with Kafka, whose client is built from C again and again.

long_features-kafka() { check_features rdkafka-sys rocketmq-client-rust; }
