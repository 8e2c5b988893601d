# sqlite3_speed.sh: SQL in the manner of sqlite's own speed test: many small statements, each prepared anew, with and
# without indexes, in memory and in a file; JSON, full text search, window functions, triggers, R-trees.
#
# Who may call it: run.py. The lookaside memory is off in the second run, so that every small block of sqlite is malloc's.
#
# program: name=memory env=WHERE=:memory:,LOOKASIDE=100 reach=sqlite3 needs=sqlite3:sqlite3
# program: name=file env=WHERE=speed.db,LOOKASIDE=0 reach=sqlite3 needs=sqlite3:sqlite3
# version: sqlite3 --version
#
# SPDX-License-Identifier: Apache-2.0
count=$((10000 * SCALE))
# Statements as text, so that parser and planner work for each; numbers by a fixed formula.
awk -v count="$count" 'BEGIN {
    state = 1
    print "PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF;"
    print "CREATE TABLE plain(a INTEGER, b INTEGER, c TEXT);"
    print "CREATE TABLE indexed(a INTEGER PRIMARY KEY, b INTEGER, c TEXT); CREATE INDEX indexed_b ON indexed(b); CREATE INDEX indexed_c ON indexed(c);"
    print "BEGIN;"
    for (i = 1; i <= count; i++) {
        state = (state * 16807) % 2147483647
        text = sprintf("number %d of %d and %x", state % 100000, i, state)
        printf "INSERT INTO plain VALUES(%d, %d, \x27%s\x27);\n", i, state % 50000, text
        printf "INSERT INTO indexed VALUES(%d, %d, \x27%s\x27);\n", i, state % 50000, text
        if (i % 1000 == 0) print "COMMIT; BEGIN;"
    }
    print "COMMIT;"
    for (i = 1; i <= 50; i++) printf "SELECT count(*), avg(b) FROM plain WHERE b >= %d AND b < %d;\n", i * 100, i * 100 + 1000
    for (i = 1; i <= 20; i++) printf "SELECT count(*), max(c) FROM plain WHERE c LIKE \x27%%%d%%\x27;\n", i * 37
    print "BEGIN;"
    for (i = 1; i <= count; i++) {
        state = (state * 16807) % 2147483647
        printf "SELECT c FROM indexed WHERE b = %d ORDER BY a LIMIT 1;\n", state % 50000
        if (i % 3 == 0) printf "UPDATE indexed SET b = b + 1, c = c || \x27 again\x27 WHERE a = %d;\n", state % count
        if (i % 7 == 0) printf "DELETE FROM indexed WHERE a = %d;\n", state % count
        if (i % 11 == 0) printf "REPLACE INTO indexed VALUES(%d, %d, \x27replaced\x27);\n", state % count, i
    }
    print "COMMIT;"
}' > small.sql
cat > large.sql <<SQL
SELECT count(*), sum(b), sum(length(c)) FROM plain;
SELECT count(*), sum(b), sum(length(c)) FROM indexed;
CREATE TABLE documents(id INTEGER PRIMARY KEY, document TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $count)
    INSERT INTO documents SELECT i, json_object('id', i, 'name', 'name ' || (i % 97), 'tags', json_array(i % 3, i % 5, 'tag' || (i % 7)),
        'deep', json_object('x', i * 1.5, 'y', printf('%08d', i))) FROM n;
SELECT json_extract(document, '\$.name'), count(*), sum(json_extract(document, '\$.deep.x')) FROM documents GROUP BY 1 ORDER BY 1;
SELECT value, count(*) FROM documents, json_each(document, '\$.tags') GROUP BY 1 ORDER BY 1;
UPDATE documents SET document = json_set(document, '\$.deep.z', json_array(id, id + 1)) WHERE id % 2;
SELECT length(json_group_array(json(document))) FROM documents;
CREATE VIRTUAL TABLE words USING fts5(body);
INSERT INTO words SELECT c || ' ' || (a % 13) FROM plain;
SELECT count(*) FROM words WHERE words MATCH 'number AND 7';
SELECT rowid FROM words WHERE words MATCH '12 NOT 5' ORDER BY rank, rowid LIMIT 20;
CREATE VIRTUAL TABLE boxes USING rtree(id, x1, x2, y1, y2);
INSERT INTO boxes SELECT a, b % 1000, b % 1000 + a % 50, b / 50, b / 50 + a % 30 FROM plain;
SELECT count(*), sum(id) FROM boxes WHERE x1 > 100 AND x2 < 500 AND y1 > 200;
CREATE TABLE log(n INTEGER, t TEXT);
CREATE TRIGGER plain_updated AFTER UPDATE ON plain BEGIN INSERT INTO log VALUES(new.a, old.c || new.c); END;
UPDATE plain SET c = upper(c) WHERE a % 4 = 0;
SELECT count(*), sum(length(t)) FROM log;
SELECT sum(r), max(s) FROM (SELECT rank() OVER (PARTITION BY b % 20 ORDER BY c) AS r, sum(b) OVER (ORDER BY a ROWS 50 PRECEDING) AS s FROM plain);
SELECT length(group_concat(c, ',')) FROM (SELECT c FROM plain ORDER BY c DESC, a);
SELECT count(*) FROM plain JOIN indexed USING(b) WHERE plain.a % 2;
DELETE FROM plain WHERE a % 3 = 0;
VACUUM;
PRAGMA integrity_check;
SQL
{ cat small.sql large.sql; echo ".sha3sum"; } > all.sql
sqlite3 -batch -lookaside 512 "$LOOKASIDE" "$WHERE" < all.sql > result.txt
sha256sum small.sql result.txt
tail -n 40 result.txt
