# shellcheck shell=bash
# A process killed at every failpoint, on RabbitMQ, Kafka and every store.

long_matrix() {
  step build cargo test -p oncemq-integration-tests --test matrix --no-run
  need kafka rabbitmq postgres
  part matrix env ONCEMQ_LONG=1 cargo test -p oncemq-integration-tests --test matrix
}
