//! The allocators of a comparison: what is installed, what the user names, what a manifest lists; with
//! version and compiler where they can be known. Called once, before the first run. It does not know how
//! an allocator is put in place.
//!
//! SPDX-License-Identifier: Apache-2.0

use crate::elf::{self, Class};
use crate::errors::{Exit, USAGE};
use crate::library::{LIBRARY, LIBRARY_FLAGS, LIBRARY_VERSION};
use anyhow::Result;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub const SYSTEM: &str = "system";
pub const WEIR: &str = "weir";

/// Names of library files by which distributions install allocators; the first that is there counts.
const KNOWN: &[(&str, &[&str])] = &[
    ("jemalloc", &["libjemalloc.so.2"]),
    ("mimalloc", &["libmimalloc.so.3", "libmimalloc.so.2"]),
    ("tcmalloc", &["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"]),
    ("snmalloc", &["libsnmallocshim.so"]),
    ("hardened", &["libhardened_malloc.so"]),
];

/// Where the loader looks, besides the folder of the machine's own triplet.
const FOLDERS: &[&str] = &["/usr/local/lib", "/usr/lib64", "/lib64", "/usr/lib"];

#[derive(Debug, Clone, Default)]
pub struct Allocator {
    pub name: String,
    /// None: nothing is preloaded. Of weir, it is filled in when the library has been placed.
    pub path: Option<PathBuf>,
    pub version: Option<String>,
    pub origin: Option<String>,
    pub compiler: Option<String>,
    pub flags: Option<String>,
    pub environment: Vec<(String, String)>,
    pub note: Option<String>,
}

/// What the command line says about allocators.
#[derive(Debug, Default, Clone, clap::Args)]
pub struct Choice {
    /// Compare with the library at PATH too, under NAME; may be given more than once
    #[arg(long, value_name = "NAME=PATH")]
    pub with: Vec<String>,
    /// Compare with the allocators of a manifest, as bench/peers writes it
    #[arg(long, value_name = "FILE")]
    pub peers: Vec<PathBuf>,
    /// Only these allocators, by name; 'system' is the program as it is
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Leave these allocators out
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub without: Vec<String>,
}

#[derive(Deserialize)]
struct Manifest {
    peers: Vec<Peer>,
}

#[derive(Deserialize)]
struct Peer {
    name: String,
    path: PathBuf,
    version: Option<String>,
    origin: Option<String>,
    compiler: Option<String>,
    flags: Option<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    note: Option<String>,
}

/// The chosen allocators in the order of the report: system, weir, then by name of finding. `only` is what the
/// command line calls the option of that name.
pub fn choose(choice: &Choice, only: &str) -> Result<Vec<Allocator>> {
    let mut all = vec![system(), weir()];
    all.extend(installed());
    for file in &choice.peers {
        for peer in manifest(file)? {
            put(&mut all, peer);
        }
    }
    for text in &choice.with {
        put(&mut all, named(text)?);
    }
    for name in choice.only.iter().chain(&choice.without) {
        if !all.iter().any(|allocator| allocator.name == *name) {
            let names: Vec<&str> = all.iter().map(|allocator| allocator.name.as_str()).collect();
            return Err(usage(format!(
                "no allocator '{name}' here: there are {}; --with NAME=PATH adds one",
                names.join(", ")
            )));
        }
    }
    for name in [SYSTEM, WEIR] {
        if choice.without.iter().any(|other| other == name) {
            return Err(usage(format!(
                "'{name}' is what the others are compared with; only {only} can leave it out"
            )));
        }
    }
    all.retain(|allocator| {
        (choice.only.is_empty() || choice.only.contains(&allocator.name))
            && !choice.without.contains(&allocator.name)
    });
    for allocator in &mut all {
        describe(allocator);
    }
    Ok(all)
}

fn usage(message: String) -> anyhow::Error {
    Exit::error(USAGE, message)
}

/// A later one of the same name takes the place of an earlier one.
fn put(all: &mut Vec<Allocator>, new: Allocator) {
    match all.iter_mut().find(|allocator| allocator.name == new.name) {
        Some(old) => *old = new,
        None => all.push(new),
    }
}

fn system() -> Allocator {
    Allocator {
        name: SYSTEM.to_owned(),
        version: libc_version(),
        origin: Some("the program as it is".to_owned()),
        ..Allocator::default()
    }
}

fn weir() -> Allocator {
    Allocator {
        name: WEIR.to_owned(),
        version: Some(version()),
        origin: Some("inside this tool".to_owned()),
        compiler: elf::comment(&LIBRARY),
        flags: Some(LIBRARY_FLAGS.to_owned()).filter(|flags| !flags.is_empty()),
        ..Allocator::default()
    }
}

/// Two builds of one version are told apart, by the first digits of the build id.
fn version() -> String {
    match elf::build_id(&LIBRARY) {
        Some(id) => format!("{LIBRARY_VERSION}+{}", id.get(..8).unwrap_or(&id)),
        None => LIBRARY_VERSION.to_owned(),
    }
}

fn libc_version() -> Option<String> {
    let output =
        Command::new("getconf").arg("GNU_LIBC_VERSION").stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn installed() -> Vec<Allocator> {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let mut folders = vec![format!("/usr/lib/{triplet}"), format!("/lib/{triplet}")];
    folders.extend(FOLDERS.iter().map(|folder| (*folder).to_owned()));
    let find = |files: &[&str]| {
        let paths = files
            .iter()
            .flat_map(|file| folders.iter().map(move |folder| Path::new(folder).join(file)));
        paths.into_iter().find(|path| check(path).is_ok())
    };
    KNOWN
        .iter()
        .filter_map(|(name, files)| {
            let path = find(files)?;
            Some(Allocator { name: (*name).to_owned(), path: Some(path), ..Allocator::default() })
        })
        .collect()
}

fn named(text: &str) -> Result<Allocator> {
    let Some((name, path)) = text.split_once('=') else {
        return Err(usage(format!("--with {text}: write --with NAME=PATH")));
    };
    check_name(name).map_err(|why| usage(format!("--with {text}: {why}")))?;
    let path = absolute(Path::new(path));
    check(&path).map_err(|why| usage(format!("--with {name}: {}: {why}", path.display())))?;
    Ok(Allocator { name: name.to_owned(), path: Some(path), ..Allocator::default() })
}

fn check_name(name: &str) -> std::result::Result<(), String> {
    if name == SYSTEM || name == WEIR {
        return Err(format!("'{name}' is taken; choose another name"));
    }
    let good = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    if name.is_empty() || name.len() > 32 || !name.chars().all(good) {
        return Err("a name is letters, digits and . _ + -, at most 32".to_owned());
    }
    Ok(())
}

fn manifest(file: &Path) -> Result<Vec<Allocator>> {
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| usage(format!("cannot read the manifest {shown}: {error}")))?;
    let manifest: Manifest = serde_json::from_str(&text).map_err(|error| {
        usage(format!("{shown} is no manifest of allocators ({error}); bench/peers writes one"))
    })?;
    let folder = absolute(file).parent().map(Path::to_path_buf).unwrap_or_default();
    let mut found = Vec::new();
    for peer in manifest.peers {
        check_name(&peer.name).map_err(|why| usage(format!("{shown}: {:?}: {why}", peer.name)))?;
        let path = folder.join(&peer.path);
        check(&path)
            .map_err(|why| usage(format!("{shown}: {}: {}: {why}", peer.name, path.display())))?;
        found.push(Allocator {
            name: peer.name,
            path: Some(path),
            version: peer.version,
            origin: peer.origin,
            compiler: peer.compiler,
            flags: peer.flags,
            environment: peer.environment.into_iter().collect(),
            note: peer.note,
        });
    }
    Ok(found)
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Whether the loader could preload this file; what to do if not.
fn check(path: &Path) -> std::result::Result<(), String> {
    let file = File::open(path).map_err(|error| {
        let text = error.to_string();
        let text = text.split(" (os error").next().unwrap_or_default().to_owned();
        format!("{text}; name the library file itself")
    })?;
    if !file.metadata().is_ok_and(|about| about.is_file()) {
        return Err("not a regular file; name the library file itself".to_owned());
    }
    let facts = elf::inspect(&file, &[])
        .map_err(|error| format!("{error}, so no library; name a shared library (.so)"))?;
    let own = elf::inspect(&LIBRARY, &[]).map_or(0, |own| own.machine);
    if facts.class != Class::Bits64 || facts.machine != own || !facts.little_endian {
        return Err("built for another machine; use a library of this machine".to_owned());
    }
    if facts.kind != elf::KIND_SHARED {
        return Err("not a shared library; name a file that was linked with -shared".to_owned());
    }
    let text = path.as_os_str().as_encoded_bytes();
    if text.iter().any(|byte| *byte == b':' || *byte == b'$' || byte.is_ascii_whitespace()) {
        return Err(
            "LD_PRELOAD cannot hold a path with ':', '$' or blanks; link it elsewhere".to_owned()
        );
    }
    Ok(())
}

/// Fills in what the file and the package database know.
fn describe(allocator: &mut Allocator) {
    let Some(path) = &allocator.path else { return };
    if allocator.version.is_none() {
        let package = package(path);
        allocator.version = Some(match package {
            Some((name, version)) => {
                allocator.origin.get_or_insert(format!("package {name}"));
                version
            }
            None => {
                let real = path.canonicalize().unwrap_or_else(|_| path.clone());
                real.file_name().unwrap_or_default().to_string_lossy().into_owned()
            }
        });
    }
    if allocator.compiler.is_none() {
        allocator.compiler = File::open(path).ok().and_then(|file| elf::comment(&file));
    }
}

/// The Debian package that the file belongs to, and its version.
fn package(path: &Path) -> Option<(String, String)> {
    let real = path.canonicalize().ok()?;
    let mut names = vec![path.to_path_buf(), real];
    // Files of /lib may be recorded under /usr/lib, and the other way round.
    for name in names.clone() {
        match name.strip_prefix("/usr") {
            Ok(rest) => names.push(Path::new("/").join(rest)),
            Err(_) => names.push(Path::new("/usr").join(name.strip_prefix("/").ok()?)),
        }
    }
    let output =
        Command::new("dpkg-query").arg("-S").args(&names).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (package, _) = text.lines().next()?.split_once(": ")?;
    let output = Command::new("dpkg-query")
        .args(["-W", "-f", "${Version}", package])
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let name = package.split(':').next().unwrap_or(package).to_owned();
    (!version.is_empty()).then_some((name, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_builds_are_told_apart() {
        let name = b".note.gnu.build-id";
        let has = LIBRARY.windows(name.len()).any(|bytes| bytes == name);
        let id = elf::build_id(&LIBRARY);
        let hex = |id: &String| id.len() >= 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert_eq!(id.as_ref().map(hex), has.then_some(true), "{id:?}");
        let shown = id.map_or_else(String::new, |id| format!("+{}", &id[..8]));
        assert_eq!(version(), format!("{LIBRARY_VERSION}{shown}"));
    }

    #[test]
    fn names_and_files_are_checked() {
        let failure = |text: &str| named(text).expect_err(text).to_string();
        assert!(failure("x").contains("NAME=PATH"));
        assert!(failure("=x").contains("a name is"));
        assert!(failure("weir=/x").contains("is taken"));
        assert!(failure("a=/no/such/file").contains("name the library file itself"));
        assert!(failure("a=/etc").contains("not a regular file"));
        assert!(failure("a=/etc/passwd").contains("not an ELF file"));
        let own = std::env::current_exe().expect("this program").display().to_string();
        assert!(
            named(&format!("a={own}")).is_ok() || failure(&format!("a={own}")).contains("shared")
        );
    }

    #[test]
    fn a_choice_names_what_is_there() {
        let choice = |only: &[&str], without: &[&str]| Choice {
            only: only.iter().map(|name| (*name).to_owned()).collect(),
            without: without.iter().map(|name| (*name).to_owned()).collect(),
            ..Choice::default()
        };
        let names = |choice: &Choice| -> Vec<String> {
            choose(choice, "--only")
                .expect("a choice")
                .into_iter()
                .map(|allocator| allocator.name)
                .collect()
        };
        assert_eq!(names(&choice(&["weir"], &[])), ["weir"]);
        assert_eq!(names(&choice(&["weir", "system"], &[])), ["system", "weir"]);
        let error = choose(&choice(&["nope"], &[]), "--only").expect_err("unknown").to_string();
        assert!(error.contains("there are system, weir"), "{error}");
        assert!(choose(&choice(&[], &["weir"]), "--only").is_err());
    }
}
