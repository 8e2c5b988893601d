//! The tool's side of `weir/wire.h`: writes the header of a wire file and decodes header and slots.
//! Used by the watcher and the report. It reads with `pread` and never maps the file, because a
//! process that cuts the file short must not be able to kill the tool. It does not know which
//! process a slot should belong to.
//!
//! SPDX-License-Identifier: Apache-2.0

use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::os::unix::fs::FileExt;

pub const MAGIC: u64 = 0x3152_4957_4552_4957;
pub const VERSION: u32 = 1;
pub const HEADER_BYTES: usize = 64;
pub const SLOT_BYTES: usize = 512;
pub const SLOT_COUNT: u32 = 4096;
pub const SLOT_COUNT_MAX: u32 = 65536;
const EXE_AT: usize = 256;
const EXE_BYTES: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Loaded,
    Reached,
    Forked,
    Ended,
}

#[derive(Debug, Clone)]
pub struct Slot {
    pub state: State,
    pub pid: i32,
    pub parent_pid: i32,
    pub threads_max: u32,
    pub start_ns: u64,
    pub end_ns: u64,
    pub figures: Figures,
    pub exe: String,
}

/// The counters of one process, or sums over several. Names, units and order are those of wire.h.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Figures {
    pub live_bytes: u64,
    pub live_peak_bytes: u64,
    pub cached_bytes: u64,
    pub dirty_bytes: u64,
    pub metadata_bytes: u64,
    pub resident_bytes: u64,
    pub resident_peak_bytes: u64,
    pub committed_bytes: u64,
    pub alloc_calls: u64,
    pub free_calls: u64,
    pub remote_frees: u64,
    pub slow_calls: u64,
    pub sys_calls: u64,
    pub sys_purge: u64,
    pub purged_bytes: u64,
    pub misuse_reports: u64,
    pub refaulted_bytes: u64,
    pub scanned_bytes: u64,
    pub release_calls: u64,
    pub release_window_ns: u64,
    pub hole_bytes: u64,
}

impl Slot {
    /// Whether the process wrote figures at all: one that is killed or leaves by `_exit` within
    /// milliseconds did not, and its zeros mean nothing.
    pub fn has_figures(&self) -> bool {
        self.figures.resident_peak_bytes > 0 || self.figures.alloc_calls > 0
    }
}

impl Figures {
    const COUNT: usize = 21;

    fn fields_mut(&mut self) -> [&mut u64; Self::COUNT] {
        [
            &mut self.live_bytes,
            &mut self.live_peak_bytes,
            &mut self.cached_bytes,
            &mut self.dirty_bytes,
            &mut self.metadata_bytes,
            &mut self.resident_bytes,
            &mut self.resident_peak_bytes,
            &mut self.committed_bytes,
            &mut self.alloc_calls,
            &mut self.free_calls,
            &mut self.remote_frees,
            &mut self.slow_calls,
            &mut self.sys_calls,
            &mut self.sys_purge,
            &mut self.purged_bytes,
            &mut self.misuse_reports,
            &mut self.refaulted_bytes,
            &mut self.scanned_bytes,
            &mut self.release_calls,
            &mut self.release_window_ns,
            &mut self.hole_bytes,
        ]
    }

    pub fn add(&mut self, other: &Figures) {
        let mut other = other.clone();
        // A delay is no amount: of several processes the longest counts.
        let window = self.release_window_ns.max(other.release_window_ns);
        for (sum, value) in self.fields_mut().into_iter().zip(other.fields_mut()) {
            *sum = sum.saturating_add(*value);
        }
        self.release_window_ns = window;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub slot_count: u32,
    pub slots_claimed: u32,
    pub slots_refused: u32,
}

/// Makes `file` a wire file of SLOT_COUNT free slots. The slots stay a hole until they are used.
pub fn init(file: &File) -> std::io::Result<()> {
    file.set_len(HEADER_BYTES as u64 + u64::from(SLOT_COUNT) * SLOT_BYTES as u64)?;
    let mut header = [0; HEADER_BYTES];
    header[0..8].copy_from_slice(&MAGIC.to_ne_bytes());
    header[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    header[12..16].copy_from_slice(&SLOT_COUNT.to_ne_bytes());
    header[16..20].copy_from_slice(&(SLOT_BYTES as u32).to_ne_bytes());
    file.write_all_at(&header, 0)
}

pub fn header(file: &File) -> Result<Header> {
    let mut bytes = [0; HEADER_BYTES];
    let got = read_up_to(file, &mut bytes, 0).context("cannot read the wire file")?;
    ensure!(
        got == HEADER_BYTES,
        "the wire file was cut to {got} bytes, less than its header: a program wrote to it, so which processes were reached is unknown"
    );
    decode_header(&bytes)
}

fn decode_header(bytes: &[u8; HEADER_BYTES]) -> Result<Header> {
    let magic = u64_at(bytes, 0);
    ensure!(magic == MAGIC, "the wire file begins with {magic:#x}: a program overwrote it");
    let version = u32_at(bytes, 8);
    ensure!(version == VERSION, "the wire file has version {version}, this tool reads {VERSION}");
    let (slot_count, slot_bytes) = (u32_at(bytes, 12), u32_at(bytes, 16));
    if slot_count > SLOT_COUNT_MAX || slot_bytes as usize != SLOT_BYTES {
        bail!(
            "the wire file promises {slot_count} slots of {slot_bytes} bytes: a program overwrote it"
        );
    }
    Ok(Header { slot_count, slots_claimed: u32_at(bytes, 20), slots_refused: u32_at(bytes, 24) })
}

/// The claimed slots that are filled in, in the order in which they were claimed.
pub fn slots(file: &File, header: &Header) -> Result<Vec<Slot>> {
    let claimed = header.slots_claimed.min(header.slot_count);
    let mut bytes = vec![0; claimed as usize * SLOT_BYTES];
    let got =
        read_up_to(file, &mut bytes, HEADER_BYTES as u64).context("cannot read the wire file")?;
    ensure!(
        got == bytes.len(),
        "the wire file was cut short: {claimed} slots are claimed, but only {} can be read",
        got / SLOT_BYTES
    );
    Ok(bytes.chunks_exact(SLOT_BYTES).filter_map(decode_slot).collect())
}

/// The process that claimed slot `index`, once the slot is filled in. Cheap: for use while polling.
pub fn slot_pid(file: &File, index: u32) -> Option<i32> {
    let mut bytes = [0; 8];
    let at = HEADER_BYTES as u64 + u64::from(index) * SLOT_BYTES as u64;
    file.read_exact_at(&mut bytes, at).ok()?;
    (u32_at(&bytes, 0) != 0).then(|| u32_at(&bytes, 4) as i32)
}

/// Slot `index` as it is now, once it is filled in.
pub fn slot(file: &File, index: u32) -> Option<Slot> {
    let mut bytes = [0; SLOT_BYTES];
    let at = HEADER_BYTES as u64 + u64::from(index) * SLOT_BYTES as u64;
    file.read_exact_at(&mut bytes, at).ok()?;
    decode_slot(&bytes)
}

/// `bytes` are SLOT_BYTES long.
fn decode_slot(bytes: &[u8]) -> Option<Slot> {
    let state = match u32_at(bytes, 0) {
        1 => State::Loaded,
        2 => State::Reached,
        3 => State::Forked,
        4 => State::Ended,
        _ => return None,
    };
    let mut figures = Figures::default();
    for (at, field) in figures.fields_mut().into_iter().enumerate() {
        *field = u64_at(bytes, 32 + 8 * at);
    }
    let exe = &bytes[EXE_AT..EXE_AT + EXE_BYTES];
    let exe = &exe[..exe.iter().position(|byte| *byte == 0).unwrap_or(EXE_BYTES)];
    Some(Slot {
        state,
        pid: u32_at(bytes, 4) as i32,
        parent_pid: u32_at(bytes, 8) as i32,
        threads_max: u32_at(bytes, 12),
        start_ns: u64_at(bytes, 16),
        end_ns: u64_at(bytes, 24),
        figures,
        exe: String::from_utf8_lossy(exe).into_owned(),
    })
}

fn read_up_to(file: &File, bytes: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match file.read_at(&mut bytes[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

// Offsets are constants inside a header or a slot. The witness's records are read by these too.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(raw)
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    fn file() -> File {
        let file = File::from(memfd_create("wire", MemfdFlags::CLOEXEC).expect("memfd"));
        init(&file).expect("init");
        file
    }

    fn claim(file: &File, index: u32, state: u32, pid: i32, exe: &[u8]) {
        let mut slot = [0u8; SLOT_BYTES];
        slot[0..4].copy_from_slice(&state.to_ne_bytes());
        slot[4..8].copy_from_slice(&pid.to_ne_bytes());
        slot[32..40].copy_from_slice(&77u64.to_ne_bytes());
        slot[152..160].copy_from_slice(&3u64.to_ne_bytes());
        slot[192..200].copy_from_slice(&5u64.to_ne_bytes());
        slot[EXE_AT..EXE_AT + exe.len()].copy_from_slice(exe);
        let at = HEADER_BYTES as u64 + u64::from(index) * SLOT_BYTES as u64;
        file.write_all_at(&slot, at).expect("write");
        file.write_all_at(&(index + 1).to_ne_bytes(), 20).expect("write");
    }

    #[test]
    fn a_fresh_file_has_no_slots() {
        let file = file();
        let header = header(&file).expect("header");
        assert_eq!(header, Header { slot_count: SLOT_COUNT, slots_claimed: 0, slots_refused: 0 });
        assert!(slots(&file, &header).expect("slots").is_empty());
        assert_eq!(slot_pid(&file, 0), None);
    }

    #[test]
    fn slots_are_decoded() {
        let file = file();
        claim(&file, 0, 4, 10, b"/bin/true");
        claim(&file, 1, 0, 11, b"");
        claim(&file, 2, 2, 12, &[b'x'; EXE_BYTES]);
        let slots = slots(&file, &header(&file).expect("header")).expect("slots");
        assert_eq!(slots.len(), 2);
        assert_eq!((slots[0].state, slots[0].pid), (State::Ended, 10));
        assert_eq!(slots[0].exe, "/bin/true");
        assert_eq!(slots[0].figures.live_bytes, 77);
        assert_eq!(slots[0].figures.misuse_reports, 3);
        assert_eq!(slots[0].figures.hole_bytes, 5);
        assert_eq!(slots[1].exe.len(), EXE_BYTES);
        assert_eq!(slot_pid(&file, 2), Some(12));
        assert_eq!(slot(&file, 2).map(|slot| slot.pid), Some(12));
        assert!(slot(&file, 1).is_none() && slot(&file, SLOT_COUNT).is_none());
    }

    #[test]
    fn amounts_are_summed_and_delays_are_not() {
        let figures = Figures { live_bytes: 3, release_window_ns: 7, ..Figures::default() };
        let mut total = Figures { live_bytes: 2, release_window_ns: 5, ..Figures::default() };
        total.add(&figures);
        assert_eq!((total.live_bytes, total.release_window_ns), (5, 7));
    }

    #[test]
    fn more_claims_than_slots_are_no_slots() {
        let file = file();
        file.write_all_at(&u32::MAX.to_ne_bytes(), 20).expect("write");
        let header = header(&file).expect("header");
        assert_eq!(header.slots_claimed, u32::MAX);
        assert!(slots(&file, &header).expect("slots").is_empty());
    }

    #[test]
    fn a_truncated_file_is_named() {
        let file = file();
        claim(&file, 0, 4, 10, b"");
        claim(&file, 1, 4, 11, b"");
        let before = header(&file).expect("header");
        file.set_len((HEADER_BYTES + SLOT_BYTES + 5) as u64).expect("set_len");
        let error = slots(&file, &before).expect_err("cut in a slot").to_string();
        assert!(error.contains("2 slots are claimed, but only 1 can be read"), "{error}");
        file.set_len(40).expect("set_len");
        let error = header(&file).expect_err("cut in the header").to_string();
        assert!(error.contains("cut to 40 bytes"), "{error}");
    }

    #[test]
    fn a_foreign_header_is_named() {
        let file = file();
        file.write_all_at(&9u32.to_ne_bytes(), 8).expect("write");
        assert!(header(&file).expect_err("version").to_string().contains("version 9"));
        file.write_all_at(&[0; 8], 0).expect("write");
        assert!(header(&file).expect_err("magic").to_string().contains("overwrote"));
        init(&file).expect("init");
        file.write_all_at(&u32::MAX.to_ne_bytes(), 12).expect("write");
        assert!(header(&file).expect_err("count").to_string().contains("promises"));
    }
}
