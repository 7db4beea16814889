# shellcheck shell=bash
# Many more simulated histories than the quick lane has time for.

long_simulator() {
  step simulator/build cargo test --release -p oncemq-core --features sim --test sim --no-run
  part simulator/histories env SIM_SEEDS=20000 \
    cargo test --release -p oncemq-core --features sim --test sim
}
