# shellcheck shell=bash
# Running the parts of a lane, counting what they tested, and giving them servers.

passed=0 failed=0 skipped=0 worst=0
# Seconds after which a part counts as hanging; a busy machine may need more.
limit=${ONCEMQ_LIMIT_SECONDS:-1200}

# part NAME COMMAND...: runs one part, its output in a log of its own. A part
# that runs tests counts with its tests, any other as one check.
part() {
  local name=$1 begin=$SECONDS status=0 log
  shift
  log=$logs/$name.log
  mkdir -p "${log%/*}"
  printf '%-28s ' "$name"
  timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 </dev/null || status=$?
  count "$log" "$status"
  if [ "$status" = 0 ]; then
    echo "ok, $((SECONDS - begin)) s"
  else
    [ "$status" -le "$worst" ] || worst=$status
    echo "FAILED with status $status, $((SECONDS - begin)) s, see $log"
    complain "$log" "$status"
  fi
  show_results "$log"
}

# A line for each test binary that had something to say.
show_results() {
  awk '
    $1 == "Running" { name = $2 == "unittests" ? $3 : $2 }
    $1 == "Doc-tests" { name = "doc tests of " $2 }
    /^test result: / && !/ 0 passed; 0 failed; 0 ignored/ {
      sub(/^test result: /, ""); sub(/ [0-9]+ measured;/, "")
      printf "  %-40s %s\n", name, $0
    }' "$1"
}

# A preparation: nothing was tested when it goes well.
step() {
  local before=$passed
  part "$@"
  passed=$before
}

skip() {
  skipped=$((skipped + 1))
  printf '%-28s skipped: %s\n' "$1" "$2"
}

count() {
  local ok bad ignored results begun
  read -r ok bad ignored results begun < <(awk '
    $1 == "Doc-tests" || $1 == "Running" && $NF ~ /^\(.*\)$/ { b++ }
    /^test result: / {
      n++
      for (i = 2; i <= NF; i++) {
        if ($i ~ /^passed/) p += $(i - 1)
        if ($i ~ /^failed/) f += $(i - 1)
        if ($i ~ /^ignored/) s += $(i - 1)
      }
    }
    END { print p + 0, f + 0, s + 0, n + 0, b + 0 }' "$1")
  # A test binary that crashed or hung has no result.
  if [ "$2" != 0 ]; then bad=$((bad + begun - results)); fi
  # A part can fail without a failed test, for instance when it does not compile.
  if [ "$2" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
  if [ "$2" = 0 ] && [ "$results" = 0 ]; then ok=1; fi
  passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + ignored))
}

complain() {
  local lines=60
  [ "${CI:-}" != true ] || lines=400
  [ "$2" != 124 ] || echo "  (took longer than $limit s)"
  grep -E '^test .*(FAILED|failed)' "$1" | head -n 50 | sed 's/^/  /' || true
  tail -n "$lines" "$1" | sed 's/^/  | /'
}

# Nothing may follow these numbers.
close_lane() {
  echo "$passed passed, $failed failed, $skipped skipped"
  if [ "$worst" = 0 ] && [ "$failed" != 0 ]; then worst=1; fi
  exit "$worst"
}

# need SERVICE...: has the servers run and their variables set. A server given by
# its variable is used as it is; one that the user leaves out is left out.
need() {
  local service variable lines
  for service in "$@"; do
    variable=ONCEMQ_${service^^}_URL
    if [[ ",${ONCEMQ_WITHOUT:-}," == *",$service,"* ]]; then
      echo "service $service is left out"
    elif [ -n "${!variable:-}" ]; then
      echo "service $service is given by $variable"
    else
      missing+=("$service")
    fi
  done
  [ ${#missing[@]} != 0 ] || return 0
  step services scripts/services start "${missing[@]}"
  sed 's/^/  /' "$logs/services.log"
  for service in "${missing[@]}"; do
    # Without its variables the tests that need it fail and say so.
    lines=$(scripts/services env "$service") && eval "$lines"
  done
  missing=()
}
missing=()
