# shellcheck shell=bash
# RocketMQ: the example's shop and service are killed in the middle, and every point is right.

long_example-rocketmq() {
  if [[ ,${ONCEMQ_WITHOUT:-}, =~ ,(rocketmq|postgres), ]]; then
    skip example-rocketmq 'a server that it needs is left out'
    return
  fi
  step example-rocketmq/build cargo build -p rocketmq-example
  export -f shop_through_kills shop_ended killed said
  part example-rocketmq bash -euo pipefail -c shop_through_kills
}

# A process of its own, on servers of its own: the example's names are fixed.
shop_through_kills() {
  servers=(rocketmq@shop postgres@shop)
  example=${CARGO_TARGET_DIR:-target}/debug/rocketmq-example
  said=$(mktemp -d)
  trap shop_ended EXIT
  scripts/services remove "${servers[@]}"
  scripts/services start "${servers[@]}"
  eval "$(scripts/services env "${servers[@]}")"

  "$example" serve >"$said/serve-1" &
  serve=$!
  said 'health: up' "$said/serve-1"
  "$example" shop 300 >"$said/shop-1" &
  shop=$!
  said 'orders are committed' "$said/shop-1"
  killed "$shop"
  "$example" shop 300 >"$said/shop-2" &
  shop=$!
  said 'orders are committed' "$said/shop-2"
  killed "$serve"
  "$example" serve >"$said/serve-2" &
  serve=$!
  wait "$shop"

  # The broker asks about what the killed shop left open, and retries take their time.
  local end=$((SECONDS + 120))
  until "$example" ledger >"$said/ledger" || [ "$SECONDS" -gt "$end" ]; do sleep 1; done
  kill -TERM "$serve"
  wait "$serve"
  "$example" ledger >"$said/ledger"
  grep -x 'lost 0 doubled 0' "$said/ledger"
}

shop_ended() {
  mapfile -t left < <(jobs -p)
  [ ${#left[@]} = 0 ] || kill -KILL "${left[@]}" 2>/dev/null || true
  tail -n 25 "$said"/*
  rm -r "$said"
  scripts/services remove "${servers[@]}"
}

# killed PID: in the middle, and not after its end.
killed() {
  local status=0
  kill -KILL "$1"
  wait "$1" || status=$?
  if [ "$status" != 137 ]; then
    echo "it ended before it was killed, with status $status"
    return 1
  fi
}

# said TEXT FILE: waits for it.
said() {
  local end=$((SECONDS + 60))
  until grep -q "$1" "$2"; do
    if [ "$SECONDS" -gt "$end" ]; then
      echo "nothing says '$1'"
      return 1
    fi
    sleep .05
  done
}
