// nothing.rs: no code. Cargo asks a package for a target; bench/peers/build.py calls `cargo vendor` alone and
// compiles no Rust. Nobody may call it, and it knows nothing.
//
// SPDX-License-Identifier: Apache-2.0
