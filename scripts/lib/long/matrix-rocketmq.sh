# shellcheck shell=bash
# The same on RocketMQ: the kill tests, and a process killed at every failpoint.

long_matrix-rocketmq() {
  local tests=(cargo test -p oncemq-integration-tests --features rocketmq --test kill --test matrix)
  step build "${tests[@]}" --no-run
  need rocketmq postgres
  # What else is in these binaries has been run without the feature.
  part matrix-rocketmq env ONCEMQ_LONG=1 "${tests[@]}" -- rocketmq
}
