# shellcheck shell=bash
# Deliberate defects, each of which a test must notice.

long_sabotage() {
  need "${services[@]}"
  part sabotage scripts/sabotage
}
