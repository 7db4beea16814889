# shellcheck shell=bash
# The documentation builds without a warning, and its examples run.

long_docs() {
  part docs/build env RUSTDOCFLAGS='-D warnings' cargo doc --workspace --all-features --no-deps
  need "${services[@]}"
  part docs/examples cargo test --workspace --all-features --doc --no-fail-fast
}
