# shellcheck shell=bash
# Installing Debian packages without letting them start anything.

# missing_packages FILE=PACKAGE...: the packages whose FILE (a path, a glob or a
# command's name) is not there yet, one a line.
missing_packages() {
  local pair probe
  for pair in "$@"; do
    probe=${pair%%=*}
    case $probe in
      /*) compgen -G "$probe" >/dev/null || echo "${pair#*=}" ;;
      *) command -v "$probe" >/dev/null || echo "${pair#*=}" ;;
    esac
  done
}

# install_packages LOG PACKAGE...
install_packages() {
  local log=$1 policy=/usr/sbin/policy-rc.d cluster=/etc/postgresql-common/createcluster.d/oncemq.conf
  shift
  if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "needs root on a Debian system to install: $*" >&2
    return 1
  fi
  # Debian starts a server as soon as it is installed, on its usual port and
  # with the distribution's settings; exit status 101 forbids it. A policy that
  # is already there is the owner's.
  local made_policy=
  [ -e "$policy" ] || {
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    made_policy=1
  }
  # Nor should the package create a cluster of its own; ours lives elsewhere.
  local made_cluster=
  [ -d /etc/postgresql-common ] || {
    mkdir -p "${cluster%/*}"
    echo 'create_main_cluster = false' >"$cluster"
    made_cluster=1
  }
  local status=0
  apt_get update >"$log" 2>&1 || status=$?
  [ "$status" != 0 ] || apt_get install -y --no-install-recommends \
    -o Dpkg::Options::=--force-confold "$@" >>"$log" 2>&1 || status=$?
  [ -z "$made_policy" ] || rm -f "$policy"
  [ -z "$made_cluster" ] || rm -f "$cluster"
  [ "$status" = 0 ] || {
    echo "apt-get failed for: $*" >&2
    tail -n 20 "$log" >&2
    return 1
  }
}

# Someone else's apt-get may hold the lock.
apt_get() {
  try_thrice env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" </dev/null
}

# A mirror may fail once.
try_thrice() {
  local try
  for try in 1 2 3; do
    "$@" && return 0
    [ "$try" = 3 ] || sleep 5
  done
  return 1
}

# Only one of us at a time, in any clone; the next one finds it done.
alone() { (flock 8 && "$@") 8>"/tmp/oncemq-install-$(id -u).lock"; }
