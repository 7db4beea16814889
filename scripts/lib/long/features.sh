# shellcheck shell=bash
# Each feature of each package alone, then none and all of them.

# One package at a time: in a workspace build Cargo switches on for everyone
# what anyone asks for, and so hides what a package forgot to ask for.
long_features() {
  local manifest package feature
  while read -r manifest; do
    package=$(awk -F'"' '/^\[/ { on = $0 == "[package]" } on && /^name *=/ { print $2 }' "$manifest")
    check_features "$package" none --no-default-features
    while read -r feature; do
      check_features "$package" "$feature" --no-default-features --features "$feature"
    done < <(awk '/^\[/ { on = $0 == "[features]" } on && /^[a-z0-9_-]+ *=/ { print $1 }' "$manifest")
    check_features "$package" all --all-features
  done < <(cargo metadata --format-version 1 --no-deps | grep -o '"manifest_path":"[^"]*"' | cut -d'"' -f4)
}

check_features() {
  local package=$1 name=$2
  shift 2
  part "features/$package/$name" cargo clippy -q -p "$package" "$@" -- -D warnings
}
