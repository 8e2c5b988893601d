//! What has changed since a kept result: the ratio of now to before for each workload, allocator and measure, with the
//! widest interval that the two medians' intervals allow. Pure. It does not know how either was measured.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::result::{AllocatorEntry, Document, Entry, Run};
use crate::compare::allocators::WEIR;
use crate::compare::condition::{Answer, Condition};
use crate::compare::machine::Machine;
use crate::compare::measure::{MEASURES, Measure};
use crate::compare::outcome::differs;
use crate::compare::stats::{Estimate, Interval, VALUES_MIN};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Against {
    /// Only what has changed by more than the intervals allow; the largest growth first.
    pub changes: Vec<Change>,
    pub conditions: Vec<Judged>,
    /// Workloads that one of the two results does not have.
    pub not_in_both: Vec<String>,
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Change {
    pub workload: String,
    pub allocator: String,
    pub measure: String,
    pub ratio: f64,
    pub interval: (f64, f64),
}

/// A `--fail-if`, over all workloads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Judged {
    pub condition: String,
    /// Workloads in which weir is worse beyond doubt.
    pub met: Vec<String>,
    /// Workloads in which its median is, and the interval is not.
    pub uncertain: Vec<String>,
    /// Workloads of which the earlier result tells nothing.
    #[serde(default)]
    pub not_judged: Vec<String>,
    /// Chosen workloads of which the earlier result tells weir's median and interval, and which now are gone, lack
    /// them, or do other work.
    #[serde(default)]
    pub lost: Vec<String>,
    /// In so many workloads it could be judged.
    #[serde(default)]
    pub judged: usize,
}

impl Against {
    pub fn met(&self) -> bool {
        self.conditions.iter().any(|judged| !judged.met.is_empty())
    }

    /// Some condition could be judged nowhere, or not where it could before: that it was not met says nothing.
    pub fn says_nothing(&self) -> bool {
        self.conditions.iter().any(|judged| judged.judged == 0 || !judged.lost.is_empty())
    }
}

/// Why no condition can be judged against this result, whatever comes of the new one.
pub fn cannot_judge(before: &Document, here: &Machine, conditions: &[Condition]) -> Option<String> {
    let timed = conditions.iter().find(|one| matches!(one.measure, Measure::Time | Measure::Cpu));
    if let Some(timed) = timed.filter(|_| here.has_other_processors(&before.machine)) {
        return Some(format!(
            "--fail-if '{}': the earlier result is of other processors, whose times do not compare ({}): keep one of this machine",
            timed.text,
            here.differences(&before.machine).join("; ")
        ));
    }
    let huge = here.huge_pages.as_ref().zip(before.machine.huge_pages.as_ref());
    if let Some((here, there)) = huge.filter(|(here, there)| here != there) {
        return Some(format!(
            "--fail-if: huge pages are '{here}' here and were '{there}', which changes time, faults and memory: keep a result of this setting"
        ));
    }
    let of_weir = |run: &Run| run.allocator == WEIR;
    let lacks =
        conditions.iter().find(|condition| !before.has_interval(condition.measure, of_weir))?;
    let rests = if lacks.measure.needs_rest() { ", all of which rest" } else { "" };
    Some(format!(
        "--fail-if '{}': the earlier result has no confidence interval of weir's {}: keep one of {} rounds or more{rests}",
        lacks.text,
        lacks.measure.name(),
        VALUES_MIN
    ))
}

/// Now to before. The two were not interleaved, so their rounds are no pairs.
fn ratio(before: &Run, now: &Run, measure: Measure) -> Option<Estimate> {
    let (before, now) = (before.estimate(measure)?, now.estimate(measure)?);
    if before.median <= 0.0 {
        return None;
    }
    let interval = before.interval.zip(now.interval).filter(|(before, _)| before.low > 0.0);
    let interval = interval
        .map(|(before, now)| Interval { low: now.low / before.high, high: now.high / before.low });
    Some(Estimate { median: now.median / before.median, interval })
}

/// Now to before, of all that are not weir and are in both, the median of their ratios: what the machine's hour does to
/// everybody. None: there is nobody else.
fn hour(before: &Document, now: &Document, measure: Measure) -> Option<f64> {
    let mut ratios: Vec<f64> = Vec::new();
    for entry in &now.workloads {
        let Some(earlier) = comparable(before, now, entry) else { continue };
        let others = entry.results.iter().filter(|run| run.counts() && run.allocator != WEIR);
        let pairs = others.filter_map(|run| Some((earlier.run(&run.allocator)?, run)));
        ratios.extend(pairs.filter_map(|(then, run)| Some(ratio(then, run, measure)?.median)));
    }
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied()
}

/// In an hour in which everybody took 1.1 times as long, weir's 1.1 is no change.
fn in_hour(ratio: Estimate, hour: Option<f64>) -> Estimate {
    let hour = hour.filter(|hour| *hour > 0.0).unwrap_or(1.0);
    let interval =
        ratio.interval.map(|one| Interval { low: one.low / hour, high: one.high / hour });
    Estimate { median: ratio.median / hour, interval }
}

/// Measures that the machine's hour changes.
fn depends_on_hour(measure: Measure) -> bool {
    matches!(measure, Measure::Time | Measure::Cpu)
}

/// Whether two of one name do the same work, as far as both say. Where only one of them is quick, the number of
/// operations tells nothing.
fn same_work(earlier: &Entry, now: &Entry, same_scale: bool) -> bool {
    fn agree<T: PartialEq>(earlier: Option<T>, now: Option<T>) -> bool {
        earlier.zip(now).is_none_or(|(earlier, now)| earlier == now)
    }
    earlier.revision == now.revision
        && agree(earlier.sizes.as_deref(), now.sizes.as_deref())
        && agree(earlier.threads, now.threads)
        && agree(earlier.program.as_deref(), now.program.as_deref())
        && (!same_scale || agree(earlier.operations, now.operations))
}

/// The entries of that name, and whether they do the same work.
fn same_name<'a>(before: &'a Document, now: &Document, entry: &Entry) -> Option<(&'a Entry, bool)> {
    let earlier = before.workloads.iter().find(|earlier| earlier.name == entry.name)?;
    Some((earlier, same_work(earlier, entry, before.quick == now.quick)))
}

/// The earlier entry that this one can be held against.
fn comparable<'a>(before: &'a Document, now: &Document, entry: &Entry) -> Option<&'a Entry> {
    same_name(before, now, entry).and_then(|(earlier, same)| same.then_some(earlier))
}

/// `chosen`: the workloads that were to run.
pub fn compare(
    before: &Document,
    now: &Document,
    conditions: &[Condition],
    chosen: &dyn Fn(&str) -> bool,
) -> Against {
    let mut changes = Vec::new();
    for entry in &now.workloads {
        let Some(earlier) = comparable(before, now, entry) else { continue };
        for run in entry.results.iter().filter(|run| run.counts()) {
            let Some(earlier) = earlier.run(&run.allocator) else { continue };
            for measure in MEASURES {
                let Some(ratio) = ratio(earlier, run, measure).filter(differs) else { continue };
                let Some(Interval { low, high }) = ratio.interval else { continue };
                changes.push(Change {
                    workload: entry.name.clone(),
                    allocator: run.allocator.clone(),
                    measure: measure.name().to_owned(),
                    ratio: ratio.median,
                    interval: (low, high),
                });
            }
        }
    }
    changes.sort_by(|left, right| right.ratio.total_cmp(&left.ratio));
    Against {
        changes,
        conditions: conditions.iter().map(|one| judge(before, now, one, chosen)).collect(),
        not_in_both: not_in_both(before, now, chosen),
        notes: notes(before, now),
    }
}

fn judge(
    before: &Document,
    now: &Document,
    condition: &Condition,
    chosen: &dyn Fn(&str) -> bool,
) -> Judged {
    let told = |name: &str| {
        let earlier = before.workloads.iter().find(|earlier| earlier.name == name);
        let run = earlier.and_then(|earlier| earlier.run(WEIR));
        run.and_then(|run| run.estimate(condition.measure))
            .is_some_and(|one| one.interval.is_some())
    };
    let mut judged = Judged {
        condition: condition.text.clone(),
        met: Vec::new(),
        uncertain: Vec::new(),
        not_judged: Vec::new(),
        lost: Vec::new(),
        judged: 0,
    };
    let hour = if depends_on_hour(condition.measure) {
        hour(before, now, condition.measure)
    } else {
        None
    };
    for entry in &now.workloads {
        let earlier = comparable(before, now, entry);
        let pair = earlier.and_then(|earlier| earlier.run(WEIR)).zip(entry.run(WEIR));
        let ratio = pair.and_then(|(earlier, run)| ratio(earlier, run, condition.measure));
        let Some(ratio) = ratio.filter(|ratio| ratio.interval.is_some()) else {
            let list = if told(&entry.name) { &mut judged.lost } else { &mut judged.not_judged };
            list.push(entry.name.clone());
            continue;
        };
        judged.judged += 1;
        match condition.answer(&in_hour(ratio, hour)) {
            Answer::Met => judged.met.push(entry.name.clone()),
            Answer::Uncertain => judged.uncertain.push(entry.name.clone()),
            Answer::NotMet => {}
        }
    }
    let gone = before.workloads.iter().map(|earlier| &earlier.name);
    let gone = gone.filter(|name| chosen(name) && told(name) && !now.has_workload(name));
    judged.lost.extend(gone.cloned());
    judged
}

fn not_in_both(before: &Document, now: &Document, chosen: &dyn Fn(&str) -> bool) -> Vec<String> {
    let new = now.workloads.iter().filter(|entry| !before.has_workload(&entry.name));
    let gone = before.workloads.iter().filter(|entry| !now.has_workload(&entry.name));
    let gone = gone.filter(|entry| chosen(&entry.name));
    new.chain(gone).map(|entry| entry.name.clone()).collect()
}

/// From which on a change of everybody's times is told.
const HOUR_TOLD: f64 = 0.02;

/// Why figures may differ without a change of an allocator.
fn notes(before: &Document, now: &Document) -> Vec<String> {
    let mut notes = Vec::new();
    let differences = now.machine.differences(&before.machine);
    if !differences.is_empty() {
        notes.push(format!(
            "the earlier result is of another machine, kernel or system: times do not compare ({})",
            differences.join("; ")
        ));
    }
    match hour(before, now, Measure::Time) {
        Some(hour) if (hour - 1.0).abs() > HOUR_TOLD => notes.push(format!(
            "the others take {:+.0} % of their time before: --fail-if takes that off weir's, what has changed above is as measured",
            (hour - 1.0) * 100.0
        )),
        None if now.workloads.iter().any(|entry| comparable(before, now, entry).is_some()) => notes.push(
            "no other allocator is in both results: what the machine's hour does is in the times"
                .to_owned(),
        ),
        _ => {}
    }
    if before.interrupted {
        notes.push("the earlier result was interrupted: some of its rows have fewer rounds, or are missing".to_owned());
    }
    if before.quick || now.quick {
        notes.push("a quick result has no intervals, so that no change can be told".to_owned());
    }
    let tells = |document: &Document| document.has_interval(Measure::Final, |_| true);
    if !(before.quick || now.quick) && tells(before) != tells(now) {
        let note = "in one of the results too few rounds rest: no change of memory at the end or of CPU time can be told";
        notes.push(note.to_owned());
    }
    let differing: Vec<&str> = now
        .workloads
        .iter()
        .filter(|entry| same_name(before, now, entry).is_some_and(|(_, same)| !same))
        .map(|entry| entry.name.as_str())
        .collect();
    if !differing.is_empty() {
        let names = differing.join(", ");
        notes.push(format!(
            "the work differs from that of before, and no change can be told: {names}"
        ));
    }
    for allocator in &now.allocators {
        let earlier = before.allocators.iter().find(|earlier| earlier.name == allocator.name);
        notes.extend(earlier.into_iter().flat_map(|earlier| builds(earlier, allocator)));
    }
    notes
}

/// How two builds of one allocator differ: in version; else in what they were built with, where both say it.
fn builds(before: &AllocatorEntry, now: &AllocatorEntry) -> Vec<String> {
    let note = |what: &str, before: &Option<String>, after: &Option<String>| {
        let [before, after] = [before, after].map(|text| text.as_deref().unwrap_or("unknown"));
        format!("{}: {what} {before} before, {after} now", now.name)
    };
    if before.version != now.version {
        return vec![note("version", &before.version, &now.version)];
    }
    [("compiler", &before.compiler, &now.compiler), ("flags", &before.flags, &now.flags)]
        .into_iter()
        .filter(|(_, before, after)| before.is_some() && after.is_some() && before != after)
        .map(|(what, before, after)| note(what, before, after))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::result::SCHEMA;
    use super::super::summary::tests::{distinct, entry};
    use super::*;

    fn document(times: &[(&str, f64)]) -> Document {
        let workload =
            |(name, time): &(&str, f64)| entry(name, &[("system", 1.0, 1e6), ("weir", *time, 1e6)]);
        Document {
            schema: SCHEMA,
            tool_version: String::new(),
            library_version: String::new(),
            machine: Machine::this(),
            confidence: 0.95,
            quick: false,
            interrupted: false,
            allocators: Vec::new(),
            workloads: times.iter().map(workload).collect(),
            not_installed: Vec::new(),
            summary: Vec::new(),
            against: None,
            notes: Vec::new(),
        }
    }

    fn compared(before: &Document, now: &Document, conditions: &[Condition]) -> Against {
        compare(before, now, conditions, &|_| true)
    }

    fn judged(before: f64, now: f64, condition: &str) -> Against {
        let condition = Condition::parse(condition).expect("a condition");
        compared(&document(&[("a", before)]), &document(&[("a", now)]), &[condition])
    }

    #[test]
    fn a_change_is_found_and_an_equal_result_is_none() {
        let worse = judged(1.0, 1.1, "time>+3%");
        assert!(worse.met() && worse.conditions[0].met == ["a"], "{worse:?}");
        assert_eq!((worse.changes.len(), worse.changes[0].allocator.as_str()), (1, "weir"));
        let equal = judged(1.0, 1.0, "time>+3%");
        assert!(
            !equal.met() && equal.changes.is_empty() && equal.conditions[0].uncertain.is_empty()
        );
        let better = judged(1.1, 1.0, "time>+3%");
        assert!(!better.met() && better.changes[0].ratio < 1.0);
        // Each interval is 1 % to both sides.
        let uncertain = judged(1.0, 1.04, "time>+3%");
        assert!(!uncertain.met() && uncertain.conditions[0].uncertain == ["a"]);
    }

    #[test]
    fn what_everybody_takes_more_is_the_hour() {
        let at = |weir: f64, system: f64| {
            let mut one = document(&[("a", weir)]);
            one.workloads[0] = entry("a", &[("system", system, 1e6), ("weir", weir, 1e6)]);
            one
        };
        let condition = [Condition::parse("time>+3%").expect("a condition")];
        let slower = compared(&at(1.0, 1.0), &at(1.2, 1.2), &condition);
        assert!(!slower.met() && slower.conditions[0].uncertain.is_empty(), "{slower:?}");
        assert!(slower.notes.iter().any(|note| note.contains("+20 %")), "{:?}", slower.notes);
        assert!(compared(&at(1.0, 1.0), &at(1.0, 0.8), &condition).met());
        assert!(
            !compared(&at(1.0, 1.0), &at(1.0, 1.0), &condition)
                .notes
                .iter()
                .any(|n| n.contains("others"))
        );
        let mut alone = at(1.0, 1.0);
        alone.workloads[0].results.retain(|run| run.allocator == WEIR);
        let notes = compared(&alone, &alone, &condition).notes;
        assert!(notes.iter().any(|note| note.contains("no other allocator")), "{notes:?}");
    }

    #[test]
    fn another_program_an_interrupted_result_and_other_huge_pages_are_told() {
        let condition = [Condition::parse("time>+3%").expect("a condition")];
        let mut before = document(&[("a", 1.0)]);
        let mut now = before.clone();
        before.workloads[0].program = Some("/usr/bin/gs, 5 bytes".to_owned());
        now.workloads[0].program = Some("/usr/bin/gs, 6 bytes".to_owned());
        assert_eq!(compared(&before, &now, &condition).conditions[0].judged, 0);
        now.workloads[0].program = None;
        assert_eq!(compared(&before, &now, &condition).conditions[0].judged, 1);
        before.interrupted = true;
        let notes = compared(&before, &now, &condition).notes;
        assert!(notes.iter().any(|note| note.contains("interrupted")), "{notes:?}");
        let mut here = before.machine.clone();
        here.huge_pages = Some("always".to_owned());
        before.machine.huge_pages = Some("madvise".to_owned());
        assert!(cannot_judge(&before, &here, &condition).expect("why").contains("'always' here"));
    }

    #[test]
    fn each_condition_is_about_its_own_measure() {
        let grown = |name: &str| {
            let mut one = document(&[]);
            one.workloads.push(distinct());
            for run in &mut one.workloads[0].results {
                if let Some(median) = run.median.get_mut(name).filter(|_| run.allocator == WEIR) {
                    *median *= 2.0;
                }
                let around = |value: &f64| (value * 0.99, value * 1.01);
                run.interval = run.median.iter().map(|(n, v)| (n.clone(), around(v))).collect();
            }
            one
        };
        for measure in MEASURES {
            for condition in MEASURES {
                let text = format!("{}>+3%", condition.name());
                let condition = [Condition::parse(&text).expect("a condition")];
                let against = compared(&grown("none"), &grown(measure.name()), &condition);
                assert_eq!(against.met(), condition[0].measure == measure, "{text}");
                let changed: Vec<_> = against.changes.iter().map(|one| &one.measure).collect();
                assert_eq!(changed, [measure.name()]);
            }
        }
    }

    #[test]
    fn what_could_not_be_judged_is_no_success() {
        let condition = [Condition::parse("time>+3%").expect("a condition")];
        let now = document(&[("a", 1.0), ("b", 1.0)]);
        let some = compared(&document(&[("a", 1.0)]), &now, &condition);
        assert_eq!((some.conditions[0].judged, some.says_nothing()), (1, false));
        assert_eq!(some.conditions[0].not_judged, ["b"]);
        let mut bare = document(&[("a", 0.01)]);
        assert_eq!(cannot_judge(&bare, &bare.machine, &condition), None);
        bare.workloads[0].results.iter_mut().for_each(|run| run.interval.clear());
        assert!(compared(&bare, &now, &condition).says_nothing());
        assert!(
            cannot_judge(&bare, &bare.machine, &condition).expect("why").contains("weir's time")
        );
        assert!(cannot_judge(&document(&[]), &bare.machine, &condition).is_some());

        // What could be judged before, and cannot now: gone, without figures, or no base to compare with.
        let alone = compare(&now, &document(&[("a", 1.0)]), &condition, &|_| true);
        assert_eq!((alone.conditions[0].judged, alone.says_nothing()), (1, true));
        assert_eq!(
            (&alone.conditions[0].lost[..], &alone.not_in_both[..]),
            (&["b".to_owned()][..], &["b".to_owned()][..])
        );
        let chosen = compare(&now, &document(&[("a", 1.0)]), &condition, &|name| name == "a");
        assert!(!chosen.says_nothing() && chosen.not_in_both.is_empty());
        let mut failed = document(&[("a", 1.0), ("b", 1.0)]);
        failed.workloads[1].results[1].failure = Some("killed".to_owned());
        assert_eq!(compared(&now, &failed, &condition).conditions[0].lost, ["b"]);
        assert!(!compared(&failed, &now, &condition).says_nothing());
        let from_nothing = compared(&document(&[("a", 0.0), ("b", 1.0)]), &now, &condition);
        assert_eq!(
            (&from_nothing.conditions[0].lost[..], from_nothing.says_nothing()),
            (&["a".to_owned()][..], true)
        );
    }

    #[test]
    fn times_of_other_processors_are_not_judged() {
        let mut before = document(&[("a", 1.0)]);
        let here = before.machine.clone();
        let cannot = |before: &Document, text: &str| {
            cannot_judge(before, &here, &[Condition::parse(text).expect("a condition")])
        };
        before.machine.kernel = "another".to_owned();
        assert_eq!(cannot(&before, "time>+3%"), None);
        before.machine.processors += 1;
        assert!(cannot(&before, "time>+3%").expect("why").contains("other processors"));
        let peak = &mut before.workloads[0].results[1];
        peak.interval.insert("peak".to_owned(), (1e6, 1e6));
        assert_eq!(cannot(&before, "peak>+3%"), None);
    }

    #[test]
    fn other_work_is_not_judged() {
        let condition = [Condition::parse("time>+3%").expect("a condition")];
        let before = document(&[("a", 1.0), ("b", 1.0)]);
        let against = |quick: bool, change: fn(&mut Entry)| {
            let mut now = document(&[("a", 2.0), ("b", 1.0)]);
            now.quick = quick;
            change(&mut now.workloads[0]);
            compared(&before, &now, &condition)
        };
        let changes: [fn(&mut Entry); 3] = [
            |entry| entry.operations = Some(1001),
            |entry| entry.threads = Some(2),
            |entry| entry.revision = 2,
        ];
        for change in changes {
            let against = against(false, change);
            assert_eq!((against.met(), against.conditions[0].judged), (false, 1));
            assert_eq!(against.conditions[0].lost, ["a"]);
            assert!(
                against.says_nothing()
                    && against.changes.is_empty()
                    && against.not_in_both.is_empty(),
                "{against:?}"
            );
            let notes = &against.notes;
            assert!(notes.len() == 1 && notes[0].starts_with("the work differs"), "{notes:?}");
            assert!(notes[0].ends_with(": a"), "{notes:?}");
        }
        // A part of the work has a part of the operations; what a result does not say is no difference.
        assert!(against(true, changes[0]).met() && !against(true, changes[2]).met());
        assert!(against(false, |entry| entry.operations = None).met());
        assert!(against(false, |entry| entry.sizes = Some("16-64".to_owned())).met());
        let sized = |sizes: &str| {
            let mut one = document(&[("a", sizes.len() as f64)]);
            one.workloads[0].sizes = Some(sizes.to_owned());
            one
        };
        assert!(compared(&sized("16-64"), &sized("16-1024"), &condition).says_nothing());
    }

    #[test]
    fn the_first_revision_needs_no_word() {
        let mut entry = document(&[("a", 1.0)]).workloads.remove(0);
        for revision in [1, 2] {
            entry.revision = revision;
            let json = serde_json::to_value(&entry).expect("JSON");
            assert_eq!(json.get("revision").is_some(), revision != 1);
            assert_eq!(Entry::deserialize(json).expect("an entry").revision, revision);
        }
    }

    #[test]
    fn another_build_is_named() {
        let built = |version: &str, compiler: Option<&str>, flags: Option<&str>| AllocatorEntry {
            name: "peer".to_owned(),
            version: Some(version.to_owned()),
            origin: None,
            compiler: compiler.map(str::to_owned),
            flags: flags.map(str::to_owned),
            environment: std::collections::BTreeMap::new(),
            note: None,
        };
        let before = built("1", Some("gcc 12"), Some("-O2"));
        let cases = [
            (built("1", Some("gcc 12"), Some("-O2")), Vec::new()),
            (built("1", None, None), Vec::new()),
            (
                built("1", Some("gcc 13"), Some("-O2")),
                vec!["peer: compiler gcc 12 before, gcc 13 now"],
            ),
            (built("1", Some("gcc 12"), Some("-O3")), vec!["peer: flags -O2 before, -O3 now"]),
            (built("2", Some("gcc 13"), Some("-O3")), vec!["peer: version 1 before, 2 now"]),
        ];
        for (now, wanted) in cases {
            let (mut earlier, mut later) = (document(&[]), document(&[]));
            earlier.allocators.push(before.clone());
            later.allocators.push(now);
            assert_eq!(compared(&earlier, &later, &[]).notes, wanted);
        }
    }

    #[test]
    fn what_one_does_not_have_is_named() {
        let against = compared(
            &document(&[("a", 1.0), ("b", 1.0)]),
            &document(&[("a", 1.0), ("c", 1.0)]),
            &[],
        );
        assert_eq!(against.not_in_both, ["c", "b"]);
        let mut elsewhere = document(&[]);
        elsewhere.machine.processor = "another".to_owned();
        assert!(compared(&elsewhere, &document(&[]), &[]).notes[0].contains("another machine"));
    }
}
