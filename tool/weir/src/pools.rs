//! The object pools of processes as text, for the reports of `weir run` and `weir stats`. Pure: it takes
//! decoded rows. It does not know where they come from.
//!
//! SPDX-License-Identifier: Apache-2.0

use crate::report::Line;
use crate::units::{bytes, count, plural, printable};
use crate::wire::{Pool, Pools};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

/// More rows than this are cut; the JSON has them all.
const ROWS_MAX: usize = 10;

/// `sets`: each process's pid and pools. Nothing, where no pool was ever made.
pub fn text(out: &mut String, sets: &[(i32, &Pools)], line: Line) {
    let made: u64 = sets.iter().map(|(_, pools)| pools.made).sum();
    if made == 0 {
        return;
    }
    line(out, "pools", summary(sets, made));
    let mut rows: Vec<(i32, &Pool)> =
        sets.iter().flat_map(|(pid, pools)| pools.rows.iter().map(|pool| (*pid, pool))).collect();
    if rows.is_empty() && sets.iter().all(|(_, pools)| pools.left_out == 0) {
        return;
    }
    // The largest first; of those that share memory the one that uses most of it.
    rows.sort_by_key(|(pid, pool)| {
        let taken = pool.allocated.saturating_mul(pool.block_bytes);
        (Reverse(taken), Reverse(pool.used.saturating_mul(pool.block_bytes)), *pid, pool.number)
    });
    let shown = &rows[..rows.len().min(ROWS_MAX)];
    table(out, shown, sets.iter().filter(|(_, pools)| pools.made > 0).count() > 1);
    if rows.len() > shown.len() {
        let more = count((rows.len() - shown.len()) as u64);
        let _ = writeln!(out, "    and {more} more; --json has them all");
    }
    let left_out = sets.iter().map(|(_, pools)| pools.left_out).sum();
    if left_out > 0 {
        let pools = plural(left_out, "pool", "pools");
        let _ = writeln!(out, "  note: {pools} found no free row: in the number alone");
    }
    if shown.iter().any(|(_, pool)| pool.users > 1) {
        out.push_str("  note: pools of one size share memory: allocated, cached and needed are of all users\n");
    }
}

fn summary(sets: &[(i32, &Pools)], made: u64) -> String {
    let now: u64 = sets.iter().map(|(_, pools)| u64::from(pools.now)).sum();
    if now == 0 {
        return format!("{made} made, all destroyed", made = count(made));
    }
    // Pools with one storage share what that has: it counts once.
    let mut storages = BTreeMap::new();
    let mut used = 0u64;
    for (at, (_, pools)) in sets.iter().enumerate() {
        for pool in &pools.rows {
            let taken = pool.allocated.saturating_mul(pool.block_bytes);
            storages.insert((at, pool.storage), taken);
            used = used.saturating_add(pool.used.saturating_mul(pool.block_bytes));
        }
    }
    let taken = storages.values().fold(0u64, |sum, taken| sum.saturating_add(*taken));
    let mut text = format!("{}, {} allocated, {} in use", count(now), bytes(taken), bytes(used));
    if made > now {
        let _ = write!(text, "; {} more destroyed", count(made - now));
    }
    text
}

fn table(out: &mut String, rows: &[(i32, &Pool)], several: bool) {
    let heads =
        ["name", "size", "users", "allocated", "used", "cached", "needed", "failed", "process"];
    let columns = if several { heads.len() } else { heads.len() - 1 };
    let mut lines = vec![heads.map(str::to_owned)];
    lines.extend(rows.iter().map(|(pid, pool)| {
        [
            printable(&pool.name),
            count(pool.object_bytes),
            count(pool.users),
            count(pool.allocated),
            count(pool.used),
            count(pool.cached),
            count(pool.needed),
            count(pool.failed),
            pid.to_string(),
        ]
    }));
    let mut widths = [0; 9];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    for line in &lines {
        let _ = write!(out, "    {:<width$}", line[0], width = widths[0]);
        for (cell, width) in line.iter().zip(widths).take(columns).skip(1) {
            let _ = write!(out, "  {cell:>width$}");
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, block_bytes: u64, allocated: u64, used: u64, storage: u64) -> Pool {
        Pool {
            name: name.to_owned(),
            object_bytes: block_bytes,
            block_bytes,
            users: 1,
            storage,
            allocated,
            used,
            cached: allocated - used,
            ..Pool::default()
        }
    }

    fn shown(sets: &[(i32, &Pools)]) -> String {
        let mut out = String::new();
        text(&mut out, sets, &|out, label, value| {
            let _ = writeln!(out, "  {label:<15} {value}");
        });
        out
    }

    fn pools(rows: Vec<Pool>) -> Pools {
        Pools { made: rows.len() as u64, now: rows.len() as u32, left_out: 0, rows }
    }

    #[test]
    fn no_pools_are_no_lines() {
        assert_eq!(shown(&[]), "");
        assert_eq!(shown(&[(7, &Pools::default())]), "");
    }

    #[test]
    fn the_largest_come_first() {
        let mut rows =
            pools(vec![pool("small", 64, 100, 60, 0), pool("large", 16384, 1000, 999, 1)]);
        rows.made = 4;
        assert_eq!(
            shown(&[(7, &rows)]),
            "  pools           2, 15.6 MiB allocated, 15.6 MiB in use; 2 more destroyed\n\
             \x20   name     size  users  allocated  used  cached  needed  failed\n\
             \x20   large  16,384      1      1,000   999       1       0       0\n\
             \x20   small      64      1        100    60      40       0       0\n"
        );
    }

    #[test]
    fn shared_memory_counts_once() {
        let mut rows = pools(vec![
            pool("a", 1024, 10, 2, 0),
            pool("b", 1024, 10, 8, 0),
            pool("c", 1024, 10, 10, 1),
        ]);
        rows.rows[0].users = 2;
        rows.rows[1].users = 2;
        let text = shown(&[(7, &rows)]);
        assert!(text.contains("3, 20.0 KiB allocated, 20.0 KiB in use\n"), "{text}");
        let names: Vec<&str> = text.lines().skip(2).map(|line| &line[4..5]).collect();
        assert_eq!(names[..3], ["c", "b", "a"], "{text}");
        assert!(text.contains("note: pools of one size share memory"), "{text}");
    }

    #[test]
    fn many_are_cut_and_counted() {
        let mut rows =
            pools((0..14).map(|at| pool(&format!("p{at}"), 16, 100 - at, 0, at)).collect());
        rows.left_out = 3;
        rows.now += 3;
        rows.made += 3;
        let text = shown(&[(7, &rows)]);
        assert!(text.contains("    p9 ") && !text.contains("    p10"), "{text}");
        assert!(text.contains("    and 4 more; --json has them all\n"), "{text}");
        assert!(text.contains("note: 3 pools found no free row"), "{text}");
    }

    #[test]
    fn processes_are_told_apart() {
        let one = pools(vec![pool("a", 16, 1, 1, 0)]);
        let two = pools(vec![pool("a", 16, 2, 1, 0)]);
        let text = shown(&[(7, &one), (8, &Pools::default()), (9, &two)]);
        assert!(text.contains("2, 48 B allocated, 32 B in use"), "{text}");
        assert!(text.contains("failed  process\n") && text.contains("       9\n"), "{text}");
    }

    #[test]
    fn pools_that_ended_are_counted() {
        let gone = Pools { made: 2, ..Pools::default() };
        assert_eq!(shown(&[(7, &gone)]), "  pools           2 made, all destroyed\n");
    }

    #[test]
    fn names_do_not_reach_the_terminal_as_they_are() {
        let text = shown(&[(7, &pools(vec![pool("a\x1b[31mü", 16, 1, 1, 0)]))]);
        assert!(text.contains("    a?[31mü    16"), "{text}");
    }
}
