# sqlite3.sh: import, indexes, joins, updates, a vacuum; the results, the dump and the file itself are compared.
#
# Who may call it: run.py.
#
# program: reach=sqlite3 needs=sqlite3:sqlite3 input=table
# version: sqlite3 --version
#
# SPDX-License-Identifier: Apache-2.0
sqlite3 -batch data.db <<SQL
PRAGMA journal_mode=MEMORY;
PRAGMA cache_size=-65536;
CREATE TABLE t(id INTEGER PRIMARY KEY, number INTEGER, word TEXT, body TEXT);
.mode csv
.import $INPUT/table.csv t
.mode list
SELECT count(*), sum(number), sum(length(body)) FROM t;
CREATE INDEX t_number ON t(number);
CREATE INDEX t_word ON t(word, length(body));
SELECT word, count(*), max(number) FROM t GROUP BY word ORDER BY 2 DESC, 1 LIMIT 50;
SELECT substr(body, 1, 10), group_concat(id % 97) FROM t WHERE number % 50 = 0 GROUP BY 1 ORDER BY 1 LIMIT 100;
SELECT count(*) FROM t a JOIN t b ON a.number = b.number + 1;
SELECT id, body FROM t WHERE body LIKE '%sluice%gate%' ORDER BY body DESC, id LIMIT 50;
WITH RECURSIVE r(n, s) AS (SELECT 1, 'x' UNION ALL SELECT n + 1, s || n FROM r WHERE n < 3000) SELECT max(length(s)) FROM r;
UPDATE t SET body = upper(body) || ' ' || word WHERE id % 3 = 0;
DELETE FROM t WHERE id % 5 = 0;
VACUUM;
PRAGMA integrity_check;
SELECT count(*), sum(length(body)) FROM t;
SQL
sqlite3 data.db .dump | sha256sum
sha256sum data.db
