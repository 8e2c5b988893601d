//! A minimal ELF reader: just enough to say why a preloaded library cannot reach a program. It reads
//! a few ranges of the file and looks symbols up through the hash tables, so that a huge program
//! costs little. Every offset and count comes from the file and is distrusted: each read is bounded
//! and every loop has a limit. It does not know what the facts mean for weir.
//!
//! SPDX-License-Identifier: Apache-2.0

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

pub const MACHINE_X86_64: u16 = 62;
pub const MACHINE_AARCH64: u16 = 183;
/// A shared library, or a program that may be loaded anywhere.
pub const KIND_SHARED: u16 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Bits32,
    Bits64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub class: Class,
    pub little_endian: bool,
    pub kind: u16,
    pub machine: u16,
    /// The dynamic loader that the program names. Filled in for 64-bit little-endian files only, like
    /// all fields below.
    pub interpreter: Option<String>,
    pub needed: Vec<String>,
    /// Which of the asked-for symbols the dynamic symbol table defines.
    pub defined: Vec<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    NotElf,
    /// The file ends before, or contradicts, what is named here.
    Broken(&'static str),
    Unreadable,
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotElf => out.write_str("not an ELF file"),
            Error::Broken(what) => write!(out, "a damaged ELF file ({what})"),
            Error::Unreadable => out.write_str("not readable"),
        }
    }
}

impl std::error::Error for Error {}

type Result<T> = std::result::Result<T, Error>;

/// Bytes at offsets: a file, or a slice.
pub trait Source {
    /// Fills `bytes` from `offset` on. False if the source ends before.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<bool>;
}

impl Source for File {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<bool> {
        match self.read_exact_at(bytes, offset) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            // An offset that does not fit off_t.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(false),
            Err(_) => Err(Error::Unreadable),
        }
    }
}

impl Source for &[u8] {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<bool> {
        let Some(range) = usize::try_from(offset)
            .ok()
            .and_then(|start| Some(start..start.checked_add(bytes.len())?))
            .and_then(|range| self.get(range))
        else {
            return Ok(false);
        };
        bytes.copy_from_slice(range);
        Ok(true)
    }
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

// Real files stay far below these; they bound the work on a hostile one.
const SEGMENTS_MAX: u64 = 512;
const DYNAMIC_MAX: u64 = 4096;
const CHAIN_MAX: u64 = 1 << 16;
const NAME_MAX: usize = 4096;

/// The facts of a program, and which of `symbols` it defines.
pub fn inspect(source: &dyn Source, symbols: &[&'static str]) -> Result<Facts> {
    let mut ident = [0; 20];
    if !source.read(0, &mut ident)? {
        // A cut ELF file is a broken one; anything else that short is no ELF file.
        let mut magic = [0; 4];
        let elf = source.read(0, &mut magic)? && &magic == b"\x7fELF";
        return Err(if elf { Error::Broken("header") } else { Error::NotElf });
    }
    if &ident[0..4] != b"\x7fELF" {
        return Err(Error::NotElf);
    }
    let class = match ident[4] {
        1 => Class::Bits32,
        2 => Class::Bits64,
        _ => return Err(Error::Broken("class")),
    };
    let little_endian = match ident[5] {
        1 => true,
        2 => false,
        _ => return Err(Error::Broken("byte order")),
    };
    let short = |at: usize| {
        let raw = [ident[at], ident[at + 1]];
        if little_endian { u16::from_le_bytes(raw) } else { u16::from_be_bytes(raw) }
    };
    let mut facts = Facts {
        class,
        little_endian,
        kind: short(16),
        machine: short(18),
        interpreter: None,
        needed: Vec::new(),
        defined: Vec::new(),
    };
    if class == Class::Bits64 && little_endian {
        Image { source, loads: Vec::new() }.read_into(&mut facts, symbols)?;
    }
    Ok(facts)
}

/// What the section of a 64-bit little-endian file holds.
fn section(source: &dyn Source, wanted: &str) -> Option<Vec<u8>> {
    let image = Image { source, loads: Vec::new() };
    let what = "section headers";
    let table = image.u64(40, what).ok()?;
    let (entry_bytes, entries) = (image.u16(58, what).ok()?, image.u16(60, what).ok()?);
    let section = |index: u16| {
        let at = sum(table, u64::from(index) * u64::from(entry_bytes), what)?;
        let name = image.u32(at, what)?;
        Ok((name, image.u64(sum(at, 24, what)?, what)?, image.u64(sum(at, 32, what)?, what)?))
    };
    let (_, names, _) = (section(image.u16(62, what).ok()?) as Result<(u32, u64, u64)>).ok()?;
    let (_, offset, bytes) =
        (0..entries).filter_map(|index| section(index).ok()).find(|found| {
            sum(names, u64::from(found.0), what)
                .and_then(|at| image.string(at, what))
                .is_ok_and(|name| name == wanted)
        })?;
    let mut text = vec![0; usize::try_from(bytes).ok().filter(|bytes| *bytes <= NAME_MAX)?];
    source.read(offset, &mut text).ok()?.then_some(text)
}

/// What the linker says the file is, the same for the same contents: the note that GNU's and LLVM's linkers leave.
pub fn build_id(source: &dyn Source) -> Option<String> {
    const HEAD_BYTES: usize = 16; // three words, and the name "GNU"
    let note = section(source, ".note.gnu.build-id")?;
    let id: String = note.get(HEAD_BYTES..)?.iter().map(|byte| format!("{byte:02x}")).collect();
    (!id.is_empty()).then_some(id)
}

/// The compilers that the section `.comment` of a 64-bit little-endian file names, without doubles.
pub fn comment(source: &dyn Source) -> Option<String> {
    let text = section(source, ".comment")?;
    let mut found: Vec<String> = Vec::new();
    for name in text.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name).trim().to_owned();
        if !found.contains(&name) {
            found.push(name);
        }
    }
    (!found.is_empty()).then(|| found.join("; "))
}

struct Load {
    offset: u64,
    address: u64,
    file_bytes: u64,
}

struct Image<'a> {
    source: &'a dyn Source,
    loads: Vec<Load>,
}

#[derive(Default)]
struct Dynamic {
    needed: Vec<u64>,
    strings: Option<u64>,
    symbols: Option<u64>,
    hash: Option<u64>,
    gnu_hash: Option<u64>,
}

impl Image<'_> {
    fn read_into(mut self, facts: &mut Facts, symbols: &[&'static str]) -> Result<()> {
        let table = self.u64(32, "header")?;
        let entry_bytes = u64::from(self.u16(54, "header")?);
        let entries = u64::from(self.u16(56, "header")?);
        if entries > SEGMENTS_MAX || (entries > 0 && entry_bytes < 56) {
            return Err(Error::Broken("program headers"));
        }
        let mut dynamic_range = None;
        for entry in 0..entries {
            let what = "program headers";
            let at = sum(table, entry * entry_bytes, what)?;
            let kind = self.u32(at, what)?;
            let offset = self.u64(sum(at, 8, what)?, what)?;
            let address = self.u64(sum(at, 16, what)?, what)?;
            let file_bytes = self.u64(sum(at, 32, what)?, what)?;
            match kind {
                PT_LOAD => self.loads.push(Load { offset, address, file_bytes }),
                PT_DYNAMIC => dynamic_range = Some((offset, file_bytes)),
                PT_INTERP => facts.interpreter = Some(self.string(offset, "interpreter")?),
                _ => {}
            }
        }
        let Some((offset, bytes)) = dynamic_range else { return Ok(()) };
        let dynamic = self.dynamic(offset, bytes)?;
        if let Some(strings) = dynamic.strings {
            let strings = self.offset(strings, "string table")?;
            for name in &dynamic.needed {
                let at = sum(strings, *name, "needed library")?;
                facts.needed.push(self.string(at, "needed library")?);
            }
            for symbol in symbols {
                if self.defines(&dynamic, strings, symbol)? {
                    facts.defined.push(symbol);
                }
            }
        }
        Ok(())
    }

    fn dynamic(&self, offset: u64, bytes: u64) -> Result<Dynamic> {
        let mut dynamic = Dynamic::default();
        for entry in 0..(bytes / 16).min(DYNAMIC_MAX) {
            let at = sum(offset, entry * 16, "dynamic section")?;
            let tag = self.u64(at, "dynamic section")?;
            let value = self.u64(sum(at, 8, "dynamic section")?, "dynamic section")?;
            match tag {
                0 => break,
                DT_NEEDED => dynamic.needed.push(value),
                DT_STRTAB => dynamic.strings = Some(value),
                DT_SYMTAB => dynamic.symbols = Some(value),
                DT_HASH => dynamic.hash = Some(value),
                DT_GNU_HASH => dynamic.gnu_hash = Some(value),
                _ => {}
            }
        }
        Ok(dynamic)
    }

    fn defines(&self, dynamic: &Dynamic, strings: u64, name: &str) -> Result<bool> {
        let Some(symbols) = dynamic.symbols else { return Ok(false) };
        let symbols = self.offset(symbols, "symbol table")?;
        match (dynamic.gnu_hash, dynamic.hash) {
            (Some(table), _) => self.gnu_lookup(table, symbols, strings, name),
            (None, Some(table)) => self.sysv_lookup(table, symbols, strings, name),
            (None, None) => Ok(false),
        }
    }

    /// The table of `DT_GNU_HASH`: four words, a Bloom filter, buckets, and per symbol its hash whose
    /// lowest bit ends a bucket's chain.
    fn gnu_lookup(&self, table: u64, symbols: u64, strings: u64, name: &str) -> Result<bool> {
        const WHAT: &str = "GNU hash table";
        let table = self.offset(table, WHAT)?;
        let buckets = self.u32(table, WHAT)?;
        let first = self.u32(sum(table, 4, WHAT)?, WHAT)?;
        let bloom_words = self.u32(sum(table, 8, WHAT)?, WHAT)?;
        if buckets == 0 {
            return Ok(false);
        }
        let bucket_table = sum(table, 16 + 8 * u64::from(bloom_words), WHAT)?;
        let chain_table = sum(bucket_table, 4 * u64::from(buckets), WHAT)?;
        let hash = name
            .bytes()
            .fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)));
        let bucket = sum(bucket_table, 4 * u64::from(hash % buckets), WHAT)?;
        let start = self.u32(bucket, WHAT)?;
        if start < first {
            return Ok(false);
        }
        for index in u64::from(start)..u64::from(start) + CHAIN_MAX {
            let link = sum(chain_table, 4 * (index - u64::from(first)), WHAT)?;
            let link = self.u32(link, WHAT)?;
            if link | 1 == hash | 1 && self.symbol_is(symbols, strings, index, name)? {
                return Ok(true);
            }
            if link & 1 == 1 {
                return Ok(false);
            }
        }
        Err(Error::Broken(WHAT))
    }

    /// The table of `DT_HASH`: numbers of buckets and of chain links, then both arrays.
    fn sysv_lookup(&self, table: u64, symbols: u64, strings: u64, name: &str) -> Result<bool> {
        const WHAT: &str = "hash table";
        let table = self.offset(table, WHAT)?;
        let buckets = self.u32(table, WHAT)?;
        if buckets == 0 {
            return Ok(false);
        }
        let hash = name.bytes().fold(0u32, |hash, byte| {
            let hash = (hash << 4).wrapping_add(u32::from(byte));
            let high = hash & 0xf000_0000;
            (hash ^ (high >> 24)) & !high
        });
        let mut index = self.u32(sum(table, 8 + 4 * u64::from(hash % buckets), WHAT)?, WHAT)?;
        let chain_table = sum(table, 8 + 4 * u64::from(buckets), WHAT)?;
        for _ in 0..CHAIN_MAX {
            if index == 0 {
                return Ok(false);
            }
            if self.symbol_is(symbols, strings, u64::from(index), name)? {
                return Ok(true);
            }
            index = self.u32(sum(chain_table, 4 * u64::from(index), WHAT)?, WHAT)?;
        }
        Err(Error::Broken(WHAT))
    }

    fn symbol_is(&self, symbols: u64, strings: u64, index: u64, name: &str) -> Result<bool> {
        const WHAT: &str = "symbol table";
        let at = sum(symbols, 24 * index, WHAT)?;
        let name_at = self.u32(at, WHAT)?;
        let section = self.u16(sum(at, 6, WHAT)?, WHAT)?;
        if section == 0 {
            return Ok(false);
        }
        let mut found = vec![0; name.len() + 1];
        let string = sum(strings, u64::from(name_at), WHAT)?;
        // A shorter name at the very end of the file is a different name.
        Ok(self.source.read(string, &mut found)?
            && found.strip_suffix(&[0]) == Some(name.as_bytes()))
    }

    /// The file offset of an address.
    fn offset(&self, address: u64, what: &'static str) -> Result<u64> {
        self.loads
            .iter()
            .find_map(|load| {
                let inside = address.checked_sub(load.address)?;
                (inside < load.file_bytes).then(|| load.offset.checked_add(inside))?
            })
            .ok_or(Error::Broken(what))
    }

    fn string(&self, offset: u64, what: &'static str) -> Result<String> {
        let mut out = Vec::new();
        let mut chunk = [0; 64];
        while out.len() < NAME_MAX {
            let at = sum(offset, out.len() as u64, what)?;
            // Near the end of the file a whole chunk may not be there.
            let got = if self.source.read(at, &mut chunk)? {
                chunk.len()
            } else if self.source.read(at, &mut chunk[..1])? {
                1
            } else {
                return Err(Error::Broken(what));
            };
            match chunk[..got].iter().position(|byte| *byte == 0) {
                Some(end) => {
                    out.extend_from_slice(&chunk[..end]);
                    return Ok(String::from_utf8_lossy(&out).into_owned());
                }
                None => out.extend_from_slice(&chunk[..got]),
            }
        }
        Err(Error::Broken(what))
    }

    fn u16(&self, offset: u64, what: &'static str) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array(offset, what)?))
    }

    fn u32(&self, offset: u64, what: &'static str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(offset, what)?))
    }

    fn u64(&self, offset: u64, what: &'static str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(offset, what)?))
    }

    fn array<const N: usize>(&self, offset: u64, what: &'static str) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        if self.source.read(offset, &mut bytes)? { Ok(bytes) } else { Err(Error::Broken(what)) }
    }
}

fn sum(left: u64, right: u64, what: &'static str) -> Result<u64> {
    left.checked_add(right).ok_or(Error::Broken(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with one segment that maps the whole file at 0x1000, an interpreter, one needed
    /// library and a symbol table that defines malloc and refers to free.
    fn program(gnu: bool) -> Vec<u8> {
        const BASE: u64 = 0x1000;
        let mut file = vec![0u8; 0x400];
        let put = |file: &mut Vec<u8>, at: usize, bytes: &[u8]| {
            file[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(&mut file, 0, b"\x7fELF\x02\x01\x01");
        put(&mut file, 16, &3u16.to_le_bytes());
        put(&mut file, 18, &MACHINE_X86_64.to_le_bytes());
        put(&mut file, 32, &64u64.to_le_bytes());
        put(&mut file, 54, &56u16.to_le_bytes());
        put(&mut file, 56, &3u16.to_le_bytes());
        let segments = [(1u32, 0u64, 0x400u64), (3, 0x100, 0x20), (2, 0x140, 0x80)];
        for (index, (kind, offset, bytes)) in segments.into_iter().enumerate() {
            let at = 64 + 56 * index;
            put(&mut file, at, &kind.to_le_bytes());
            put(&mut file, at + 8, &offset.to_le_bytes());
            put(&mut file, at + 16, &(BASE + offset).to_le_bytes());
            put(&mut file, at + 32, &bytes.to_le_bytes());
        }
        put(&mut file, 0x100, b"/lib/ld-musl-x86_64.so.1\0");
        let hash_tag = if gnu { DT_GNU_HASH } else { DT_HASH };
        let dynamic = [
            (DT_NEEDED, 1),
            (DT_STRTAB, BASE + 0x200),
            (DT_SYMTAB, BASE + 0x240),
            (hash_tag, BASE + 0x300),
            (0, 0),
        ];
        for (index, (tag, value)) in dynamic.into_iter().enumerate() {
            put(&mut file, 0x140 + 16 * index, &tag.to_le_bytes());
            put(&mut file, 0x148 + 16 * index, &value.to_le_bytes());
        }
        put(&mut file, 0x200, b"\0libasan.so.8\0malloc\0free\0");
        // Symbols: the null one, free (undefined), malloc (defined).
        put(&mut file, 0x240 + 24, &21u32.to_le_bytes());
        put(&mut file, 0x240 + 48, &14u32.to_le_bytes());
        put(&mut file, 0x240 + 48 + 6, &7u16.to_le_bytes());
        if gnu {
            let hash =
                b"malloc".iter().fold(5381u32, |h, b| h.wrapping_mul(33).wrapping_add((*b).into()));
            for (index, word) in [1, 2, 1, 0, 0, 0, 2, hash | 1].into_iter().enumerate() {
                put(&mut file, 0x300 + 4 * index, &u32::to_le_bytes(word));
            }
        } else {
            for (index, word) in [1u32, 3, 1, 0, 2, 0].into_iter().enumerate() {
                put(&mut file, 0x300 + 4 * index, &word.to_le_bytes());
            }
        }
        file
    }

    const SYMBOLS: &[&str] = &["malloc", "free", "__asan_init"];

    #[test]
    fn both_hash_tables_are_read() {
        for gnu in [true, false] {
            let file = program(gnu);
            let facts = inspect(&file.as_slice(), SYMBOLS).expect("a good file");
            assert_eq!(facts.class, Class::Bits64);
            assert_eq!(facts.machine, MACHINE_X86_64);
            assert_eq!(facts.interpreter.as_deref(), Some("/lib/ld-musl-x86_64.so.1"));
            assert_eq!(facts.needed, ["libasan.so.8"]);
            assert_eq!(facts.defined, ["malloc"], "gnu: {gnu}");
        }
    }

    #[test]
    fn every_truncation_is_an_error_or_harmless() {
        for gnu in [true, false] {
            let file = program(gnu);
            let whole = inspect(&file.as_slice(), SYMBOLS).expect("a good file");
            for length in 0..file.len() {
                match inspect(&&file[..length], SYMBOLS) {
                    Ok(facts) => {
                        assert!(length >= 0x318, "cut to {length}");
                        assert_eq!(facts, whole);
                    }
                    Err(Error::NotElf) => assert!(length < 4, "cut to {length}"),
                    Err(Error::Broken(_)) => {}
                    Err(Error::Unreadable) => panic!("cut to {length}"),
                }
            }
        }
    }

    #[test]
    fn no_single_byte_makes_it_panic_or_hang() {
        for gnu in [true, false] {
            let good = program(gnu);
            for at in 0..good.len() {
                for value in [0x00, 0x01, 0x7f, 0x80, 0xff] {
                    let mut file = good.clone();
                    file[at] = value;
                    let _ = inspect(&file.as_slice(), SYMBOLS);
                }
            }
        }
    }

    #[test]
    fn endless_chains_end() {
        // The chain's link points to itself, and the symbol's name never matches.
        let mut file = program(false);
        file[0x240 + 48..0x240 + 52].copy_from_slice(&21u32.to_le_bytes());
        file[0x300 + 12 + 8..0x300 + 12 + 12].copy_from_slice(&2u32.to_le_bytes());
        assert_eq!(
            inspect(&file.as_slice(), &["malloc"]).expect_err("a loop"),
            Error::Broken("hash table")
        );
    }

    #[test]
    fn foreign_files_are_told_apart() {
        assert_eq!(inspect(&b"#!/bin/sh\necho a script\n".as_slice(), &[]), Err(Error::NotElf));
        assert_eq!(inspect(&b"".as_slice(), &[]), Err(Error::NotElf));
        assert_eq!(inspect(&b"\x7fELF\x02".as_slice(), &[]), Err(Error::Broken("header")));
        let mut file = program(true);
        file[4] = 1;
        let facts = inspect(&file.as_slice(), SYMBOLS).expect("32 bits");
        assert_eq!((facts.class, facts.interpreter), (Class::Bits32, None));
        let mut file = program(true);
        file[5] = 2;
        file[18..20].copy_from_slice(&22u16.to_be_bytes());
        let facts = inspect(&file.as_slice(), SYMBOLS).expect("big endian");
        assert_eq!((facts.little_endian, facts.machine), (false, 22));
    }

    #[test]
    fn this_very_program_is_read() {
        let file = File::open("/proc/self/exe").expect("open");
        let facts = inspect(&file, &["malloc"]).expect("a good file");
        assert!(facts.interpreter.is_some());
        assert!(facts.needed.iter().any(|name| name.starts_with("libc.so")));
        assert!(facts.defined.is_empty());
    }
}
