# shellcheck shell=bash
# The same of examples, tests and benchmarks: each asks for a client that is built once more.

long_features-rocketmq-apps() { check_features rocketmq-client-rust "" '!^(adapters|oncemq)/'; }
