# redis.sh: redis under redis-benchmark, then a scripted load whose keyspace digest is compared.
#
# Who may call it: run.py. Debian links redis with jemalloc as a shared library: a preloaded malloc comes before it and
# takes its calls over. The first run compares with jemalloc as it comes, and the proof that calls went there; the second
# with glibc's malloc, preloaded.
#
# program: name=jemalloc served=libjemalloc.so.2 reach=redis-server|redis-check-rdb,redis-benchmark,redis-cli main=redis-server|redis-check-rdb needs=redis-server:redis-server,redis-benchmark:redis-tools input=commands
# program: name=glibc baseline=libc.so.6 reach=redis-server|redis-check-rdb,redis-benchmark,redis-cli main=redis-server|redis-check-rdb needs=redis-server:redis-server,redis-benchmark:redis-tools input=commands
# version: redis-server --version
#
# SPDX-License-Identifier: Apache-2.0
redis-server --port "$PORT" --bind 127.0.0.1 --save "" --appendonly no --enable-debug-command yes --dir . --daemonize no \
    --io-threads 2 --hash-max-listpack-entries 64 > server.log 2>&1 &
server=$!
cli() { redis-cli -p "$PORT" "$@"; }
for _ in $(seq 100); do
    cli ping > /dev/null 2>&1 && break
    sleep 0.05
done
cli ping
redis-benchmark -p "$PORT" -n $((5000 * SCALE)) -c 20 -d 300 -r 10000 -P 8 -q -t set,get,incr,lpush,lpop,sadd,hset,zadd,lrange_100 > benchmark.log 2>&1
grep -c 'requests per second' <(tr '\r' '\n' < benchmark.log | grep -v 'rps=') || { cat benchmark.log; exit 1; }
cli flushall
cli < "$INPUT/commands.txt" | sha256sum
cli dbsize
cli debug digest
# A child of fork saves; the server loads what it saved.
cli save
cli debug reload
cli debug digest
cli memory purge
cli shutdown nosave || true
wait $server
grep -ciE 'crash|assert|bug report' server.log || true
