# memcached.sh: memcached under memcslap, then a client that knows what every answer must be.
#
# Who may call it: run.py. The load tool fills and reads with many connections; the client's answers are compared.
#
# program: reach=memcached,memcslap needs=memcached:memcached,memcslap:libmemcached-tools,/usr/bin/python3:python3 main=memcached
# version: memcached --version
#
# SPDX-License-Identifier: Apache-2.0
user=()
if [ "$(id -u)" -eq 0 ]; then user=(-u nobody); fi
# Its own port on the loopback interface, no UDP; items are evicted only when 256 MiB are full, which they never are.
memcached "${user[@]}" -l 127.0.0.1 -p "$PORT" -U 0 -t 2 -m 256 -c 256 -o no_lru_maintainer,no_lru_crawler > server.log 2>&1 &
server=$!
for _ in $(seq 100); do
    (exec 3<> "/dev/tcp/127.0.0.1/$PORT") 2> /dev/null && break
    sleep 0.05
done
# memcslap itself says on stderr what failed; its times are not compared.
for test in set get mget; do
    memcslap --servers="127.0.0.1:$PORT" --test=$test --concurrency=8 --execute-number=$((1500 * SCALE)) > slap.log 2>&1 ||
        { cat slap.log; exit 1; }
    echo "memcslap $test: $(grep -ciE 'error|fail' slap.log || true) failures"
done
/usr/bin/python3 "$HERE/memcached_client.py" "$PORT" "$SCALE"
kill -TERM $server
# Its main loop looks at the signal when something happens; without this, after up to a second.
(exec 3<> "/dev/tcp/127.0.0.1/$PORT") 2> /dev/null || true
wait $server || true
cat server.log
