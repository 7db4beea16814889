# shellcheck shell=bash
# A RocketMQ broker killed and paused under load, members that die, access keys; unit tests.

long_rocketmq() {
  step rocketmq/build cargo test -p oncemq-rocketmq --all-features --no-run
  part rocketmq/outages env ONCEMQ_LONG=1 cargo test -p oncemq-rocketmq --all-features --lib --test long_rocketmq
  part rocketmq/examples cargo test -p oncemq-rocketmq --all-features --doc
}
