# shellcheck shell=bash
# RabbitMQ and databases killed, stopped and cut off under load.

long_outages() {
  step build cargo test -p oncemq-integration-tests --test outages --no-run
  need rabbitmq postgres
  step build/rabbitmq cargo test -p oncemq-rabbitmq --test long_outage --test long_restart --no-run
  part outages/rabbitmq env ONCEMQ_LONG=1 cargo test -p oncemq-rabbitmq --test long_outage --test long_restart
  part outages/services env ONCEMQ_LONG=1 cargo test -p oncemq-integration-tests --test outages rabbitmq
}
