//! Reads and prepares the witness's file (`tool/native/witness.h`): what calls each process image was seen
//! to make, and its memory at exit. The programs that write it may do so wrongly, so every number is
//! distrusted. It does not know which allocator was wanted.
//!
//! SPDX-License-Identifier: Apache-2.0

use crate::wire::{u32_at, u64_at};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::os::unix::fs::FileExt;

const MAGIC: u64 = 0x3153_454e_5449_5745;
const VERSION: u32 = 1;
pub const SLOT_COUNT: u32 = 4096;
const HEADER_BYTES: usize = 64;
const SLOT_BYTES: usize = 2048;
const EXE_AT: usize = 96;
const EXE_BYTES: usize = 256;
const CALLS_AT: usize = EXE_AT + EXE_BYTES;
const CALLS: usize = 4;
const CALL_BYTES: usize = 8 + CALLER_BYTES + TARGET_BYTES;
const CALLER_BYTES: usize = 128;
const TARGET_BYTES: usize = 256;

/// The watched functions, by their bits.
const SYMBOLS: [&str; 12] = [
    "malloc",
    "calloc",
    "realloc",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "operator new",
    "operator new[]",
    "operator new",
    "operator new[]",
    "operator new",
    "operator new[]",
];
/// The bits of C's functions. An operator new may lead to a C++ library, which then calls these.
const FAMILY_C: u32 = 0b11_1111;
/// malloc, calloc and realloc, which every allocator has.
const BASIC: u32 = 0b111;

/// An object that serves calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The functions of which a call was seen to go there.
    pub called: u32,
    /// The functions that some object would reach there.
    pub bound: u32,
    /// The object that called first; empty if no call was seen.
    pub caller: String,
    pub target: String,
}

impl Call {
    pub fn is_of_c(&self) -> bool {
        self.called & FAMILY_C != 0
    }

    /// Calls of malloc, calloc or realloc went here, or would.
    pub fn serves_malloc(&self) -> bool {
        self.called & FAMILY_C != 0 || self.bound & BASIC != 0
    }

    /// The first function that was called.
    pub fn symbol(&self) -> &'static str {
        SYMBOLS.get(self.called.trailing_zeros() as usize).copied().unwrap_or("malloc")
    }
}

/// One process image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    pub pid: i32,
    pub exe: String,
    pub start_ns: u64,
    /// The figures are those of the end: exit ran the destructors.
    pub ended: bool,
    /// A child of fork: the calls are its parent's.
    pub inherited: bool,
    /// What /proc/PID/stat calls the start of the stack: the image and its copies have the same.
    pub start_stack: u64,
    /// Pointers to functions that were watched.
    pub watched: u32,
    pub resident_peak_bytes: u64,
    pub resident_bytes: u64,
    pub threads: u32,
    pub calls: Vec<Call>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub claimed: u32,
    pub refused: u32,
}

/// Makes `file` an empty file of the witness.
pub fn init(file: &File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.set_len((HEADER_BYTES + SLOT_COUNT as usize * SLOT_BYTES) as u64)?;
    let mut header = [0; HEADER_BYTES];
    header[0..8].copy_from_slice(&MAGIC.to_ne_bytes());
    header[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    header[12..16].copy_from_slice(&SLOT_COUNT.to_ne_bytes());
    header[16..20].copy_from_slice(&(SLOT_BYTES as u32).to_ne_bytes());
    file.write_all_at(&header, 0)
}

pub fn header(file: &File) -> Result<Header> {
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0).context("the witness's file was cut short by a program")?;
    let intact = u64_at(&bytes, 0) == MAGIC
        && u32_at(&bytes, 8) == VERSION
        && u32_at(&bytes, 12) == SLOT_COUNT
        && u32_at(&bytes, 16) as usize == SLOT_BYTES;
    ensure!(intact, "the witness's file was overwritten by a program");
    Ok(Header { claimed: u32_at(&bytes, 20), refused: u32_at(&bytes, 24) })
}

/// The claimed slots that are filled in, in the order in which they were claimed.
pub fn slots(file: &File, header: &Header) -> Result<Vec<Slot>> {
    let mut slots = Vec::new();
    let mut bytes = [0; SLOT_BYTES];
    for index in 0..header.claimed.min(SLOT_COUNT) {
        let at = HEADER_BYTES as u64 + u64::from(index) * SLOT_BYTES as u64;
        file.read_exact_at(&mut bytes, at)
            .context("the witness's file was cut short by a program")?;
        slots.extend(decode(&bytes));
    }
    Ok(slots)
}

/// The process that claimed slot `index`, once the slot is filled in. Cheap: for use while polling.
pub fn slot_pid(file: &File, index: u32) -> Option<i32> {
    let mut bytes = [0; 8];
    let at = HEADER_BYTES as u64 + u64::from(index) * SLOT_BYTES as u64;
    file.read_exact_at(&mut bytes, at).ok()?;
    (u32_at(&bytes, 0) != 0).then(|| u32_at(&bytes, 4) as i32)
}

fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<Slot> {
    let state = u32_at(bytes, 0);
    if !(1..=3).contains(&state) {
        return None;
    }
    let count = (u32_at(bytes, 12) as usize).min(CALLS);
    let calls = (0..count).map(|index| {
        let at = CALLS_AT + index * CALL_BYTES;
        Call {
            called: u32_at(bytes, at),
            bound: u32_at(bytes, at + 4),
            caller: text(&bytes[at + 8..at + 8 + CALLER_BYTES]),
            target: text(&bytes[at + 8 + CALLER_BYTES..at + CALL_BYTES]),
        }
    });
    Some(Slot {
        pid: u32_at(bytes, 4) as i32,
        exe: text(&bytes[EXE_AT..EXE_AT + EXE_BYTES]),
        start_ns: u64_at(bytes, 16),
        ended: state == 3,
        resident_peak_bytes: u64_at(bytes, 32),
        resident_bytes: u64_at(bytes, 40),
        threads: u32_at(bytes, 64),
        watched: u32_at(bytes, 68),
        inherited: u32_at(bytes, 72) != 0,
        start_stack: u64_at(bytes, 80),
        calls: calls.collect(),
    })
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    fn file() -> File {
        let file = File::from(memfd_create("witness", MemfdFlags::CLOEXEC).expect("memfd"));
        init(&file).expect("init");
        file
    }

    fn claim(file: &File, index: u32, change: impl FnOnce(&mut [u8; SLOT_BYTES])) {
        let mut slot = [0u8; SLOT_BYTES];
        slot[0..4].copy_from_slice(&2u32.to_ne_bytes());
        slot[4..8].copy_from_slice(&77u32.to_ne_bytes());
        change(&mut slot);
        let at = HEADER_BYTES as u64 + u64::from(index) * SLOT_BYTES as u64;
        file.write_all_at(&slot, at).expect("write");
        file.write_all_at(&(index + 1).to_ne_bytes(), 20).expect("write");
    }

    #[test]
    fn calls_are_decoded() {
        let file = file();
        assert!(slots(&file, &header(&file).expect("header")).expect("slots").is_empty());
        assert_eq!(slot_pid(&file, 0), None);
        claim(&file, 0, |slot| {
            slot[12..16].copy_from_slice(&2u32.to_ne_bytes());
            slot[80..88].copy_from_slice(&4096u64.to_ne_bytes());
            slot[EXE_AT..EXE_AT + 4].copy_from_slice(b"/bin");
            slot[CALLS_AT..CALLS_AT + 4].copy_from_slice(&2u32.to_ne_bytes());
            slot[CALLS_AT + 8..CALLS_AT + 10].copy_from_slice(b"/c");
            slot[CALLS_AT + 136..CALLS_AT + 138].copy_from_slice(b"/t");
            slot[CALLS_AT + CALL_BYTES..CALLS_AT + CALL_BYTES + 4]
                .copy_from_slice(&(1u32 << 6).to_ne_bytes());
        });
        let slots = slots(&file, &header(&file).expect("header")).expect("slots");
        assert_eq!(slot_pid(&file, 0), Some(77));
        assert_eq!((slots[0].pid, slots[0].exe.as_str(), slots[0].ended), (77, "/bin", false));
        assert_eq!(slots[0].start_stack, 4096);
        let [c, new] = &slots[0].calls[..] else { panic!("{slots:?}") };
        assert_eq!((c.caller.as_str(), c.target.as_str(), c.symbol()), ("/c", "/t", "calloc"));
        assert!(c.is_of_c() && !new.is_of_c());
        assert_eq!(new.symbol(), "operator new");
    }

    #[test]
    fn what_a_program_wrote_wrongly_is_harmless() {
        let file = file();
        claim(&file, 0, |slot| slot.fill(0xff));
        claim(&file, 1, |slot| {
            slot[12..16].copy_from_slice(&u32::MAX.to_ne_bytes());
            slot[CALLS_AT..].fill(b'x');
        });
        let found = slots(&file, &header(&file).expect("header")).expect("slots");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].calls.len(), found[0].calls[3].target.len()), (CALLS, TARGET_BYTES));
        file.write_all_at(&u32::MAX.to_ne_bytes(), 20).expect("write");
        assert_eq!(slots(&file, &header(&file).expect("header")).expect("slots").len(), 1);
        file.set_len(3000).expect("cut");
        assert!(slots(&file, &header(&file).expect("header")).is_err());
        file.set_len(30).expect("cut");
        assert!(header(&file).expect_err("cut").to_string().contains("cut short"));
        init(&file).expect("init");
        file.write_all_at(&[1; 8], 0).expect("write");
        assert!(header(&file).expect_err("magic").to_string().contains("overwritten"));
    }
}
