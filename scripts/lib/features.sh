# shellcheck shell=bash
# Checking each feature of each package alone, then none and all of them.

# check_features with|without CRATE: the combinations that bring in the crate, or the rest.
#
# One package at a time: in a workspace build Cargo switches on for everyone
# what anyone asks for, and so hides what a package forgot to ask for.
check_features() {
  local which=$1 crate=$2 manifest package feature
  while read -r manifest; do
    package=$(awk -F'"' '/^\[/ { on = $0 == "[package]" } on && /^name *=/ { print $2 }' "$manifest")
    check_combination none --no-default-features
    while read -r feature; do
      check_combination "$feature" --no-default-features --features "$feature"
    done < <(awk '/^\[/ { on = $0 == "[features]" } on && /^[a-z0-9_-]+ *=/ { print $1 }' "$manifest")
    check_combination all --all-features
  done < <(cargo metadata --format-version 1 --no-deps | grep -o '"manifest_path":"[^"]*"' | cut -d'"' -f4)
}

# Of the package, the crate and the side that check_features is at.
check_combination() {
  local name=$1 side=without
  shift
  [ -z "$(cargo tree -q -e normal,build -p "$package" "$@" -i "$crate" 2>/dev/null)" ] || side=with
  [ "$side" = "$which" ] || return 0
  part "features/$package/$name" cargo clippy -q -p "$package" "$@" -- -D warnings
}
