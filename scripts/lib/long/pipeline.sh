# shellcheck shell=bash
# A Kafka pipeline whose processes and broker are killed under load.

long_pipeline() {
  step pipeline/build cargo test -p oncemq-kafka --test long_pipeline --no-run
  part pipeline/copy env ONCEMQ_LONG=1 cargo test -p oncemq-kafka --test long_pipeline
}
