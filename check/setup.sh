# check/setup.sh: functions that put in place what the root scripts need: packages, Rust, the build.
#
# Who may call it: `run` and `test` source it, with ROOT set to the root of the tree. Messages go to
# stderr, and nothing reads stdin: both belong to the program that is run. It asks apt for packages that
# are missing and for nothing else. It deliberately does not know what the packages are for.
#
# SPDX-License-Identifier: Apache-2.0

setup_say() { printf 'weir: %s\n' "$*" >&2; }
setup_die() { setup_say "$*"; exit 2; }

setup_as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else setup_die "need root to install packages and there is no sudo; run as root: $*"
    fi
}

# setup_list FILE...: the names in package lists, comments left out.
setup_list() { sed -e 's/#.*//' "$@" | tr -s ' \t' '\n\n' | sed '/^$/d' | sort -u; }

setup_missing() { # PACKAGE...: those that are not installed; a|b is there when either is
    local package
    for package in "$@"; do
        # shellcheck disable=SC2086 # the alternatives are words
        case " $(dpkg-query -W -f='${db:Status-Status} ' ${package//|/ } 2>/dev/null)" in
            *" installed "*) ;;
            *) echo "$package" ;;
        esac
    done
}

setup_alternative() { # a|b: the first that the distribution has; the first of all when none is there
    local package
    for package in ${1//|/ }; do
        if [ -n "$(setup_candidate "$package")" ]; then
            echo "$package"
            return 0
        fi
    done
    echo "${1%%|*}"
}

setup_log() { mkdir -p "$ROOT/build/setup" && echo "$ROOT/build/setup/$1.log"; }

# setup_quietly NAME COMMAND...: the command's output goes to a log, which is shown when it fails.
setup_quietly() {
    local name=$1 log
    shift
    log=$(setup_log "$name")
    if ! "$@" >"$log" 2>&1 </dev/null; then
        tail -n 30 "$log" >&2
        setup_die "$name failed: $* (all of it: $log)"
    fi
}

setup_apt() {
    setup_as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 "$@"
}

setup_updated=no
setup_update() {
    if [ $setup_updated = no ]; then setup_quietly apt-update setup_apt -qq update; fi
    setup_updated=yes
}

# setup_packages PACKAGE...: installs those that are missing; a|b means one of the two. Where there is no apt-get, the tools
# themselves will say what is missing.
setup_packages() {
    local missing index
    if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
        setup_say "no apt-get here; it is up to you that these are installed: $*"
        return 0
    fi
    mapfile -t missing < <(setup_missing "$@")
    if [ ${#missing[@]} -eq 0 ]; then return 0; fi
    setup_update
    for index in "${!missing[@]}"; do missing[index]=$(setup_alternative "${missing[index]}"); done
    setup_say "installing ${missing[*]}"
    setup_quietly apt-install setup_apt -qq install -y --no-install-recommends "${missing[@]}"
}

# setup_version_at_least HAVE WANT: compares dotted numbers.
setup_version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

setup_rust_wanted() { sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$ROOT/tool/Cargo.toml" | head -n 1; }

setup_rust_ready() { # yes when the cargo and rustc on PATH are new enough
    local want have
    want=$(setup_rust_wanted)
    have=$(rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9.]*\).*/\1/p')
    [ -n "$have" ] && command -v cargo >/dev/null && setup_version_at_least "$have" "${want:-1.85}"
}

setup_candidate() { LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: \([0-9]*:\)\{0,1\}\([0-9][0-9.]*\).*/\2/p'; }

# setup_rust: makes cargo and rustc available, new enough for tool/Cargo.toml. In this order: what is
# there; Debian's newer compilers (cargo-web in Debian 12, Ubuntu's cargo-1.NN); plain cargo; rustup
# from the distribution. With `lint`, clippy and rustfmt as well.
setup_rust() {
    local lint=${1:-} want number packages=()
    want=$(setup_rust_wanted)
    if [ -d "$HOME/.cargo/bin" ]; then PATH=$PATH:$HOME/.cargo/bin; fi
    if ! setup_rust_ready; then
        number=$(printf '%s\n' /usr/lib/rust-1.*/bin | sort -V | tail -n 1)
        PATH=$number:$PATH
        hash -r
    fi
    if ! setup_rust_ready; then
        command -v apt-get >/dev/null || setup_die "need cargo $want or newer"
        setup_update
        number=$(apt-cache pkgnames cargo-1. 2>/dev/null | sed -n 's/^cargo-\(1\.[0-9]*\)$/\1/p' | sort -V | tail -n 1)
        if setup_version_at_least "$(setup_candidate cargo-web)" "$want"; then
            packages=(cargo-web rustc-web)
        elif setup_version_at_least "$(setup_candidate cargo)" "$want"; then
            packages=(cargo rustc)
        elif setup_version_at_least "$number" "$want"; then
            packages=("cargo-$number" "rustc-$number")
            PATH=/usr/lib/rust-$number/bin:$PATH
        elif [ -n "$(setup_candidate rustup)" ]; then
            packages=(rustup)
        else
            setup_die "need cargo $want or newer, and this distribution has none; install one and run this again"
        fi
        setup_packages "${packages[@]}"
        if [ "${packages[0]}" = rustup ]; then
            setup_say "installing the stable Rust toolchain"
            setup_quietly rustup rustup toolchain install stable --profile minimal
            setup_quietly rustup-default rustup default stable
        fi
        hash -r
        setup_rust_ready || setup_die "need cargo $want or newer, found $(cargo --version 2>&1 | head -n 1)"
    fi
    if [ "$lint" = lint ]; then setup_rust_lint; fi
}

setup_rust_lint_ready() { # whether clippy is there, and of the compiler on PATH: another one's cannot read what that built
    local compiler lints
    compiler=$(rustc --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\)\..*/\1/p')
    lints=$(cargo clippy --version 2>/dev/null | sed -n 's/^clippy 0\.1\.\([0-9]*\).*/\1/p')
    [ -n "$lints" ] && [ "$lints" = "$compiler" ] && cargo fmt --version >/dev/null 2>&1
}
setup_rust_lint() {
    local owner number
    if setup_rust_lint_ready; then return 0; fi
    owner=$(dpkg-query -S "$(readlink -f "$(command -v cargo)")" 2>/dev/null | sed 's/:.*//' | head -n 1)
    number=${owner#cargo-}
    case $owner in
        cargo-web) setup_packages rust-web-clippy rustfmt-web ;;
        cargo-1.*) setup_packages "rust-$number-clippy" "rustfmt-$number" ;;
        cargo) setup_packages rust-clippy rustfmt ;;
        *) setup_quietly rustup-lint rustup component add clippy rustfmt ;;
    esac
    hash -r
    setup_rust_lint_ready || setup_die "clippy is not of $(rustc --version), which comes first on PATH; put one compiler's tools first"
}

# setup_configure FOLDER OPTION...: a Release build tree with Ninja. Configures only what is new.
setup_configure() {
    local folder=$1
    shift
    setup_quietly "configure-$(basename "$folder")" cmake -S "$ROOT" -B "$folder" -G Ninja \
        -DCMAKE_BUILD_TYPE=Release -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "$@"
}

# setup_library TESTS OPTION...: build/libweir.so.1, and with TESTS=ON the unit tests, which need their
# own packages; the options are for `cmake --build`. setup_tool: build/tool/release/weir, which embeds it.
setup_library() {
    [ -f "$ROOT/build/build.ninja" ] || setup_say "building the library"
    setup_configure "$ROOT/build" -DWEIR_TESTS="$1"
    shift
    setup_quietly build cmake --build "$ROOT/build" "$@"
}

setup_tool() {
    [ -x "$ROOT/build/tool/release/weir" ] || setup_say "building the tool"
    WEIR_LIBRARY=$ROOT/build/libweir.so.1 setup_quietly tool cargo build --release --locked \
        --manifest-path "$ROOT/tool/Cargo.toml" --target-dir "$ROOT/build/tool"
}
