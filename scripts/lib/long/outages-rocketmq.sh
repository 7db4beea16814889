# shellcheck shell=bash
# RocketMQ killed and stopped under load, and databases behind its consumers.

long_outages-rocketmq() {
  step build cargo test -p oncemq-integration-tests --features rocketmq --test outages --no-run
  need rocketmq postgres
  part outages-rocketmq env ONCEMQ_LONG=1 \
    cargo test -p oncemq-integration-tests --features rocketmq --test outages rocketmq
}
