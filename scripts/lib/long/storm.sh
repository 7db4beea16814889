# shellcheck shell=bash
# Kafka groups whose members join, leave, hang and die all the time.

long_storm() {
  step build cargo test -p oncemq-integration-tests --test storm --no-run
  need kafka postgres
  part storm env ONCEMQ_LONG=1 cargo test -p oncemq-integration-tests --test storm
  grep '^storm ' "$logs/storm.log" || true
}
