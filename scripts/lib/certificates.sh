# shellcheck shell=bash
# The certificate that every server with a TLS listener shows.

# Fills $root/tls: ca.pem for clients, server.pem and server.key for servers. The
# certificate is signed by an authority of our own, since TLS libraries refuse an
# authority's certificate as a server's.
make_certificates() {
  local tls=$root/tls
  mkdir -p "$tls"
  (
    flock 8
    [ ! -e "$tls/server.pem" ] || exit 0
    cd "$tls"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
      -subj '/CN=oncemq test authority' -keyout ca.key -out ca.pem
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
      -subj '/CN=localhost' -keyout server.key -out server.csr
    openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 3650 \
      -extfile <(echo 'subjectAltName = DNS:localhost, IP:127.0.0.1, IP:::1') -out server.new
    mv server.new server.pem
  ) 8>"$tls/lock" 2>"$tls/log" || {
    cat "$tls/log" >&2
    return 1
  }
}
