# shellcheck shell=bash
# Kafka: one process that is broker and controller.

# The newest that ends every open transaction after a kill: 4.3 and 4.4 count one as
# ended where a partition has no leader at that moment (KAFKA-20734).
kafka_version=${ONCEMQ_KAFKA_VERSION:-4.2.2}
# The version that Kafka is built with. It brings all of it but the bridge, without
# which it logs nothing.
kafka_log4j_version=2.25.5

kafka_ports() {
  echo kafka=21092 sasl=21093 tls=21094 sasl_tls=21095 controller=21096
}

kafka_install() {
  # The distribution's Java is 17 or newer, which Kafka needs.
  missing_packages java=default-jre-headless mvn=maven openssl=openssl
}

kafka_jars() { maven_jars kafka "$kafka_version"; }

kafka_fetch() {
  [ -d "$(kafka_jars)" ] || alone maven_fetch kafka "$kafka_version"
}

kafka_project() {
  cat <<END
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>oncemq</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>$kafka_version</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>$kafka_log4j_version</version>
    </dependency>
  </dependencies>
</project>
END
}

kafka_start() {
  make_certificates
  kafka_configure
  kafka_format
  mapfile -t java < <(kafka_java)
  spawn "${java[@]}" kafka.Kafka server.properties
}

# Without the second compiler it is ready in half the time and busy for half as
# long. Benchmarks, which write through to the disk, want the faster code.
kafka_java() {
  printf '%s\n' env "$java_locale" java -Xms64m -Xmx256m -XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError \
    -Dlog4j2.configurationFile=log4j2.properties -cp "$(kafka_jars)/*"
  [ "${ONCEMQ_DURABLE:-0}" != 0 ] || echo -XX:TieredStopAtLevel=1
}

# Asks for the coordinator of some group. The broker has one when the controller
# has let it in and it leads the topic of the offsets; the first question makes
# that topic, so that no test has to wait for it.
kafka_ready() {
  local listener
  (
    # The answer: length, number of the question, throttling, then the error.
    exec 3<>"/dev/tcp/127.0.0.1/$(port kafka)" &&
      printf '\0\0\0\x13\0\x0a\0\1\0\0\0\1\xff\xff\0\6oncemq\0' >&3 &&
      [[ $(timeout 2 head -c 14 <&3 | od -An -tx1) == *' 00 00' ]]
  ) 2>/dev/null || return 1
  for listener in sasl tls sasl_tls; do
    port_is_open "$(port $listener)" || return 1
  done
}

kafka_stop() { kill -TERM "$1"; }

kafka_env() {
  local user=oncemq:oncemq
  put ONCEMQ_KAFKA_URL "kafka://127.0.0.1:$(port kafka)"
  # A broker that somebody else runs at this address has no other listener.
  [ -e "$dir/server.properties" ] || return 0
  put ONCEMQ_KAFKA_SASL_URL "kafka://$user@127.0.0.1:$(port sasl)"
  put ONCEMQ_KAFKA_TLS_URL "kafkas://127.0.0.1:$(port tls)"
  put ONCEMQ_KAFKA_SASL_TLS_URL "kafkas://$user@127.0.0.1:$(port sasl_tls)"
  put ONCEMQ_KAFKA_CA "$root/tls/ca.pem"
}

# Kafka's files name others relative to its working directory: a path could hold
# a comma or a letter that a properties file does not carry.
kafka_configure() {
  # It wants key and certificate in one file.
  (umask 077 && cat "$root/tls/server.key" "$root/tls/server.pem" >"$dir/server.pem")
  cat >"$dir/log4j2.properties" <<END
status = error
rootLogger = warn, out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
END
  {
    kafka_listeners
    kafka_logins
    kafka_settings
  } >"$dir/server.properties"
}

kafka_listeners() {
  local at=127.0.0.1
  cat <<END
process.roles = broker,controller
node.id = 1
controller.quorum.voters = 1@$at:$(port controller)
controller.listener.names = CONTROLLER
inter.broker.listener.name = PLAINTEXT
listeners = PLAINTEXT://$at:$(port kafka),SASL_PLAINTEXT://$at:$(port sasl),SSL://$at:$(port tls),\\
  SASL_SSL://$at:$(port sasl_tls),CONTROLLER://$at:$(port controller)
listener.security.protocol.map = CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,\\
  SSL:SSL,SASL_SSL:SASL_SSL
ssl.keystore.type = PEM
ssl.keystore.location = server.pem
END
}

# Everything is allowed to oncemq and to those who need no login, and nothing to
# `limited`. SCRAM knows the same users, see kafka_format.
kafka_logins() {
  local listener module=org.apache.kafka.common.security
  cat <<END
authorizer.class.name = org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users = User:ANONYMOUS;User:oncemq
allow.everyone.if.no.acl.found = false
sasl.enabled.mechanisms = PLAIN,SCRAM-SHA-256
END
  for listener in sasl_plaintext sasl_ssl; do
    cat <<END
listener.name.$listener.plain.sasl.jaas.config = $module.plain.PlainLoginModule required \\
  user_oncemq="oncemq" user_limited="limited";
listener.name.$listener.scram-sha-256.sasl.jaas.config = $module.scram.ScramLoginModule required;
END
  done
}

kafka_settings() {
  cat <<END
log.dirs = data
auto.create.topics.enable = false
delete.topic.enable = true
default.replication.factor = 1
min.insync.replicas = 1
offsets.topic.replication.factor = 1
offsets.topic.num.partitions = 4
transaction.state.log.replication.factor = 1
transaction.state.log.min.isr = 1
transaction.state.log.num.partitions = 4
# A transaction that nobody ends is looked for so often.
transaction.abort.timed.out.transaction.cleanup.interval.ms = 500
group.initial.rebalance.delay.ms = 0
group.min.session.timeout.ms = 500
group.consumer.heartbeat.interval.ms = 500
group.consumer.min.heartbeat.interval.ms = 500
group.consumer.session.timeout.ms = 6000
group.consumer.min.session.timeout.ms = 1000
# A broker that was killed is let in again when this has passed.
broker.session.timeout.ms = 2000
broker.heartbeat.interval.ms = 500
log.cleaner.dedupe.buffer.size = 16777216
END
  [ "${ONCEMQ_DURABLE:-0}" = 0 ] || echo 'log.flush.interval.messages = 1'
}

# Makes the data directory of a new cluster. Its last file says that it is whole:
# an interrupted first start begins again.
kafka_format() {
  local id user logins=()
  [ ! -e "$dir/data/meta.properties" ] || return 0
  rm -rf "$dir/data"
  # Sixteen bytes in base64, without the letters that could pass for an option.
  id=$(head -c 16 /dev/urandom | base64 | tr +/ AB | tr -d =)
  for user in oncemq limited; do
    logins+=(--add-scram "SCRAM-SHA-256=[name=$user,password=$user]")
  done
  mapfile -t java < <(kafka_java)
  # It keeps the instance's lock, so that nobody begins again while it still writes.
  (cd "$dir" && "${java[@]}" kafka.tools.StorageTool format -c server.properties -t "$id" "${logins[@]}") \
    >>"$dir/log" 2>&1 </dev/null
}
