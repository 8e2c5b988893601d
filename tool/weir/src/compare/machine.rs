//! The machine that a comparison was made on, as far as results depend on it. Reads a few files once. It
//! does not know about allocators.
//!
//! SPDX-License-Identifier: Apache-2.0

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    pub memory_bytes: u64,
    pub kernel: String,
    pub system: String,
    /// What the processor calls itself in numbers: makers give many one name. Results of before lack this and what
    /// follows; None also where the system does not tell.
    #[serde(default)]
    pub model: Option<String>,
    /// Of the first processor, as `L1d 32K, L2 1024K`.
    #[serde(default)]
    pub caches: Option<String>,
    /// The system's setting for transparent huge pages.
    #[serde(default)]
    pub huge_pages: Option<String>,
    #[serde(default)]
    pub governor: Option<String>,
    /// x86-64 alone tells.
    #[serde(default)]
    pub virtual_machine: Option<bool>,
}

impl Machine {
    pub fn this() -> Machine {
        let information = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = field(&information, "model name", ':');
        let name = name.unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory = field(&memory, "MemTotal", ':').unwrap_or_default();
        let kib = memory.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok());
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine {
            processor: name,
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_bytes: kib.unwrap_or(0) * 1024,
            kernel: kernel.trim().to_owned(),
            system: field(&release, "PRETTY_NAME", '=').unwrap_or_default(),
            model: model(&information),
            caches: caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
            huge_pages: line("/sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|text| chosen(&text)),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            virtual_machine: field(&information, "flags", ':')
                .map(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        }
    }

    /// What of another machine is not as here, as far as both tell: what it is there, and here.
    pub fn differences(&self, other: &Machine) -> Vec<String> {
        let both = |what: &str, there: &Option<String>, here: &Option<String>| {
            let (there, here) = (there.as_ref()?, here.as_ref()?);
            (there != here).then(|| format!("{what} {there}, here {here}"))
        };
        let told = |text: &dyn ToString| Some(text.to_string());
        let pairs = [
            ("processor", told(&other.processor), told(&self.processor)),
            ("processor", other.model.clone(), self.model.clone()),
            ("processors", told(&other.processors), told(&self.processors)),
            ("caches", other.caches.clone(), self.caches.clone()),
            ("bytes of memory", told(&other.memory_bytes), told(&self.memory_bytes)),
            ("kernel", told(&other.kernel), told(&self.kernel)),
            ("system", told(&other.system), told(&self.system)),
            ("huge pages", other.huge_pages.clone(), self.huge_pages.clone()),
            ("governor", other.governor.clone(), self.governor.clone()),
        ];
        pairs.iter().filter_map(|(what, there, here)| both(what, there, here)).collect()
    }

    /// Whether times there say nothing of those here, as far as both tell.
    pub fn has_other_processors(&self, other: &Machine) -> bool {
        let models = self.model.as_ref().zip(other.model.as_ref());
        self.processor != other.processor
            || self.processors != other.processors
            || models.is_some_and(|(here, there)| here != there)
    }
}

fn line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The word in brackets.
fn chosen(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// `AuthenticAMD family 26 model 2 stepping 1`, or Arm's `implementer 0x41 part 0xd0c variant 0x3`.
fn model(information: &str) -> Option<String> {
    const X86: [(&str, &str); 4] = [
        ("vendor_id", ""),
        ("cpu family", "family "),
        ("model\t", "model "),
        ("stepping", "stepping "),
    ];
    const ARM: [(&str, &str); 3] =
        [("CPU implementer", "implementer "), ("CPU part", "part "), ("CPU variant", "variant ")];
    let all = |fields: &[(&str, &str)]| -> Option<Vec<String>> {
        let one = |(name, word): &(&str, &str)| {
            field(information, name, ':').map(|value| format!("{word}{value}"))
        };
        fields.iter().map(one).collect()
    };
    Some(all(&X86).or_else(|| all(&ARM))?.join(" "))
}

fn caches(folder: &Path) -> Option<String> {
    let about = |index: usize| {
        let read = |name: &str| line(folder.join(format!("index{index}/{name}")).to_str()?);
        let kind = match read("type")?.as_str() {
            "Data" => "d",
            "Instruction" => "i",
            _ => "",
        };
        Some(format!("L{}{kind} {}", read("level")?, read("size")?))
    };
    let all: Vec<String> = (0..).map_while(about).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// The processors' time so far, in ticks.
pub struct Ticks {
    all: u64,
    stolen: u64,
}

impl Ticks {
    pub fn now() -> Option<Ticks> {
        Ticks::of(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line counts user, nice, system, idle, iowait, irq, softirq and steal; guests are in the first two.
    fn of(stat: &str) -> Option<Ticks> {
        const STOLEN: usize = 7;
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let counts = line.split_whitespace().take(STOLEN + 1).map(str::parse);
        let counts: Vec<u64> = counts.collect::<Result<_, _>>().ok()?;
        Some(Ticks { all: counts.iter().sum(), stolen: *counts.get(STOLEN)? })
    }

    /// A warning where the host of this virtual machine gave its processors to others since then.
    pub fn stolen_since(&self, before: &Ticks) -> Option<String> {
        const TOLD_PERCENT: f64 = 1.0;
        let all = self.all.checked_sub(before.all).filter(|ticks| *ticks > 0)?;
        let percent = self.stolen.saturating_sub(before.stolen) as f64 / all as f64 * 100.0;
        (percent >= TOLD_PERCENT).then(|| {
            format!("the host took {percent:.1} % of the processors' time meanwhile: expect noise in times")
        })
    }
}

/// A warning where other programs use the processors, which makes times differ without a reason.
pub fn busy() -> Option<String> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = load.split_whitespace().next()?.parse().ok()?;
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (load > processors as f64 / 2.0).then(|| {
        format!(
            "at the start {load:.1} programs wanted the {processors} processors: expect noise in times"
        )
    })
}

/// The value of the first line that begins with `name`.
fn field(text: &str, name: &str, separator: char) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_once(separator)?.1.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::this();
        assert!(!machine.processor.is_empty() && !machine.kernel.is_empty());
        assert!(machine.processors > 0 && machine.memory_bytes > 1 << 20);
        assert_eq!(field("A=\"b c\"\n", "A", '='), Some("b c".to_owned()));
        assert_eq!(chosen("always [madvise] never"), Some("madvise".to_owned()));
        assert_eq!(chosen("none"), None);
        assert_eq!(caches(Path::new("/no/such/folder")), None);
    }

    #[test]
    fn processors_of_one_name_are_told_apart() {
        let x86 = |model: u32| {
            format!(
                "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\nstepping\t: 1\n"
            )
        };
        let named = |text: &str| model(text);
        assert_eq!(named(&x86(2)).as_deref(), Some("AuthenticAMD family 26 model 2 stepping 1"));
        let arm = "CPU implementer\t: 0x41\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n";
        assert_eq!(named(arm).as_deref(), Some("implementer 0x41 part 0xd0c variant 0x3"));
        assert_eq!(named("processor\t: 0\n"), None);

        let mut here = Machine::this();
        assert!(here.differences(&here.clone()).is_empty());
        here.model = named(&x86(2));
        let (mut other, mut old) = (here.clone(), here.clone());
        (other.model, old.model) = (named(&x86(17)), None);
        assert!(here.has_other_processors(&other) && here.differences(&other).len() == 1);
        assert!(!here.has_other_processors(&old) && here.differences(&old).is_empty());
        old.kernel = "2.6".to_owned();
        let told = here.differences(&old);
        assert!(!here.has_other_processors(&old) && told.len() == 1, "{told:?}");
        assert!(told[0].starts_with("kernel 2.6, here "), "{told:?}");
    }

    #[test]
    fn what_the_host_takes_is_told() {
        let ticks = |idle: u64, stolen: u64| {
            Ticks::of(&format!("cpu  10 0 10 {idle} 0 0 0 {stolen} 5 0\ncpu0 1\n")).expect("ticks")
        };
        let told = ticks(970, 30).stolen_since(&ticks(0, 0)).expect("a warning");
        assert!(told.starts_with("the host took 3.0 %"), "{told}");
        assert_eq!(ticks(1000, 1).stolen_since(&ticks(0, 0)), None);
        assert_eq!(ticks(0, 0).stolen_since(&ticks(0, 0)), None);
        assert!(Ticks::of("cpu  1 2\n").is_none() && Ticks::of("").is_none());
        assert!(Ticks::now().is_some());
    }
}
