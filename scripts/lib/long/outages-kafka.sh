# shellcheck shell=bash
# Kafka killed and stopped under load, and databases behind its consumers.

long_outages-kafka() {
  step build cargo test -p oncemq-integration-tests --test outages --no-run
  need kafka postgres
  part outages-kafka env ONCEMQ_LONG=1 cargo test -p oncemq-integration-tests --test outages kafka
}
