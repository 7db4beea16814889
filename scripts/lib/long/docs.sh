# shellcheck shell=bash
# The documentation builds without a warning, and its examples run.

long_docs() {
  part docs/build env RUSTDOCFLAGS='-D warnings' cargo doc --workspace --all-features --no-deps
  need "${services[@]}"
  most
  part docs/examples cargo test --workspace "${most[@]}" --doc --no-fail-fast
}
