# shellcheck shell=bash
# A RocketMQ broker killed and paused under load, members that die, access keys.

long_rocketmq() {
  step rocketmq/build cargo test -p oncemq-rocketmq --all-features --test long_rocketmq --no-run
  part rocketmq/outages env ONCEMQ_LONG=1 cargo test -p oncemq-rocketmq --all-features --test long_rocketmq
}
