# shellcheck shell=bash
# Licenses, sources, bans and known vulnerabilities of all dependencies.

deny_version=0.20.2

long_deny() {
  local tools deny
  tools=$(realpath -m "${ONCEMQ_SERVICES_DIR:-.services}/tools")
  deny=$tools/bin/cargo-deny
  # It is built once and kept.
  [ "$("$deny" --version 2>/dev/null)" = "cargo-deny $deny_version" ] ||
    step deny/install env -u CARGO_TARGET_DIR cargo install -q --locked --root "$tools" \
      --version "=$deny_version" cargo-deny
  part deny/licenses "$deny" check licenses
  part deny/bans "$deny" check bans
  part deny/sources "$deny" check sources
  # The list of vulnerabilities comes from a place that not every machine reaches.
  if timeout 60 "$deny" fetch db >"$logs/deny/fetch.log" 2>&1 </dev/null; then
    part deny/advisories "$deny" check --disable-fetch advisories
  else
    skip deny/advisories 'the list of advisories cannot be fetched'
  fi
}
