# rustc.sh: cargo builds, tests and runs a small crate; the compiler's output for fixed names is compared too.
#
# Who may call it: run.py. The distribution's compiler, whose malloc is libc's. rustup's rustc has jemalloc inside, which
# preloading does not replace.
#
# program: reach=rustc,cargo rounds=2 needs=/usr/bin/cargo:cargo,/usr/bin/rustc:rustc
# version: /usr/bin/rustc --version
#
# SPDX-License-Identifier: Apache-2.0
export CARGO_HOME=$PWD/cargo CARGO_TERM_COLOR=never CARGO_NET_OFFLINE=true RUSTC=/usr/bin/rustc
mkdir -p crate/src
cp "$HERE/rustc_input.rs" crate/src/main.rs
printf '[package]\nname = "work"\nversion = "0.1.0"\nedition = "2021"\n\n[workspace]\n' > crate/Cargo.toml
/usr/bin/cargo build --quiet --manifest-path crate/Cargo.toml --jobs 2
crate/target/debug/work
/usr/bin/cargo test --quiet --manifest-path crate/Cargo.toml --jobs 2 2>&1 | grep '^test result' | sed 's/; finished.*//'
levels="2"
if [ "$SCALE" -ge 10 ]; then levels="0 1 2 3 s"; fi
for level in $levels; do
    /usr/bin/rustc --crate-name work --crate-type bin --edition 2021 -C opt-level=$level -C metadata=fixed -C codegen-units=1 \
        --emit=llvm-ir,asm --remap-path-prefix "$PWD=." --out-dir out crate/src/main.rs
    sha256sum out/work*.ll out/work*.s
done
