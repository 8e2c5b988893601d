//! Compiles weir's C sources into the crate. Run by cargo alone. It needs a C compiler and no network,
//! and writes only into its output directory. It does not know what the sources do.
//!
//! SPDX-License-Identifier: Apache-2.0

use std::path::Path;
use std::{env, process};

/// What weir runs on: the operating system, the C library, the processors.
const OS: &str = "linux";
const C_LIBRARY: &str = "gnu";
const PROCESSORS: [&str; 2] = ["x86_64", "aarch64"];

fn main() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed=csrc/src");
    println!("cargo::rerun-if-changed=csrc/include");
    let processor = target("ARCH");
    if target("OS") != OS || target("ENV") != C_LIBRARY || !PROCESSORS.contains(&processor.as_str())
    {
        fail("weir runs on Linux with glibc, on x86-64 and aarch64 only");
    }
    let unit = Path::new("csrc/src/weir.c");
    if !unit.exists() {
        fail("the C sources are not there: csrc/src has to lead to weir's src folder");
    }

    let mut build = cc::Build::new();
    build.include("csrc/src").include("csrc/include").file(unit);
    // An allocator is not what a debug build wants to run without optimisation.
    build.std("gnu17").opt_level(2).pic(true).warnings(false);
    build.flag("-fvisibility=hidden").flag("-fexceptions");
    if processor == "x86_64" {
        build.flag_if_supported("-fcf-protection=return");
    }
    // C++ code in the program may have operators of its own.
    build.define("WEIR_WEAK_OPERATORS", "1");
    if env::var_os("CARGO_FEATURE_OVERRIDE").is_none() {
        build.flag("-include").flag("c/names.h");
    }
    build.file("c/layout.c");
    build.compile("weir_malloc_c");
}

fn target(part: &str) -> String {
    env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default()
}

fn fail(why: &str) -> ! {
    println!("cargo::error={why}");
    process::exit(1);
}
