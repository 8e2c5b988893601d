//! Whole programs with inputs that are the same everywhere: a table of what to run, where it is installed. What is not
//! installed is listed, never passed over. It does not know under which allocators they run.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::item::{Item, Kind, Load};
use super::result::Missing;
use crate::compare;
use crate::library::{self, Place};
use crate::program;
use anyhow::Result;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Row {
    name: &'static str,
    shape: &'static str,
    /// All must be there; the first is what the command runs.
    needs: &'static [&'static str],
    arguments: &'static [&'static str],
    /// Makes the input, where there is one.
    input: Option<fn() -> String>,
    /// A server's port and load.
    load: Option<(u16, &'static str)>,
}

const REDIS_LOAD: &str =
    "redis-benchmark -p 16379 -n 200000 -r 100000 -d 100 -P 16 -c 20 -t set,get,lpush,hset -q";

const ROWS: &[Row] = &[
    Row {
        name: "program/redis",
        shape: "a server of keys and values, under redis-benchmark",
        needs: &["redis-server", "redis-benchmark"],
        arguments: &["--port", "16379", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
        input: None,
        load: Some((16379, REDIS_LOAD)),
    },
    Row {
        name: "program/memcached",
        shape: "a cache with threads and an allocator of its own, under a client in Python",
        needs: &["memcached", "python3"],
        arguments: &["-p", "16211", "-l", "127.0.0.1", "-m", "64", "-u", "nobody"],
        input: None,
        load: Some((16211, MEMCACHED_LOAD)),
    },
    Row {
        name: "program/sqlite",
        shape: "a database in memory: tables, an index, joins",
        needs: &["sqlite3"],
        arguments: &[":memory:"],
        input: Some(sql),
        load: None,
    },
    Row {
        name: "program/python",
        shape: "an interpreter whose objects all come from malloc",
        needs: &["env", "python3"],
        arguments: &["PYTHONMALLOC=malloc", "PYTHONHASHSEED=0", "python3", "-c", PYTHON],
        input: None,
        load: None,
    },
    Row {
        name: "program/c++",
        shape: "a C++ compiler on a file of templates",
        needs: &["g++"],
        arguments: &["-std=c++17", "-O1", "-c", "-o", "/dev/null", "-x", "c++", "-"],
        input: Some(cxx),
        load: None,
    },
    Row {
        name: "program/ghostscript",
        shape: "an interpreter of PostScript that draws pages",
        needs: &["gs"],
        arguments: &[
            "-q",
            "-dSAFER",
            "-dBATCH",
            "-dNOPAUSE",
            "-sDEVICE=ppmraw",
            "-r100",
            "-sOutputFile=/dev/null",
            "-",
        ],
        input: Some(postscript),
        load: None,
    },
    Row {
        name: "program/z3",
        shape: "a solver: more pigeons than holes",
        needs: &["z3"],
        arguments: &["-smt2", "-in"],
        input: Some(pigeons),
        load: None,
    },
    Row {
        name: "program/java",
        shape: "the start of a Java machine",
        needs: &["java"],
        arguments: &["-Xshare:auto", "-version"],
        input: None,
        load: None,
    },
    Row {
        name: "program/node",
        shape: "a JavaScript machine that makes and parses JSON",
        needs: &["node"],
        arguments: &["-e", NODE],
        input: None,
        load: None,
    },
];

const MEMCACHED_LOAD: &str = r#"python3 -c '
import socket
s = socket.create_connection(("127.0.0.1", 16211))
f = s.makefile("rb")
for batch in range(400):
    s.sendall(b"".join(b"set k%d 0 0 %d\r\n%s\r\n" % (i, 20 + i % 900, b"x" * (20 + i % 900)) for i in range(batch * 100, batch * 100 + 100)))
    for i in range(100):
        assert f.readline() == b"STORED\r\n"
'"#;

const PYTHON: &str = r#"
import json
table = {}
for i in range(120000):
    table["key%d" % i] = [i, str(i) * 3, {"a": i, "b": [i] * 3}]
for i in range(0, 120000, 3):
    del table["key%d" % i]
text = json.dumps(list(table.values())[:20000])
assert len(json.loads(text)) == 20000
words = sorted(text.split(","))
print(len(words))
"#;

const NODE: &str = r#"
const rows = [];
for (let i = 0; i < 200000; i++) rows.push({id: i, name: "n" + i, tags: ["a" + i % 7, "b" + i % 11]});
const text = JSON.stringify(rows);
const again = JSON.parse(text);
const buffers = [];
for (let i = 0; i < 3000; i++) buffers.push(Buffer.alloc(4096 + i % 5000, i));
console.log(again.length, buffers.length, text.length);
"#;

fn sql() -> String {
    let mut text =
        String::from("CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, value INTEGER);\nBEGIN;\n");
    for id in 0..40_000_u64 {
        let value = id.wrapping_mul(0x9e37_79b9) % 10_007;
        let _ = writeln!(text, "INSERT INTO t VALUES({id}, 'name {value} of {id}', {value});");
    }
    text.push_str("COMMIT;\nCREATE INDEX i ON t(value);\n");
    for low in 0..200 {
        let _ = writeln!(
            text,
            "SELECT count(*), max(name) FROM t WHERE value BETWEEN {low} AND {low} + 500;"
        );
    }
    text.push_str("SELECT count(*) FROM t a JOIN t b ON a.value = b.value WHERE a.id < 5000;\nDELETE FROM t WHERE id % 2;\n");
    text
}

fn cxx() -> String {
    let headers = [
        "algorithm",
        "functional",
        "map",
        "memory",
        "regex",
        "string",
        "unordered_map",
        "variant",
        "vector",
    ];
    let mut text: String = headers.iter().map(|header| format!("#include <{header}>\n")).collect();
    for at in 0..40 {
        let _ = write!(
            text,
            "struct key{at} {{ int a; bool operator<(const key{at}& o) const {{ return a < o.a; }} }};\n\
             int use{at}(std::map<key{at}, std::vector<std::string>>& m) {{ m[key{at}{{{at}}}].push_back(\"x\"); return (int)m.size(); }}\n"
        );
    }
    text
}

fn postscript() -> String {
    "%!PS\n1 1 12 { /page exch def\n  0 1 400 { /i exch def\n    newpath i 500 mod i page mul 700 mod 40 0 360 arc closepath\n    \
     i 400 div page 12 div 0.5 setrgbcolor fill\n    /Helvetica findfont 8 page add scalefont setfont\n    \
     i 500 mod i 700 mod moveto (page of text) show\n  } for\n  showpage\n} for\n"
        .to_owned()
}

/// `x P H`: pigeon P is in hole H. The formula has no solution, which takes a search to see.
fn pigeons() -> String {
    const HOLES: usize = 8;
    let mut text = String::new();
    for pigeon in 0..=HOLES {
        for hole in 0..HOLES {
            let _ = writeln!(text, "(declare-const x{pigeon}_{hole} Bool)");
        }
        let somewhere: Vec<String> = (0..HOLES).map(|hole| format!("x{pigeon}_{hole}")).collect();
        let _ = writeln!(text, "(assert (or {}))", somewhere.join(" "));
    }
    for hole in 0..HOLES {
        for one in 0..=HOLES {
            for other in 0..one {
                let _ = writeln!(text, "(assert (not (and x{one}_{hole} x{other}_{hole})))");
            }
        }
    }
    text.push_str("(check-sat)\n");
    text
}

/// The programs that are here, and those that are not. Inputs lie in `place`.
pub fn programs(place: &Place) -> Result<(Vec<Item>, Vec<Missing>)> {
    let path = std::env::var_os("PATH");
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let python = program::find("python3".as_ref(), path.as_deref()).map(|file| python(&file));
    let python = python.unwrap_or_default().to_string_lossy().into_owned();
    for row in ROWS {
        let files: Vec<Result<PathBuf>> =
            row.needs.iter().map(|name| program::find(name.as_ref(), path.as_deref())).collect();
        let lacking: Vec<&str> = row
            .needs
            .iter()
            .zip(&files)
            .filter(|(_, file)| file.is_err())
            .map(|(name, _)| *name)
            .collect();
        match files.into_iter().next() {
            Some(Ok(file)) if lacking.is_empty() => found.push(item(row, file, &python, place)?),
            _ => missing.push(Missing { name: row.name.to_owned(), needs: lacking.join(", ") }),
        }
    }
    Ok((found, missing))
}

/// The interpreter itself: what is called so may be a script that looks for it, whose shells would be measured too.
fn python(found: &Path) -> PathBuf {
    let told = Command::new(found).args(["-c", "import sys; print(sys.executable)"]).output();
    let told = told.ok().filter(|told| told.status.success());
    let path = told.map(|told| PathBuf::from(String::from_utf8_lossy(&told.stdout).trim()));
    path.filter(|path| path.is_absolute() && path.is_file()).unwrap_or_else(|| found.to_path_buf())
}

fn item(row: &Row, file: PathBuf, python: &str, place: &Place) -> Result<Item> {
    let input = row.input.map(|make| input(row, &make(), place)).transpose()?;
    let mut words = vec![OsString::from(row.needs[0])];
    let word = |word: &&str| OsString::from(if *word == "python3" { python } else { *word });
    words.extend(row.arguments.iter().map(word));
    let (file, arguments) = compare::executed(file, &words);
    Ok(Item {
        name: row.name.to_owned(),
        kind: Kind::Program,
        shape: row.shape.to_owned(),
        sizes: None,
        threads: None,
        file,
        arguments,
        input,
        load: row.load.map(|(port, line)| Load {
            port,
            line: line.replace("python3 ", &format!("'{python}' ")),
        }),
        tells_time: false,
    })
}

fn input(row: &Row, text: &str, place: &Place) -> Result<PathBuf> {
    let name = Path::new(row.name).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let made = place.data(&format!("input-{name}"), 0o600).and_then(|(path, mut file)| {
        file.write_all(text.as_bytes())?;
        Ok(path)
    });
    made.map_err(|error| library::cannot_make("an input", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_the_same_each_time() {
        for row in ROWS {
            if let Some(make) = row.input {
                assert!(make() == make() && make().len() > 100, "{}", row.name);
            }
            assert!(!row.needs.is_empty() && row.name.starts_with("program/"));
        }
    }

    #[test]
    fn what_is_not_there_is_named() {
        let (found, missing) = programs(&Place::new()).expect("the table");
        assert_eq!(found.len() + missing.len(), ROWS.len());
        assert!(missing.iter().all(|program| !program.needs.is_empty()));
    }
}
