# postgres.sh: PostgreSQL: initdb, pgbench with a fixed seed, queries with sorts, hashes and JSON, a dump; all compared.
#
# Who may call it: run.py. The server refuses to run as root: there, every command of it goes to the user `postgres`,
# which the package made, by setpriv, and the environment with LD_PRELOAD goes along. pgbench's sums depend on each
# client's own random numbers alone, not on the order in which the clients come.
#
# program: reach=initdb,postgres,pgbench,psql,pg_dump needs=/usr/lib/postgresql/*/bin/initdb:postgresql,/usr/lib/postgresql/*/bin/pgbench:postgresql,setpriv:util-linux main=postgres rounds=1
# version: /usr/lib/postgresql/*/bin/postgres --version
#
# SPDX-License-Identifier: Apache-2.0
binaries=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
as=()
if [ "$(id -u)" -eq 0 ]; then
    as=(setpriv --reuid=postgres --regid=postgres --clear-groups)
    chown postgres .
fi
export PGHOST=$PWD PGPORT=$PORT PGUSER=weir PGDATABASE=postgres PGDATA=$PWD/data PSQLRC=/dev/null
"${as[@]}" "$binaries/initdb" --no-sync --auth=trust --username=weir --locale=C --encoding=UTF8 > initdb.log 2>&1 || { cat initdb.log; exit 1; }
# No TCP at all: a socket in this directory. Its own data, so a server that the package started is not touched.
"${as[@]}" "$binaries/postgres" -c listen_addresses= -c unix_socket_directories="$PWD" -c fsync=off -c full_page_writes=off \
    -c shared_buffers=32MB -c max_wal_size=2GB -c work_mem=32MB -c maintenance_work_mem=64MB -c autovacuum=off -c jit=off \
    -c max_parallel_workers_per_gather=2 -c min_parallel_table_scan_size=64kB -c parallel_setup_cost=0 \
    > server.log 2>&1 &
server=$!
ready() { "$binaries/pg_isready" -q; }
for _ in $(seq 200); do
    ready && break
    sleep 0.05
done
ready || { cat server.log; exit 1; }
sql() { "${as[@]}" "$binaries/psql" -X -q -A -t -v ON_ERROR_STOP=1 "$@"; }

"${as[@]}" "$binaries/pgbench" -i -q -s $((SCALE / 2)) > /dev/null 2> init.log || { cat init.log; exit 1; }
"${as[@]}" "$binaries/pgbench" -n -c 4 -j 2 -t $((200 * SCALE)) --random-seed=1 > bench.log 2>&1 || { cat bench.log; exit 1; }
"${as[@]}" "$binaries/pgbench" -n -S -M prepared -c 4 -j 2 -t $((500 * SCALE)) --random-seed=2 >> bench.log 2>&1 || { cat bench.log; exit 1; }
grep -E '^number of (transactions actually|failed)' bench.log
sql <<SQL
SELECT 'accounts', count(*), sum(abalance), md5(string_agg(aid || ':' || abalance, ',' ORDER BY aid)) FROM pgbench_accounts;
SELECT 'tellers', md5(string_agg(tid || ':' || tbalance, ',' ORDER BY tid)) FROM pgbench_tellers;
SELECT 'branches', md5(string_agg(bid || ':' || bbalance, ',' ORDER BY bid)) FROM pgbench_branches;
SELECT 'history', count(*), sum(delta), md5(string_agg(tid || ':' || aid || ':' || delta, ',' ORDER BY tid, aid, delta)) FROM pgbench_history;
CREATE TABLE t AS
    SELECT i AS id, (i * 7919::bigint) % 5003 AS number, md5(i::text) AS word, repeat(md5((i * 3)::text), i % 20) AS body,
        jsonb_build_object('id', i, 'tags', jsonb_build_array(i % 7, i % 11, md5((i % 100)::text)), 'deep', jsonb_build_object('n', i % 1000)) AS document
    FROM generate_series(1, 10000 * $SCALE) AS i;
CREATE INDEX t_word ON t(word);
CREATE INDEX t_document ON t USING gin(document);
ANALYZE t;
SELECT 'sort', md5(string_agg(word, '' ORDER BY body, word)) FROM t;
SELECT 'hash join', count(*), sum(a.id + b.id) FROM t a JOIN t b ON a.number = b.number + 1;
SELECT 'group', count(*), max(c) FROM (SELECT substr(word, 1, 3) AS w, count(*) AS c FROM t GROUP BY 1) AS g;
SELECT 'json', count(*), sum((document #>> '{deep,n}')::int) FROM t WHERE document @> '{"tags": [3]}';
SELECT 'document', md5(jsonb_agg(document ORDER BY id)::text) FROM t;
SELECT 'regexp', count(*) FROM t WHERE body ~ '(ab|cd)[0-9]{3}.*[ef]+\$';
SELECT 'window', md5(string_agg(r::text, ',' ORDER BY id)) FROM (SELECT id, rank() OVER (PARTITION BY number % 50 ORDER BY word) AS r FROM t) AS w;
DO \$\$
DECLARE a text[] := '{}'; n int := 0;
BEGIN
    FOR i IN 1 .. 2000 LOOP
        a := array_append(a, repeat('x', i % 100));
        BEGIN
            IF i % 10 = 0 THEN RAISE EXCEPTION 'one in ten'; END IF;
        EXCEPTION WHEN OTHERS THEN n := n + 1;
        END;
    END LOOP;
    CREATE TABLE done AS SELECT n AS caught, cardinality(a) AS elements;
END \$\$;
SELECT 'exceptions', * FROM done;
UPDATE t SET body = upper(body) WHERE id % 3 = 0;
VACUUM FULL t;
SQL
# Without comments and without the random word with which newer versions fence the dump.
"${as[@]}" "$binaries/pg_dump" --data-only --table=t --table='pgbench_[abt]*' | grep -vE '^(--|\\(un)?restrict )' | LC_ALL=C sort | sha256sum
kill -INT $server
wait $server
# A backend that died is named here; a client that asked too early is none, nor one that the end of the server met.
grep -E 'PANIC|FATAL|terminated by signal|crash' server.log | grep -vE 'starting up|due to administrator command' || true
