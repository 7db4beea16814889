# shellcheck shell=bash
# Checking each feature of each package alone, then none and all of them.

# check_features "CRATE..." "CRATE..." [PATTERN]: the combinations that bring in all of the first
# crates and none of the second, of packages whose folder matches, or with a ! before the
# pattern of the others.
#
# One package at a time: in a workspace build Cargo switches on for everyone
# what anyone asks for, and so hides what a package forgot to ask for.
check_features() {
  local with=$1 without=$2 folders=${3:-.} manifest package feature
  while read -r manifest package; do
    if [[ ${manifest#"$PWD"/} =~ ${folders#!} ]]; then
      [[ $folders != !* ]] || continue
    else
      [[ $folders == !* ]] || continue
    fi
    check_combination none --no-default-features
    while read -r feature; do
      check_combination "$feature" --no-default-features --features "$feature"
    done < <(features_of "$manifest")
    check_combination all --all-features
  done < <(manifests)
}

# The manifest of each package, and its name.
manifests() {
  local manifest
  cargo metadata --format-version 1 --no-deps | grep -o '"manifest_path":"[^"]*"' | cut -d'"' -f4 |
    while read -r manifest; do
      echo "$manifest $(awk -F'"' '/^\[/ { on = $0 == "[package]" } on && /^name *=/ { print $2 }' "$manifest")"
    done
}

features_of() {
  awk '/^\[/ { on = $0 == "[features]" } on && /^[a-z0-9_-]+ *=/ { print $1 }' "$1"
}

# Of the package and the crates that check_features is at.
check_combination() {
  local name=$1 crate
  shift
  for crate in $with; do brings "$crate" "$@" || return 0; done
  for crate in $without; do ! brings "$crate" "$@" || return 0; done
  part "features/$package/$name" cargo clippy -q -p "$package" "$@" -- -D warnings
}

brings() {
  local crate=$1
  shift
  [ -n "$(cargo tree -q -e normal,build -p "$package" "$@" -i "$crate" 2>/dev/null)" ]
}

# all_but CRATE PACKAGE...: arguments for Cargo that mean the whole workspace and all its
# features, except those packages and the features that bring in that crate.
all_but() {
  local crate=$1 excluded manifest package feature features=()
  shift
  for excluded in "$@"; do printf '%s\n' --exclude "$excluded"; done
  while read -r manifest package; do
    [[ " $* " != *" $package "* ]] || continue
    while read -r feature; do
      brings "$crate" --no-default-features --features "$feature" || features+=("$package/$feature")
    done < <(features_of "$manifest")
  done < <(manifests)
  printf '%s\n' --features "$(IFS=, && echo "${features[*]}")"
}
