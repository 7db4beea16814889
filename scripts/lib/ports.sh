# shellcheck shell=bash
# Loopback ports of the servers. All of them are below 32768, where Linux hands
# out no ports to outgoing connections: a server that was killed must get its
# own port back.

# Two clones of the repository on one machine must not choose the same port in
# the time between choosing and listening, so a choice is written down here.
claims=/tmp/oncemq-ports-$(id -u)

port_is_open() {
  local hex
  printf -v hex ':%04X' "$1"
  awk -v hex="$hex" '$4 == "0A" && substr($2, length($2) - 4) == hex { found = 1 } END { exit !found }' \
    /proc/net/tcp /proc/net/tcp6 2>/dev/null
}

# A claim lasts as long as the instance that made it.
port_is_claimed() {
  local owner
  owner=$(cat "$claims/$1" 2>/dev/null) || return 1
  [ "$owner" != "$dir" ] && grep -qs "=$1\$" "$owner/ports"
}

port_is_free() { ! port_is_open "$1" && ! port_is_claimed "$1"; }

# choose_ports NAME=DEFAULT...: fills $dir/ports. The server must not be running.
choose_ports() {
  mkdir -p "$claims"
  (
    flock 8
    # Extra instances start from a place that depends on their name, so that
    # they rarely meet.
    local next pair name port
    next=$((22000 + $(cksum <<<"$dir" | cut -d' ' -f1) % 8000))
    for pair in "$@"; do
      name=${pair%%=*}
      port=$(recorded_port "$name")
      if [ -z "$port" ] && [ "$instance" = default ]; then port=${pair#*=}; fi
      [ -n "$port" ] || port=$next
      until port_is_free "$port"; do
        port=$next
        next=$((next + 1))
      done
      [ "$port" != "$next" ] || next=$((next + 1))
      echo "$dir" >"$claims/$port"
      echo "$name=$port"
    done >"$dir/ports.new"
    mv "$dir/ports.new" "$dir/ports"
  ) 8>"$claims/lock"
}

recorded_port() { sed -n "s/^$1=//p" "$dir/ports" 2>/dev/null || true; }

# port NAME: where the current instance listens, or would listen.
port() {
  local found pair
  found=$(recorded_port "$1")
  if [ -z "$found" ] && [ "$instance" = default ]; then
    for pair in $("${service}_ports"); do
      [ "${pair%%=*}" != "$1" ] || found=${pair#*=}
    done
  fi
  [ -n "$found" ] || die "$label was never started"
  echo "$found"
}
