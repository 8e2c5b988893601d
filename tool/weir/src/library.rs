//! Puts what is embedded in the tool, and fresh files to talk through, where the command and its children
//! can open them, and takes them away again. It does not know what they do.
//!
//! A private directory comes first; a descriptor of the tool under /proc is the way out where no
//! directory is writable, or where none may hold code that runs (noexec). The test is the loader's
//! own: mapping the file executable.
//!
//! SPDX-License-Identifier: Apache-2.0

use crate::output::{FILE_SIZE_HELP, reason};
use crate::wire;
use anyhow::{Result, anyhow};
use rustix::fs::{MemfdFlags, Mode};
use rustix::mm::{MapFlags, ProtFlags};
use std::env;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub static LIBRARY: &[u8] = include_bytes!(env!("WEIR_LIBRARY_PATH"));
pub const LIBRARY_VERSION: &str = env!("WEIR_LIBRARY_VERSION");
/// What it was compiled with; empty where that is not known.
pub const LIBRARY_FLAGS: &str = env!("WEIR_LIBRARY_FLAGS");
pub const LIBRARY_NAME: &str = "libweir.so.1";
/// The helpers of `weir compare`; tool/native/ says what they do.
pub static WITNESS: &[u8] = include_bytes!(env!("WEIR_WITNESS_PATH"));
pub static LAUNCHER: &[u8] = include_bytes!(env!("WEIR_LAUNCHER_PATH"));
/// The workloads of `weir bench`, one program; bench/workloads/ says what they do.
pub static WORKLOAD: &[u8] = include_bytes!(env!("WEIR_WORKLOAD_PATH"));

/// Where files of one run lie: a private directory if there is one. Dropping it deletes them, unless
/// `keep` was called.
pub struct Place {
    directory: Option<PathBuf>,
    // An open descriptor is what keeps a file under /proc alive.
    held: Vec<File>,
}

impl Place {
    pub fn new() -> Place {
        let directory = candidates().into_iter().find_map(|parent| private_directory(&parent).ok());
        Place { directory, held: Vec::new() }
    }

    /// Puts a library or a program where it can be loaded and executed.
    pub fn code(&mut self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        if let Some(directory) = &self.directory
            && let Ok(path) = code_file(directory, name, bytes)
        {
            return Ok(path);
        }
        let file = code_memfd(name, bytes).map_err(|error| {
            let help = match error.kind() {
                ErrorKind::FileTooLarge => FILE_SIZE_HELP,
                _ => {
                    "no directory of XDG_RUNTIME_DIR, TMPDIR, /tmp, /var/tmp, /dev/shm is writable and allows execution; set TMPDIR to one that does"
                }
            };
            anyhow!("cannot place the library: {}: {help}", reason(&error))
        })?;
        let path = descriptor_path(&file);
        self.held.push(file);
        Ok(path)
    }

    /// An empty file that is read and written by `mode`.
    pub fn data(&self, name: &str, mode: u32) -> io::Result<(PathBuf, File)> {
        match &self.directory {
            Some(directory) => {
                let path = directory.join(name);
                let mut options = OpenOptions::new();
                let file =
                    options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
                // Not subject to the umask.
                file.set_permissions(Permissions::from_mode(mode))?;
                Ok((path, file))
            }
            None => {
                let file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?);
                Ok((descriptor_path(&file), file))
            }
        }
    }

    fn keep(mut self) -> Option<PathBuf> {
        self.directory.take()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            let _ = fs::remove_dir_all(directory);
        }
    }
}

/// The library and the wire file of one run.
pub struct Placed {
    pub library: PathBuf,
    pub wire_path: PathBuf,
    pub wire: File,
    place: Place,
}

impl Placed {
    pub fn new() -> Result<Placed> {
        Placed::fill(Place::new())
    }

    fn fill(mut place: Place) -> Result<Placed> {
        let library = place.code(LIBRARY_NAME, LIBRARY)?;
        let (wire_path, wire) = place
            .data("wire", 0o600)
            .and_then(|(path, file)| {
                wire::init(&file)?;
                Ok((path, file))
            })
            .map_err(|error| cannot_make("the wire file", &error))?;
        Ok(Placed { library, wire_path, wire, place })
    }

    /// The text by which /proc/PID/maps shows the library.
    pub fn library_mark(&self) -> String {
        if self.library.starts_with("/proc") {
            format!("/memfd:{LIBRARY_NAME}")
        } else {
            self.library.display().to_string()
        }
    }

    /// The directory if it has to stay, because processes that use the library are still running.
    pub fn keep(self) -> Option<PathBuf> {
        self.place.keep()
    }
}

/// A file of the tool's own could not be made or filled.
pub fn cannot_make(what: &str, error: &io::Error) -> anyhow::Error {
    let help = match error.kind() {
        ErrorKind::FileTooLarge => FILE_SIZE_HELP,
        _ => "set TMPDIR to a directory that is writable and has space",
    };
    anyhow!("cannot make {what}: {}: {help}", reason(error))
}

/// Directories to try, those that may hold code first.
fn candidates() -> Vec<PathBuf> {
    let named = ["XDG_RUNTIME_DIR", "TMPDIR"].into_iter().filter_map(env::var_os);
    let fixed = ["/tmp", "/var/tmp", "/dev/shm"].into_iter().map(Into::into);
    let mut paths: Vec<PathBuf> =
        named.chain(fixed).map(PathBuf::from).filter(|path| is_preloadable(path)).collect();
    paths.sort_by_key(|path| forbids_code(path));
    paths
}

/// The loader splits LD_PRELOAD at colons and blanks and expands `$`; a relative path breaks at the
/// first chdir. What shows where calls arrived is compared as text.
fn is_preloadable(path: &Path) -> bool {
    let text = path.as_os_str().as_encoded_bytes();
    path.is_absolute()
        && path.to_str().is_some()
        && !text.iter().any(|byte| *byte == b':' || *byte == b'$' || byte.is_ascii_whitespace())
}

fn forbids_code(path: &Path) -> bool {
    rustix::fs::statvfs(path)
        .is_ok_and(|about| about.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC))
}

fn private_directory(parent: &Path) -> io::Result<PathBuf> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let name = format!("weir-{}-{:016x}", std::process::id(), u64::from_ne_bytes(random));
    let path = parent.join(name);
    rustix::fs::mkdir(&path, Mode::RWXU)?;
    // Services that start as root and drop their rights exec more programs later; those must be able
    // to read the library, or the loader writes a complaint into their output.
    if rustix::process::geteuid().is_root() {
        fs::set_permissions(&path, Permissions::from_mode(0o711))?;
    }
    Ok(path)
}

fn code_file(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
    let path = directory.join(name);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    file.write_all(bytes)?;
    // Not subject to the umask.
    file.set_permissions(Permissions::from_mode(0o555))?;
    drop(file);
    let checked = File::open(&path).and_then(|file| executable(&file, bytes.len()));
    if checked.is_err() {
        let _ = fs::remove_file(&path);
    }
    checked.map(|()| path)
}

fn code_memfd(name: &str, bytes: &[u8]) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC;
    // Kernels before 6.3 do not know the second flag; some newer ones demand it.
    let fd: OwnedFd = rustix::fs::memfd_create(name, flags | MemfdFlags::EXEC)
        .or_else(|_| rustix::fs::memfd_create(name, flags))?;
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(0o555))?;
    executable(&file, bytes.len())?;
    Ok(file)
}

/// The loader's own test: a noexec mount refuses an executable mapping.
fn executable(file: &File, bytes: usize) -> io::Result<()> {
    // SAFETY: a fresh private mapping that nobody reads is made and removed.
    unsafe {
        let flags = MapFlags::PRIVATE;
        let protection = ProtFlags::READ | ProtFlags::EXEC;
        let address = rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0)?;
        rustix::mm::munmap(address, bytes)?;
    }
    Ok(())
}

/// A path for other processes, unlike /proc/self.
fn descriptor_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn both_places_work_and_the_directory_goes_away() {
        let placed = Placed::new().expect("a place");
        assert_eq!(fs::read(&placed.library).expect("read"), LIBRARY);
        assert_eq!(wire::header(&placed.wire).expect("header").slots_claimed, 0);
        let directory = placed.place.directory.clone().expect("a directory");
        assert_eq!(fs::metadata(&directory).expect("stat").permissions().mode() & 0o066, 0);
        drop(placed);
        assert!(!directory.exists());

        let placed =
            Placed::fill(Place { directory: None, held: Vec::new() }).expect("descriptors");
        assert_eq!(fs::read(&placed.library).expect("read"), LIBRARY);
        assert!(File::open(&placed.wire_path).is_ok());
    }

    #[test]
    fn paths_that_cannot_be_preloaded_are_refused() {
        for path in ["/a:b", "/a b", "relative", "/a$LIB"] {
            assert!(!is_preloadable(Path::new(path)), "{path}");
        }
        assert!(!is_preloadable(Path::new(OsStr::from_bytes(b"/a\xff"))), "not UTF-8");
        assert!(is_preloadable(Path::new("/run/user/1000")));
    }
}
