# shellcheck shell=bash
# Finding, signalling and starting the processes of one instance.

# Every process of a server carries its instance in the environment, so that its
# children are found even after they lost their parent. A pid file alone would
# miss them, and would take a stranger's process for ours after a reboot.
# Zombies have no environment left and so count as gone, which matters where
# process 1 is slow to reap.
marked_pids() {
  local file
  # Processes that end meanwhile make grep fail.
  { grep -lzsxF "ONCEMQ_INSTANCE=$dir" /proc/[0-9]*/environ || true; } | while read -r file; do
    file=${file#/proc/}
    echo "${file%/environ}"
  done
}

instance_pids() {
  if declare -F "${service}_pids" >/dev/null; then "${service}_pids"; else marked_pids; fi
}

is_running() { [ -n "$(instance_pids)" ]; }

# The process that was started, as long as it is one of the instance's.
main_pid() {
  local pid
  pid=$(cat "$dir/pid" 2>/dev/null) || return 1
  instance_pids | grep -x "$pid"
}

# Right after the start the process does not carry its mark yet.
has_exited() {
  local stat
  stat=$(cat "/proc/$(cat "$dir/pid")/stat" 2>/dev/null) || return 0
  [[ ${stat##*) } == [ZX]* ]]
}

# spawn COMMAND...: starts the server apart from our session and locks.
spawn() {
  local log=$dir/log
  [ "$(stat -c %s "$log" 2>/dev/null || echo 0)" -lt 20000000 ] || : >"$log"
  # In a background job of a script, env, setsid and setpriv all only exec: the
  # job's pid is the server's.
  (cd "$dir" && exec env ONCEMQ_INSTANCE="$dir" setsid "$@") >>"$log" 2>&1 </dev/null 9>&- &
  echo $! >"$dir/pid"
}

signal_all() {
  local pids
  mapfile -t pids < <(instance_pids)
  [ ${#pids[@]} = 0 ] || kill "-$1" "${pids[@]}" 2>/dev/null || true
}

# A process can fork between the look and the signal, hence the loop.
kill_all() {
  local i
  for ((i = 0; i < 500; i++)); do
    is_running || return 0
    signal_all KILL
    sleep .02
  done
  die "$label: cannot be killed: $(instance_pids | xargs)"
}

# wait_until SECONDS COMMAND...
wait_until() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep .05
  done
}

# become USER: prints the words in front of a command that must not run as root.
become() {
  [ "$(id -u)" != 0 ] || echo "setpriv --reuid=$1 --regid=$1 --init-groups"
}
