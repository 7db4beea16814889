# shellcheck shell=bash
# RocketMQ: a name server and one broker; two in an instance whose name begins with `pair`.

rocketmq_version=5.5.0

# A broker also listens two below its own port, whatever its settings say.
rocketmq_ports() {
  echo rocketmq=21876 fast-a=21909 between-a=21910 broker-a=21911 ha-a=21912
  ! rocketmq_is_pair || echo fast-b=21919 between-b=21920 broker-b=21921 ha-b=21922
}

rocketmq_is_pair() { [[ $instance == pair* ]]; }

rocketmq_brokers() {
  echo broker-a
  ! rocketmq_is_pair || echo broker-b
}

rocketmq_install() {
  missing_packages java=default-jre-headless mvn=maven openssl=openssl
}

rocketmq_jars() { maven_jars rocketmq "$rocketmq_version"; }

rocketmq_fetch() {
  [ -d "$(rocketmq_jars)" ] || alone maven_fetch rocketmq "$rocketmq_version"
}

rocketmq_project() {
  local part
  cat <<END
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>oncemq</groupId>
  <artifactId>rocketmq</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
END
  for part in namesrv broker tools; do
    cat <<END
    <dependency>
      <groupId>org.apache.rocketmq</groupId>
      <artifactId>rocketmq-$part</artifactId>
      <version>$rocketmq_version</version>
    </dependency>
END
  done
  cat <<END
  </dependencies>
</project>
END
}

rocketmq_start() {
  make_certificates
  rocketmq_configure
  rocketmq_admin >"$dir/admin"
  chmod 755 "$dir/admin"
  mapfile -t java < <(rocketmq_java namesrv)
  rocketmq_process namesrv "$(port rocketmq)" "${java[@]}" -Xms32m -Xmx128m \
    org.apache.rocketmq.namesrv.NamesrvStartup -c namesrv.conf
  # The store maps its files and copies messages outside the heap: with less it stalls.
  mapfile -t java < <(rocketmq_java broker)
  java+=(-Xms128m -Xmx512m -XX:MaxDirectMemorySize=1g org.apache.rocketmq.broker.BrokerStartup -c)
  ! rocketmq_is_pair || rocketmq_process broker-b "$(port broker-b)" "${java[@]}" broker-b.conf
  spawn "${java[@]}" broker-a.conf
}

# Without the second compiler it is ready in half the time and busy for half as
# long. Benchmarks, which write through to the disk, want the faster code.
rocketmq_java() {
  printf '%s\n' env "$java_locale" "ROCKETMQ_HOME=$dir" java -XX:+UseSerialGC -XX:-UsePerfData \
    -Duser.home="$dir/home" -Djava.io.tmpdir="$dir/tmp" -Drmq.logback.configurationFile="$dir/logback.xml" \
    -Dtls.config.file="$dir/tls.properties" -Dtls.test.mode.enable=false \
    --add-exports=java.base/jdk.internal.ref=ALL-UNNAMED --add-opens=java.base/java.nio=ALL-UNNAMED \
    --add-opens=java.base/sun.nio.ch=ALL-UNNAMED --add-opens=java.base/java.lang=ALL-UNNAMED \
    -cp "$(rocketmq_jars)/*"
  [ "${ONCEMQ_DURABLE:-0}" != 0 ] || echo -XX:TieredStopAtLevel=1
}

# Asks the name server for the cluster: a broker registers there when it takes messages.
rocketmq_ready() {
  local cluster broker
  cluster=$(rocketmq_cluster 2>/dev/null) || return 1
  for broker in $(rocketmq_brokers); do
    [[ $cluster == *:$(port "$broker")\"* ]] && port_is_open "$(port "$broker")" || return 1
  done
}

rocketmq_cluster() {
  local header='{"code":106,"flag":0,"language":"JAVA","opaque":1,"version":433}' hex
  printf -v hex '\\0\\0\\0\\x%02x\\0\\0\\0\\x%02x' $((${#header} + 4)) ${#header}
  exec 3<>"/dev/tcp/127.0.0.1/$(port rocketmq)" && printf "$hex%s" "$header" >&3 || return
  timeout 2 dd bs=4096 count=1 <&3 | tr -d '\0'
}

# The broker runs, and what is beside it may have died.
rocketmq_mend() {
  local name
  for name in namesrv $(rocketmq_brokers); do
    [ ! -e "$dir/$name.pid" ] || instance_pids | grep -qx "$(cat "$dir/$name.pid")" || "$dir/$name" start 9>&-
  done
}

# The name server last: brokers leave it in order.
rocketmq_stop() {
  local brokers=("$1")
  ! rocketmq_is_pair || mapfile -t -O 1 brokers < <(instance_pids | grep -x "$(cat "$dir/broker-b.pid")")
  kill -TERM "${brokers[@]}"
  wait_until 30 rocketmq_brokers_are_down || return 0
  signal_all TERM
}

rocketmq_brokers_are_down() { [ "$(instance_pids)" = "$(cat "$dir/namesrv.pid")" ] || is_down; }

rocketmq_env() {
  local login=
  [[ $instance != acl* ]] || login=oncemq:oncemq@
  put ONCEMQ_ROCKETMQ_URL "rocketmq://${login}127.0.0.1:$(port rocketmq)"
  # Where the name server sends clients to.
  put ONCEMQ_ROCKETMQ_BROKER_URL "tcp://127.0.0.1:$(port broker-a)"
  # A broker that somebody else runs at this address has neither.
  [ -e "$dir/broker-a.conf" ] || return 0
  put ONCEMQ_ROCKETMQ_ADMIN "$dir/admin"
  put ONCEMQ_ROCKETMQ_NAMESRV "$dir/namesrv"
  ! rocketmq_is_pair || put ONCEMQ_ROCKETMQ_SECOND "$dir/broker-b"
  put ONCEMQ_ROCKETMQ_CA "$root/tls/ca.pem"
}

rocketmq_configure() {
  # A broker that was killed leaves a library of 12 MB there.
  rm -rf "$dir/tmp"
  mkdir -p "$dir/home" "$dir/tmp"
  cat >"$dir/tls.properties" <<END
tls.test.mode.enable=false
tls.server.certPath=$root/tls/server.pem
tls.server.keyPath=$root/tls/server.key
END
  cat >"$dir/logback.xml" <<END
<configuration>
  <appender name="out" class="org.apache.rocketmq.logging.ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %m \(%c{0}\)%n</pattern></encoder>
  </appender>
  <!-- It says at each look that there is nothing to do. -->
  <logger name="RocketmqTransaction" level="ERROR"/>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
END
  cat >"$dir/namesrv.conf" <<END
listenPort=$(port rocketmq)
bindAddress=127.0.0.1
kvConfigPath=$dir/data/kvConfig.json
configStorePath=$dir/data/namesrv.properties
END
  local broker
  for broker in $(rocketmq_brokers); do rocketmq_broker "${broker#broker-}" >"$dir/$broker.conf"; done
}

# rocketmq_broker LETTER: settings of a broker.
rocketmq_broker() {
  local port
  port=$(port "broker-$1")
  # The second listener has no port of its own to choose.
  [ "$port" = $(($(port "fast-$1") + 2)) ] || die "$label: the ports below $port are taken"
  cat <<END
brokerClusterName=oncemq
brokerName=broker-$1
brokerId=0
brokerIP1=127.0.0.1
bindAddress=127.0.0.1
listenPort=$port
haListenPort=$(port "ha-$1")
namesrvAddr=127.0.0.1:$(port rocketmq)
storePathRootDir=$dir/data/store-$1
storePathCommitLog=$dir/data/store-$1/commitlog
mappedFileSizeCommitLog=33554432
mappedFileSizeConsumeQueue=600000
mappedFileSizeTimerLog=4194304
maxIndexNum=200000
maxHashSlotNum=50000
diskMaxUsedSpaceRatio=99
# A topic or group that a test did not declare is an error.
autoCreateTopicEnable=false
autoCreateSubscriptionGroup=false
# Otherwise it writes the same page of its timers ten times a second.
timerFlushIntervalMs=60000
# The usual levels have nothing between 1 and 5 seconds, and tests wait for them. Consumers
# read them from the broker.
messageDelayLevel=1s 2s 3s 4s 5s 6s 7s 8s 9s 10s 20s 30s 1m 5m 10m 30m 1h 2h
# How soon a half message is asked about, and how often.
transactionTimeOut=3000
transactionCheckInterval=3000
transactionCheckMax=5
# Answers are noted well before the next question, as they are where questions are rare.
transactionOpBatchInterval=300
enablePropertyFilter=true
END
  [[ $instance != acl* ]] || rocketmq_logins
  if [ "${ONCEMQ_DURABLE:-0}" = 0 ]; then echo flushDiskType=ASYNC_FLUSH; else echo flushDiskType=SYNC_FLUSH; fi
}

# A broker that only knows `oncemq`, which may everything, and itself.
rocketmq_logins() {
  local auth=org.apache.rocketmq.auth
  cat <<END
authenticationEnabled=true
authenticationProvider=$auth.authentication.provider.DefaultAuthenticationProvider
authenticationMetadataProvider=$auth.authentication.provider.LocalAuthenticationMetadataProvider
initAuthenticationUser={"username":"oncemq","password":"oncemq"}
innerClientAuthenticationCredentials={"accessKey":"oncemq","secretKey":"oncemq"}
authorizationEnabled=true
authorizationProvider=$auth.authorization.provider.DefaultAuthorizationProvider
authorizationMetadataProvider=$auth.authorization.provider.LocalAuthorizationMetadataProvider
authConfigPath=$dir/data/auth
END
}

# The server's own tool, as a program for tests: `admin COMMAND ...`.
rocketmq_admin() {
  local java
  mapfile -t java < <(rocketmq_java admin)
  echo '#!/bin/sh'
  # shellcheck disable=SC2016 # the program's own variables
  printf 'command=$1; shift\nexec'
  printf ' %q' "${java[@]}" -Xmx128m "-Drocketmq.client.logRoot=$dir/home/logs" \
    org.apache.rocketmq.tools.command.MQAdminStartup
  echo " \"\$command\" -n 127.0.0.1:$(port rocketmq) \"\$@\" 2>/dev/null"
}

# rocketmq_process NAME PORT COMMAND...: starts what runs beside the broker by a program that
# tests may use too: `NAME kill`, `start`, `pause` and `resume` do it to this process alone.
rocketmq_process() {
  local name=$1 port=$2
  shift 2
  cat >"$dir/$name" <<END
#!/bin/bash
cd "$dir" || exit 1
case \$1 in
  kill) kill -KILL "\$(cat $name.pid)" ;;
  pause) kill -STOP "\$(cat $name.pid)" ;;
  resume) kill -CONT "\$(cat $name.pid)" ;;
  start)
    ONCEMQ_INSTANCE="$dir" setsid$(printf ' %q' "$@") >>log 2>&1 </dev/null &
    echo \$! >$name.pid
    until (exec 3<>/dev/tcp/127.0.0.1/$port) 2>/dev/null; do
      kill -0 \$! || { tail -n 20 log >&2; exit 1; }
      sleep 0.1
    done
    ;;
esac
END
  chmod 755 "$dir/$name"
  "$dir/$name" start 9>&-
}
