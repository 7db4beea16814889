# shellcheck shell=bash
# RabbitMQ.

rabbitmq_ports() {
  echo amqp=21672 amqps=21671 management=21673 epmd=21674 dist=21675
}

rabbitmq_install() {
  missing_packages '/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server=rabbitmq-server' openssl=openssl
}

rabbitmq_start() {
  make_certificates
  rabbitmq_configure
  rabbitmq_control >"$dir/rabbitmqctl"
  chmod 755 "$dir/rabbitmqctl"
  rm -f "$dir/node.pid"
  local tick=()
  # How often the broker looks for deliveries that were held too long.
  [[ $instance != timeout* ]] || tick=(-rabbit channel_tick_interval 1000)
  mapfile -t environment < <(rabbitmq_environment)
  # Busy waiting of idle schedulers would eat a core of a small machine.
  spawn env "${environment[@]}" \
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+sbwt none +sbwtdcpu none +sbwtdio none ${tick[*]}" \
    "$(rabbitmq_bin)/rabbitmq-server"
}

# The broker answers a greeting it does not understand with its own; it listens
# only when everything else is up.
rabbitmq_ready() {
  (
    exec 3<>"/dev/tcp/127.0.0.1/$(port amqp)" && echo 12345678 >&3 &&
      [ "$(timeout 2 head -c 4 <&3)" = AMQP ]
  ) 2>/dev/null
}

# After a kill, a quorum queue of RabbitMQ 3.10 may come back as a follower that
# waits for a leader for ever: the only node there is has to be told to elect one.
rabbitmq_started() {
  local elect='lists:foreach(fun({Queue, follower}) -> ra:trigger_election({Queue, node()}); (_) -> ok end,
    ets:tab2list(ra_state)).'
  [ ! -d "$dir/data/oncemq-$(port amqp)@localhost/quorum" ] || "$dir/rabbitmqctl" eval "$elect" >/dev/null
}

# To the virtual machine itself, which then shuts down in order: the shell around
# it, and `rabbitmqctl stop`, would start a second one first.
rabbitmq_stop() {
  kill -TERM "$(cat "$dir/node.pid")"
  wait_until 30 rabbitmq_is_down || return 0
  # The port mapper is a daemon and would stay.
  signal_all TERM
}

rabbitmq_is_down() { ! kill -0 "$(cat "$dir/node.pid" 2>/dev/null)" 2>/dev/null; }

rabbitmq_env() {
  local user=oncemq:oncemq
  put ONCEMQ_RABBITMQ_URL "amqp://$user@127.0.0.1:$(port amqp)/%2f"
  put ONCEMQ_RABBITMQ_MANAGEMENT_URL "http://$user@127.0.0.1:$(port management)"
  # A broker that somebody else runs at this address has neither.
  [ -e "$dir/rabbitmqctl" ] || return 0
  put ONCEMQ_RABBITMQ_TLS_URL "amqps://$user@127.0.0.1:$(port amqps)/%2f"
  put ONCEMQ_RABBITMQ_CA "$root/tls/ca.pem"
  put ONCEMQ_RABBITMQ_CTL "$dir/rabbitmqctl"
}

rabbitmq_bin() {
  local bins=(/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin)
  echo "${bins[-1]}"
}

rabbitmq_environment() {
  # A node name and a port mapper of its own, else two instances share them. All
  # files that the distribution's settings come from are named away.
  cat <<END
HOME=$dir/home
ERL_EPMD_ADDRESS=127.0.0.1
ERL_EPMD_PORT=$(port epmd)
RABBITMQ_NODENAME=oncemq-$(port amqp)@localhost
RABBITMQ_DIST_PORT=$(port dist)
RABBITMQ_MNESIA_BASE=$dir/data
RABBITMQ_LOG_BASE=$dir/data
RABBITMQ_LOGS=-
RABBITMQ_PID_FILE=$dir/node.pid
RABBITMQ_CONF_ENV_FILE=$dir/none
RABBITMQ_CONFIG_FILE=$dir/rabbitmq.conf
RABBITMQ_CONFIG_FILES=$dir/none
RABBITMQ_ADVANCED_CONFIG_FILE=$dir/none.config
RABBITMQ_ENABLED_PLUGINS_FILE=$dir/plugins
END
}

rabbitmq_control() {
  local line
  echo '#!/bin/sh'
  rabbitmq_environment | while read -r line; do
    printf 'export %s=%q\n' "${line%%=*}" "${line#*=}"
  done
  printf 'exec %q "$@"\n' "$(rabbitmq_bin)/rabbitmqctl"
}

rabbitmq_configure() {
  mkdir -p "$dir/data" "$dir/home"
  # The management plugin costs a little at start, and answers in milliseconds
  # what rabbitmqctl needs seconds for.
  echo '[rabbitmq_management].' >"$dir/plugins"
  cat >"$dir/rabbitmq.conf" <<END
listeners.tcp.1 = 127.0.0.1:$(port amqp)
listeners.ssl.1 = 127.0.0.1:$(port amqps)
ssl_options.cacertfile = $root/tls/ca.pem
ssl_options.certfile = $root/tls/server.pem
ssl_options.keyfile = $root/tls/server.key
management.tcp.ip = 127.0.0.1
management.tcp.port = $(port management)
default_user = oncemq
default_pass = oncemq
default_user_tags.administrator = true
disk_free_limit.absolute = 50MB
vm_memory_high_watermark.absolute = 1GB
log.console = true
log.file = false
END
  [[ $instance != timeout* ]] || echo 'consumer_timeout = 3000' >>"$dir/rabbitmq.conf"
}
