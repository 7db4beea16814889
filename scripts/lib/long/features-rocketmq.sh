# shellcheck shell=bash
# Each feature alone of the libraries with RocketMQ, whose client is some 280 crates.

long_features-rocketmq() { check_features rocketmq-client-rust "" '^(adapters|oncemq)/'; }
