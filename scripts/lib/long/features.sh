# shellcheck shell=bash
# Each feature of each package alone, then none and all of them, without Kafka.

long_features() { check_features without rdkafka-sys; }
