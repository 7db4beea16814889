# shellcheck shell=bash
# PostgreSQL.

postgres_ports() { echo postgres=21432; }

postgres_install() {
  missing_packages '/usr/lib/postgresql/*/bin/postgres=postgresql-15' setpriv=util-linux
}

postgres_start() {
  local data durable=off
  [ "${ONCEMQ_DURABLE:-0}" = 0 ] || durable=on
  postgres_init
  data=$(readlink -f "$dir/data")
  # Nothing runs, so this is a leftover; its pid may meanwhile belong to a zombie
  # or to someone else, which would keep the server from starting.
  rm -f "$data/postmaster.pid"
  # No unix socket: its lock file outlives a kill.
  # shellcheck disable=SC2046 # the prefix is meant to be split
  spawn $(become postgres) "$(postgres_bin)/postgres" -D "$data" \
    -c listen_addresses=127.0.0.1 -c port="$(port postgres)" -c unix_socket_directories= \
    -c fsync=$durable -c full_page_writes=$durable \
    -c max_connections=200 -c shared_buffers=64MB
}

postgres_ready() {
  "$(postgres_bin)/pg_isready" -q -h 127.0.0.1 -p "$(port postgres)"
}

# SIGINT is the "fast" shutdown: it ends the sessions instead of waiting for them.
postgres_stop() { kill -INT "$1"; }

# The server writes its title over its environment; but all its processes work
# in the data directory.
postgres_pids() {
  local data link pid
  data=$(readlink -f "$dir/data") || return 0
  { find /proc/[0-9]*/cwd -maxdepth 0 -lname "$data" 2>/dev/null || true; } | while read -r link; do
    pid=${link#/proc/}
    pid=${pid%/cwd}
    # Not a shell that someone left there.
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != postgres ] || echo "$pid"
  done
}

postgres_env() {
  local at
  at=127.0.0.1:$(port postgres)
  put ONCEMQ_POSTGRES_URL "postgres://oncemq:oncemq@$at/oncemq"
  put ONCEMQ_POSTGRES_ADMIN_URL "postgres://postgres:postgres@$at/postgres"
}

postgres_bin() {
  local bins=(/usr/lib/postgresql/*/bin)
  if [ -d /usr/lib/postgresql/15/bin ]; then
    echo /usr/lib/postgresql/15/bin
  elif [ -x "${bins[-1]}/postgres" ]; then
    echo "${bins[-1]}"
  else
    dirname "$(command -v postgres)"
  fi
}

# Fills the data directory beside its place and moves it there when it is whole:
# an interrupted first start begins again.
postgres_init() {
  local home bin prefix
  [ ! -e "$dir/data/PG_VERSION" ] || return 0
  bin=$(postgres_bin)
  prefix=$(become postgres)
  rm -rf "$dir/data"
  home=$dir
  # shellcheck disable=SC2086 # the prefix is meant to be split
  if [ -n "$prefix" ] && ! $prefix test -x "$dir"; then
    # Opening other people's directories is not ours to do.
    home=$(mktemp -d /tmp/oncemq-postgres.XXXXXX)
    chmod 755 "$home"
    echo "$label: user postgres cannot enter $dir, its data goes to $home"
  fi
  rm -rf "$home/data.new"
  mkdir "$home/data.new"
  echo postgres >"$home/password"
  [ -z "$prefix" ] || chown postgres: "$home/data.new"
  # shellcheck disable=SC2086
  {
    $prefix "$bin/initdb" -D "$home/data.new" -U postgres --pwfile="$home/password" \
      -A scram-sha-256 -E UTF8 --locale=C.UTF-8 --no-sync --no-instructions
    # The single-user server takes one statement a line and needs no password.
    $prefix "$bin/postgres" --single -D "$home/data.new" -c fsync=off postgres <"$lib/services/postgres.sql"
  } >>"$dir/log" 2>&1 9>&-
  mv "$home/data.new" "$home/data"
  [ "$home" = "$dir" ] || ln -sfn "$home/data" "$dir/data"
}

postgres_remove() {
  local data
  data=$(readlink -f "$dir/data") || return 0
  [ "$data" = "$dir/data" ] || rm -rf "${data%/data}"
}
