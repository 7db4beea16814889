# shellcheck shell=bash
# RocketMQ killed and stopped under load, and databases behind its consumers.

long_outages-rocketmq() {
  step build "${rocketmq[@]}" --test outages --no-run
  need rocketmq postgres
  part outages-rocketmq env ONCEMQ_LONG=1 "${rocketmq[@]}" --test outages -- rocketmq
}
