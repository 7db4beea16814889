# shellcheck shell=bash
# RocketMQ: a process killed at every failpoint, kill tests, and members that join, hang and die.

long_matrix-rocketmq() {
  local tests=("${rocketmq[@]}" --test kill --test matrix --test storm)
  step build "${tests[@]}" --no-run
  need rocketmq postgres
  # What else is in these binaries has been run without the feature.
  part matrix-rocketmq env ONCEMQ_LONG=1 "${tests[@]}" -- rocketmq
  grep '^storm ' "$logs/matrix-rocketmq.log" || true
}
