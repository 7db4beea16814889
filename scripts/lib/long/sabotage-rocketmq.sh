# shellcheck shell=bash
# Deliberate defects of the RocketMQ adapter, each of which a test must notice.

long_sabotage-rocketmq() {
  local patches
  mapfile -t patches < <(basename -a -s .patch integration-tests/sabotage/rocketmq-*.patch)
  need rocketmq
  part sabotage-rocketmq scripts/sabotage "${patches[@]}"
}
