# shellcheck shell=bash
# Deliberate defects, each of which a test must notice.

long_sabotage() {
  local patches
  mapfile -t patches < <(basename -a -s .patch integration-tests/sabotage/*.patch | grep -Ev '^(kafka|rocketmq)-')
  need "${services[@]}"
  part sabotage scripts/sabotage "${patches[@]}"
}
