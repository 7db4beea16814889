# shellcheck shell=bash
# A RocketMQ broker killed, paused and emptied under load, members that die, access keys; unit tests.

long_rocketmq() {
  step rocketmq/build "${rocketmq[@]}" --lib --test long_rocketmq --no-run
  part rocketmq/outages env ONCEMQ_LONG=1 "${rocketmq[@]}" --lib --test long_rocketmq -- --skip cluster_
  part rocketmq/examples "${rocketmq[@]}" --doc
}
