# shellcheck shell=bash
# RocketMQ messages of local transactions: killed processes, databases and brokers.

long_transactions() {
  step transactions/build "${rocketmq[@]}" --test long_transactions --no-run
  part transactions/kills env ONCEMQ_LONG=1 "${rocketmq[@]}" --test long_transactions
}
