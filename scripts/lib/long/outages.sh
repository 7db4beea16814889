# shellcheck shell=bash
# Brokers and databases killed, stopped and cut off under load.

long_outages() {
  step build cargo test -p oncemq-integration-tests --test outages --no-run
  need rabbitmq postgres
  part outages env ONCEMQ_LONG=1 cargo test -p oncemq-integration-tests --test outages
}
