# shellcheck shell=bash
# Each feature of each package alone, then none and all of them, without Kafka and RocketMQ.

long_features() { check_features "" "rdkafka-sys rocketmq-client-rust"; }
