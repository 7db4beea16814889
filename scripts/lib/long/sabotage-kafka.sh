# shellcheck shell=bash
# Deliberate defects of the Kafka adapter, each of which a test must notice.

long_sabotage-kafka() {
  local patches
  mapfile -t patches < <(basename -a -s .patch integration-tests/sabotage/kafka-*.patch)
  need kafka
  part sabotage-kafka scripts/sabotage "${patches[@]}"
}
