# shellcheck shell=bash
# RocketMQ on two brokers, one of which is killed and paused.

long_cluster-rocketmq() {
  step cluster-rocketmq/build "${rocketmq[@]}" --test long_rocketmq --no-run
  part cluster-rocketmq env ONCEMQ_LONG=1 "${rocketmq[@]}" --test long_rocketmq -- cluster_
}
