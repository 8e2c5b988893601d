//! Finds what is compiled into the tool: the library and its helpers, the table of options and the version of the
//! public header. Run by cargo alone. It does not know how the library is built, only the command
//! that does it, and it never changes a file outside its output directory.
//!
//! SPDX-License-Identifier: Apache-2.0

mod options_def;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{env, fs, process};

const BUILD_COMMAND: &str = "cmake -S . -B build && cmake --build build";
/// The native helpers, which the same command builds beside the library.
const HELPERS: [(&str, &str); 3] = [
    ("WEIR_WITNESS_PATH", "libweir-witness.so"),
    ("WEIR_LAUNCHER_PATH", "weir-launcher"),
    ("WEIR_WORKLOAD_PATH", "weir-workload"),
];

fn main() {
    if let Err(message) = generate() {
        // One line, and cargo shows it as the error of this package.
        println!("cargo::error={message}");
        process::exit(1);
    }
}

fn generate() -> Result<(), String> {
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let root = package.join("../..");

    let library = library_path(&root)?;
    println!("cargo::rustc-env=WEIR_LIBRARY_PATH={}", library.display());
    for (variable, name) in HELPERS {
        let path = helper_path(&library, name)?;
        println!("cargo::rustc-env={variable}={}", path.display());
    }

    println!("cargo::rustc-env=WEIR_LIBRARY_FLAGS={}", library_flags(&library)?);

    let table = root.join("src/core/options.def");
    let options =
        options_def::parse(&read(&table)?).map_err(|why| format!("{}: {why}", table.display()))?;
    write(&out.join("options.rs"), &options_source(&options))?;

    let header = root.join("include/weir/weir.h");
    println!(
        "cargo::rustc-env=WEIR_LIBRARY_VERSION={}",
        header_version(&read(&header)?).map_err(|why| format!("{}: {why}", header.display()))?
    );
    println!("cargo::rerun-if-changed=build");
    Ok(())
}

fn library_path(root: &Path) -> Result<PathBuf, String> {
    println!("cargo::rerun-if-env-changed=WEIR_LIBRARY");
    let path = match env::var_os("WEIR_LIBRARY") {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => root.join("build/libweir.so.1"),
    };
    println!("cargo::rerun-if-changed={}", path.display());
    let help = format!(
        "build it with `{BUILD_COMMAND}` in the root of the repository, or name it (an absolute path) in WEIR_LIBRARY"
    );
    let bytes = fs::read(&path)
        .map_err(|error| format!("cannot read the library {} ({error}): {help}", path.display()))?;
    if !bytes.starts_with(b"\x7fELF") {
        return Err(format!("{} is not a shared library: {help}", path.display()));
    }
    path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))
}

/// What the library was compiled with, as its build writes it, but for warnings and for folders of the machine that
/// built it; empty where the library lies elsewhere.
fn library_flags(library: &Path) -> Result<String, String> {
    let path = library.with_file_name("libweir.flags");
    println!("cargo::rerun-if-changed={}", path.display());
    match fs::read_to_string(&path) {
        Ok(text) => {
            let says_nothing =
                |flag: &&str| flag.starts_with("-W") || flag.contains("-prefix-map=");
            let flags = text.split_whitespace().filter(|flag| !says_nothing(flag));
            Ok(flags.collect::<Vec<_>>().join(" "))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

fn helper_path(library: &Path, name: &str) -> Result<PathBuf, String> {
    let path = library.with_file_name(name);
    println!("cargo::rerun-if-changed={}", path.display());
    match fs::read(&path) {
        Ok(bytes) if bytes.starts_with(b"\x7fELF") => Ok(path),
        Ok(_) => Err(format!("{} is no ELF file: build it with `{BUILD_COMMAND}`", path.display())),
        Err(error) => Err(format!(
            "cannot read {} ({error}), which has to lie beside the library: build it with `{BUILD_COMMAND}` in the root of the repository",
            path.display()
        )),
    }
}

fn options_source(table: &options_def::Table) -> String {
    let mut text = String::from("pub const OPTIONS: &[Opt] = &[\n");
    for option in &table.options {
        let kind = match &option.kind {
            options_def::Kind::Size { default, min, max } => {
                format!("Kind::Size {{ default: {default}, min: {min}, max: {max} }}")
            }
            options_def::Kind::Count { default, min, max } => {
                format!("Kind::Count {{ default: {default}, min: {min}, max: {max} }}")
            }
            options_def::Kind::Word { default, words } => {
                format!("Kind::Word {{ default: {default}, words: &{words:?} }}")
            }
            options_def::Kind::Text { form } => format!("Kind::Text {{ form: {form:?} }}"),
        };
        text.push_str(&format!(
            "    Opt {{ name: {:?}, kind: {kind}, help: {:?} }},\n",
            option.name, option.help
        ));
    }
    text.push_str("];\npub const PRESETS: &[Preset] = &[\n");
    for row in &table.presets {
        text.push_str(&format!(
            "    Preset {{ preset: {:?}, option: {:?}, value: {} }},\n",
            row.preset, row.option, row.value
        ));
    }
    text.push_str("];\n");
    text
}

fn header_version(header: &str) -> Result<String, String> {
    let part = |name: &str| -> Result<String, String> {
        let define = format!("#define {name} ");
        header
            .lines()
            .find_map(|line| line.strip_prefix(&define))
            .map(|value| value.trim().to_owned())
            .ok_or_else(|| format!("does not define {name}"))
    };
    Ok(format!(
        "{}.{}.{}",
        part("WEIR_VERSION_MAJOR")?,
        part("WEIR_VERSION_MINOR")?,
        part("WEIR_VERSION_PATCH")?
    ))
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|error| format!("{name}: {error}; run this through cargo"))
}

fn read(path: &Path) -> Result<String, String> {
    println!("cargo::rerun-if-changed={}", path.display());
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
