//! What can be known of a program from its file: where PATH finds it, which interpreter its first line
//! names, and the facts that decide whether a preloaded library can reach it. Used before the command
//! starts and for every program that the watcher sees. It does not know about processes.
//!
//! SPDX-License-Identifier: Apache-2.0

use crate::elf;
use crate::errors::{Exit, NOT_EXECUTABLE, NOT_FOUND};
use anyhow::Result;
use rustix::fs::{Access, AtFlags, CWD};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Symbols whose definition in a program matters. Sanitizer runtimes that are linked statically define
/// malloc too, so they are asked for as well.
const SYMBOLS: &[&str] = &["malloc", "__asan_init", "__tsan_init", "__msan_init", "__hwasan_init"];
const SANITIZERS: &[(&str, &str)] = &[
    ("asan", "AddressSanitizer"),
    ("tsan", "ThreadSanitizer"),
    ("msan", "MemorySanitizer"),
    ("hwasan", "HWAddressSanitizer"),
    ("lsan", "LeakSanitizer"),
];
const INTERPRETERS_MAX: usize = 4;

/// The facts of an executable file.
#[derive(Debug, Clone)]
pub struct Facts {
    pub elf: std::result::Result<elf::Facts, elf::Error>,
    /// Running it changes the user, the group or the capabilities of the process.
    pub secure: Option<&'static str>,
}

impl Facts {
    pub fn of(file: &File) -> Facts {
        Facts { elf: elf::inspect(file, SYMBOLS), secure: secure(file) }
    }

    /// The sanitizer whose runtime the program carries or is linked with.
    pub fn sanitizer(&self) -> Option<&'static str> {
        let elf = self.elf.as_ref().ok()?;
        SANITIZERS.iter().find_map(|(short, name)| {
            let gcc = format!("lib{short}.so");
            let clang = format!("libclang_rt.{short}");
            let init = format!("__{short}_init");
            let linked =
                elf.needed.iter().any(|lib| lib.starts_with(&gcc) || lib.starts_with(&clang));
            (linked || elf.defined.contains(&init.as_str())).then_some(*name)
        })
    }

    pub fn defines_malloc(&self) -> bool {
        self.elf.as_ref().is_ok_and(|elf| elf.defined.contains(&"malloc"))
    }
}

/// Why the loader would run this file in secure mode, where it ignores LD_PRELOAD.
fn secure(file: &File) -> Option<&'static str> {
    let about = file.metadata().ok()?;
    let user = rustix::process::getuid();
    if about.mode() & 0o4000 != 0 && about.uid() != user.as_raw() {
        return Some("setuid");
    }
    // Without group execution the bit means something else.
    if about.mode() & 0o2010 == 0o2010 && about.gid() != rustix::process::getgid().as_raw() {
        return Some("setgid");
    }
    let mut value = [0u8; 64];
    let capable = rustix::fs::fgetxattr(file, c"security.capability", &mut value[..]).is_ok();
    (capable && !user.is_root()).then_some("file capabilities")
}

/// The file that running `name` executes, searched as execvp does.
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf> {
    let shown = name.to_string_lossy();
    if name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return match refusal(&file) {
            Ok(()) => Ok(file),
            Err(Refusal::Missing) => Err(Exit::error(
                NOT_FOUND,
                format!("no such program: {shown}: check the path after '--'"),
            )),
            Err(Refusal::Denied(why)) => Err(not_executable(&file, why)),
        };
    }
    let mut denied = None;
    if !name.is_empty() {
        let path = path.unwrap_or(OsStr::new("/bin:/usr/bin"));
        for directory in path.as_bytes().split(|byte| *byte == b':') {
            // An empty entry is the working directory.
            let directory: &OsStr =
                if directory.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(directory) };
            let file = Path::new(directory).join(name);
            match refusal(&file) {
                Ok(()) => return Ok(file),
                Err(Refusal::Missing) => {}
                Err(Refusal::Denied(why)) => denied = denied.or(Some((file, why))),
            }
        }
    }
    Err(match denied {
        Some((file, why)) => not_executable(&file, why),
        None => Exit::error(
            NOT_FOUND,
            format!(
                "no such program: '{shown}' is in no directory of PATH; give its path or install it"
            ),
        ),
    })
}

fn not_executable(file: &Path, why: &str) -> anyhow::Error {
    Exit::error(NOT_EXECUTABLE, format!("cannot execute {}: {why}", file.display()))
}

enum Refusal {
    Missing,
    Denied(&'static str),
}

fn refusal(file: &Path) -> std::result::Result<(), Refusal> {
    let about = match fs::metadata(file) {
        Ok(about) => about,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(Refusal::Denied(
                "a directory on the way may not be searched; check its mode",
            ));
        }
        Err(_) => return Err(Refusal::Missing),
    };
    let kind = about.file_type();
    if kind.is_dir() {
        return Err(Refusal::Denied("it is a directory; name a program in it"));
    }
    if kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device() {
        return Err(Refusal::Denied("it is not a regular file"));
    }
    rustix::fs::accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS)
        .map_err(|_| Refusal::Denied("it is not executable; 'chmod +x' makes it so"))
}

/// What the kernel executes for `file`: the file itself, or the interpreter of a script.
pub struct Image {
    pub path: PathBuf,
    pub facts: Option<Facts>,
    /// The file itself is an ELF file, not a script.
    pub is_elf: bool,
}

pub fn image(file: &Path) -> Image {
    let mut path = file.to_path_buf();
    for _ in 0..INTERPRETERS_MAX {
        let Ok(opened) = File::open(&path) else { break };
        let facts = Facts::of(&opened);
        match (&facts.elf, interpreter(&opened)) {
            (Err(elf::Error::NotElf), Some(next)) => path = next,
            // execvp gives a text without a first line to the shell.
            (Err(elf::Error::NotElf), None) => path = PathBuf::from("/bin/sh"),
            _ => {
                let is_elf = path == file && !matches!(facts.elf, Err(elf::Error::Unreadable));
                let path = path.canonicalize().unwrap_or(path);
                return Image { path, facts: Some(facts), is_elf };
            }
        }
    }
    Image { path: path.canonicalize().unwrap_or(path), facts: None, is_elf: false }
}

/// The program that the `#!` line of a script names.
pub fn interpreter(file: &File) -> Option<PathBuf> {
    use std::os::unix::fs::FileExt;
    let mut start = [0; 256];
    let got = file.read_at(&mut start, 0).ok()?;
    let line = start[..got].strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
    let name = line.split(|byte| byte.is_ascii_whitespace()).next()?;
    (!name.is_empty()).then(|| PathBuf::from(OsString::from_vec(name.to_vec())))
}

/// Why starting a file that exists failed with "no such file": the interpreter or the loader is
/// missing.
pub fn missing_part(file: &Path) -> Option<String> {
    let mut opened = File::open(file).ok()?;
    if let Some(script) = interpreter(&opened) {
        return Some(format!(
            "its first line names the interpreter {}, which does not exist",
            script.display()
        ));
    }
    let mut magic = [0; 4];
    opened.read_exact(&mut magic).ok()?;
    let loader = elf::inspect(&opened, &[]).ok()?.interpreter?;
    Some(format!(
        "its dynamic loader {loader} does not exist; install the C library that it is for"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors;

    fn code(name: &str) -> u8 {
        match find(OsStr::new(name), Some(OsStr::new("/nonexistent:/etc:/bin:/usr/bin"))) {
            Ok(found) => panic!("{name} was found at {}", found.display()),
            Err(error) => errors::code(&error),
        }
    }

    #[test]
    fn programs_are_found_as_by_a_shell() {
        let path = Some(OsStr::new("/nonexistent:/bin"));
        assert_eq!(find(OsStr::new("sh"), path).expect("sh"), Path::new("/bin/sh"));
        assert_eq!(code("no-such-program-anywhere"), NOT_FOUND);
        assert_eq!(code(""), NOT_FOUND);
        assert_eq!(code("/no/such/program"), NOT_FOUND);
        assert_eq!(code("/etc/passwd/sh"), NOT_FOUND);
        assert_eq!(code("/etc"), NOT_EXECUTABLE);
        assert_eq!(code("/etc/passwd"), NOT_EXECUTABLE);
        assert_eq!(code("/dev/null"), NOT_EXECUTABLE);
    }

    #[test]
    fn the_shell_is_reachable() {
        let image = image(Path::new("/bin/sh"));
        let facts = image.facts.expect("facts");
        assert!(facts.elf.is_ok());
        assert_eq!((facts.sanitizer(), facts.secure), (None, None));
    }
}
