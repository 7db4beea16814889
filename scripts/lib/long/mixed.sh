# shellcheck shell=bash
# One service on three brokers, and one that is built for each broker alone.

long_mixed() {
  step mixed/build cargo build -p mixed-example
  need rabbitmq kafka rocketmq postgres
  part mixed/three-brokers cargo run -q -p mixed-example
  # Each broker alone; the workspace builds two of them together.
  local broker
  for broker in rabbitmq kafka rocketmq; do
    step "mixed/build-$broker" cargo test -p switch-example --features "$broker" --no-run
    part "mixed/switch-$broker" cargo test -p switch-example --features "$broker"
  done
}
