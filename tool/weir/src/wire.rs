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
/// Rows of pools that the tool's files have, for all processes of a run.
pub const POOL_COUNT: u32 = 8192;
pub const POOL_BYTES: usize = 192;
const POOL_COUNT_MAX: u32 = 65536;
const POOL_CHUNK: u32 = 16;
const POOL_NAME_AT: usize = 160;
const POOLS_TURN_AT: usize = 228;
const EXE_AT: usize = 256;
const EXE_BYTES: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Loaded,
    Reached,
    Forked,
    Ended,
    /// What is in it no process has written: a program wrote to the file. Its figures are zero.
    Damaged,
}

#[derive(Debug, Clone)]
pub struct Slot {
    pub index: u32,
    pub state: State,
    pub pid: i32,
    pub parent_pid: i32,
    pub threads_max: u32,
    pub start_ns: u64,
    pub end_ns: u64,
    pub figures: Figures,
    pub refreshed_ns: u64,
    pub pools: Pools,
    /// Odd: its rows were being changed.
    pub pools_turn: u32,
    pub exe: String,
}

/// The object pools of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pools {
    /// Ever made, a parent's before the fork included.
    pub made: u64,
    pub now: u32,
    /// Of those that there are now, the ones without a row.
    pub left_out: u64,
    /// In the order of making.
    pub rows: Vec<Pool>,
}

/// One object pool. Names, units and order are those of wire.h.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Pool {
    pub name: String,
    #[serde(skip)]
    pub number: u64,
    pub object_bytes: u64,
    pub block_bytes: u64,
    pub users: u64,
    pub storage: u64,
    pub allocated: u64,
    pub used: u64,
    pub held: u64,
    pub cached: u64,
    pub shared: u64,
    pub needed: u64,
    pub magazine: u64,
    pub limit: u64,
    pub failed: u64,
    #[serde(serialize_with = "flag_names")]
    pub flags: u32,
}

/// As pool.h has them.
const POOL_FLAGS: [(&str, u32); 10] = [
    ("exact", 0x1),
    ("no_merge", 0x2),
    ("zero", 0x4),
    ("no_cache", 0x8),
    ("poison", 0x100),
    ("integrity", 0x200),
    ("caller", 0x400),
    ("tag", 0x800),
    ("cold_first", 0x1000),
    ("guard", 0x2000),
];

fn flag_names<S: serde::Serializer>(flags: &u32, to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(POOL_FLAGS.iter().filter(|(_, flag)| flags & flag != 0).map(|(name, _)| name))
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

    /// Whether a process can have these figures: an address has 48 bits, and so has what is there at once.
    fn can_be(&self) -> bool {
        let at_once = [
            self.live_bytes,
            self.live_peak_bytes,
            self.cached_bytes,
            self.dirty_bytes,
            self.metadata_bytes,
            self.resident_bytes,
            self.resident_peak_bytes,
            self.committed_bytes,
            self.hole_bytes,
        ];
        let ever = [
            self.alloc_calls,
            self.free_calls,
            self.slow_calls,
            self.sys_calls,
            self.misuse_reports,
        ];
        at_once.iter().all(|bytes| bytes >> 48 == 0) && ever.iter().all(|calls| calls >> 62 == 0)
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
    pub pool_count: u32,
    pub pool_chunks_claimed: u32,
}

/// Makes `file` a wire file of SLOT_COUNT free slots and POOL_COUNT free rows, which stay a hole until they
/// are used.
pub fn init(file: &File) -> std::io::Result<()> {
    file.set_len(pools_at(SLOT_COUNT) + u64::from(POOL_COUNT) * POOL_BYTES as u64)?;
    let mut header = [0; HEADER_BYTES];
    header[0..8].copy_from_slice(&MAGIC.to_ne_bytes());
    header[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    header[12..16].copy_from_slice(&SLOT_COUNT.to_ne_bytes());
    header[16..20].copy_from_slice(&(SLOT_BYTES as u32).to_ne_bytes());
    header[28..32].copy_from_slice(&POOL_COUNT.to_ne_bytes());
    header[32..36].copy_from_slice(&(POOL_BYTES as u32).to_ne_bytes());
    file.write_all_at(&header, 0)
}

fn slot_at(index: u32) -> u64 {
    HEADER_BYTES as u64 + u64::from(index) * SLOT_BYTES as u64
}

/// Where the rows of pools begin, behind the slots.
fn pools_at(slot_count: u32) -> u64 {
    slot_at(slot_count)
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
    let (pool_count, pool_bytes) = (u32_at(bytes, 28), u32_at(bytes, 32));
    if pool_count > POOL_COUNT_MAX || (pool_count > 0 && pool_bytes as usize != POOL_BYTES) {
        bail!(
            "the wire file promises {pool_count} rows of {pool_bytes} bytes for pools: a program overwrote it"
        );
    }
    Ok(Header {
        slot_count,
        slots_claimed: u32_at(bytes, 20),
        slots_refused: u32_at(bytes, 24),
        pool_count,
        pool_chunks_claimed: u32_at(bytes, 36),
    })
}

/// The claimed slots that are filled in, in the order in which they were claimed, with their pools.
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
    let slots = (0..).zip(bytes.chunks_exact(SLOT_BYTES));
    let mut slots: Vec<Slot> =
        slots.filter_map(|(index, bytes)| decode_slot(index, bytes)).collect();
    for (index, pool) in pools(file, header)? {
        if let Ok(at) = slots.binary_search_by_key(&index, |slot| slot.index) {
            slots[at].pools.rows.push(pool);
        }
    }
    slots.iter_mut().for_each(|slot| slot.pools.rows.sort_by_key(|pool| pool.number));
    Ok(slots)
}

/// All rows that have a pool, each with the index of its process's slot.
fn pools(file: &File, header: &Header) -> Result<Vec<(u32, Pool)>> {
    let claimed = header.pool_chunks_claimed.saturating_mul(POOL_CHUNK).min(header.pool_count);
    let mut bytes = vec![0; claimed as usize * POOL_BYTES];
    let got = read_up_to(file, &mut bytes, pools_at(header.slot_count))
        .context("cannot read the wire file")?;
    ensure!(
        got == bytes.len(),
        "the wire file was cut short: {claimed} rows of pools are claimed, but only {} can be read",
        got / POOL_BYTES
    );
    Ok(bytes.chunks_exact(POOL_BYTES).filter_map(decode_pool).collect())
}

/// The last slot of a process that is at work, with figures of its pools that are of one moment. None: it has
/// claimed none that is filled in.
pub fn live(file: &File, pid: i32) -> Result<Option<Slot>> {
    /// Looks at a process that changes its rows meanwhile; one that is killed in that never ends.
    const LOOKS: u32 = 100;
    for look in 1.. {
        let header = header(file)?;
        let all = slots(file, &header)?;
        let Some(found) = all.into_iter().rfind(|slot| slot.pid == pid) else { break };
        let mut after = [0; SLOT_BYTES];
        file.read_exact_at(&mut after, slot_at(found.index))
            .context("cannot read the wire file")?;
        let turn = u32_at(&after, POOLS_TURN_AT);
        if (turn % 2 == 0 && turn == found.pools_turn) || look == LOOKS {
            return Ok(Some(found));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok(None)
}

/// The process that claimed slot `index`, once the slot is filled in. Cheap: for use while polling.
pub fn slot_pid(file: &File, index: u32) -> Option<i32> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, slot_at(index)).ok()?;
    (u32_at(&bytes, 0) != 0).then(|| u32_at(&bytes, 4) as i32)
}

/// Slot `index` as it is now, once it is filled in, without its rows of pools.
pub fn slot(file: &File, index: u32) -> Option<Slot> {
    let mut bytes = [0; SLOT_BYTES];
    file.read_exact_at(&mut bytes, slot_at(index)).ok()?;
    decode_slot(index, &bytes)
}

/// `bytes` are SLOT_BYTES long. None: not filled in yet.
fn decode_slot(index: u32, bytes: &[u8]) -> Option<Slot> {
    let state = match u32_at(bytes, 0) {
        1 => State::Loaded,
        2 => State::Reached,
        3 => State::Forked,
        4 => State::Ended,
        0 => return None,
        _ => State::Damaged,
    };
    let mut figures = Figures::default();
    for (at, field) in figures.fields_mut().into_iter().enumerate() {
        *field = u64_at(bytes, 32 + 8 * at);
    }
    let state = if figures.can_be() { state } else { State::Damaged };
    if state == State::Damaged {
        figures = Figures::default();
    }
    Some(Slot {
        index,
        state,
        pid: u32_at(bytes, 4) as i32,
        parent_pid: u32_at(bytes, 8) as i32,
        threads_max: u32_at(bytes, 12),
        start_ns: u64_at(bytes, 16),
        end_ns: u64_at(bytes, 24),
        figures,
        refreshed_ns: u64_at(bytes, 200),
        pools: Pools {
            made: u64_at(bytes, 208),
            left_out: u64_at(bytes, 216),
            now: u32_at(bytes, 224),
            rows: Vec::new(),
        },
        pools_turn: u32_at(bytes, POOLS_TURN_AT),
        exe: text_at(&bytes[EXE_AT..EXE_AT + EXE_BYTES]),
    })
}

/// `bytes` are POOL_BYTES long.
fn decode_pool(bytes: &[u8]) -> Option<(u32, Pool)> {
    let index = u32_at(bytes, 0).checked_sub(1)?;
    let figure = |at: usize| u64_at(bytes, 16 + 8 * at);
    let pool = Pool {
        name: text_at(&bytes[POOL_NAME_AT..POOL_BYTES]),
        number: u64_at(bytes, 8),
        object_bytes: figure(0),
        block_bytes: figure(1),
        users: figure(2),
        storage: figure(3),
        allocated: figure(4),
        used: figure(5),
        held: figure(6),
        cached: figure(7),
        shared: figure(8),
        needed: figure(9),
        magazine: figure(10),
        limit: figure(11),
        failed: figure(12),
        flags: u32_at(bytes, 4),
    };
    Some((index, pool))
}

fn text_at(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
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
        let fresh = Header {
            slot_count: SLOT_COUNT,
            slots_claimed: 0,
            slots_refused: 0,
            pool_count: POOL_COUNT,
            pool_chunks_claimed: 0,
        };
        assert_eq!(header, fresh);
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

    fn claim_pool(file: &File, row: u32, slot: u32, number: u64, name: &[u8]) {
        let mut bytes = [0u8; POOL_BYTES];
        bytes[0..4].copy_from_slice(&slot.to_ne_bytes());
        bytes[4..8].copy_from_slice(&0x2005u32.to_ne_bytes());
        bytes[8..16].copy_from_slice(&number.to_ne_bytes());
        for figure in 0..13u64 {
            let at = 16 + 8 * figure as usize;
            bytes[at..at + 8].copy_from_slice(&(100 + figure).to_ne_bytes());
        }
        bytes[POOL_NAME_AT..POOL_NAME_AT + name.len()].copy_from_slice(name);
        let at = pools_at(SLOT_COUNT) + u64::from(row) * POOL_BYTES as u64;
        file.write_all_at(&bytes, at).expect("write");
        file.write_all_at(&(row / POOL_CHUNK + 1).to_ne_bytes(), 36).expect("write");
    }

    #[test]
    fn rows_of_pools_go_to_their_slots() {
        let file = file();
        claim(&file, 0, 4, 10, b"");
        claim(&file, 1, 0, 11, b"");
        claim(&file, 2, 2, 12, b"");
        claim_pool(&file, 0, 3, 7, b"late");
        claim_pool(&file, 1, 0, 1, b"gone");
        claim_pool(&file, 2, 2, 1, b"of a slot that is not filled in");
        claim_pool(&file, 17, 3, 2, b"a \"name\"\n\xff");
        claim_pool(&file, 18, u32::MAX, 2, b"of no slot");
        let slots = slots(&file, &header(&file).expect("header")).expect("slots");
        assert!(slots[0].pools.rows.is_empty());
        let rows = &slots[1].pools.rows;
        assert_eq!(rows.len(), 2);
        assert_eq!(
            (rows[0].name.as_str(), rows[1].name.as_str()),
            ("a \"name\"\n\u{fffd}", "late")
        );
        let json = serde_json::to_value(&rows[1]).expect("JSON");
        let names = [
            "object_bytes",
            "block_bytes",
            "users",
            "storage",
            "allocated",
            "used",
            "held",
            "cached",
            "shared",
            "needed",
            "magazine",
            "limit",
            "failed",
        ];
        for (name, value) in names.iter().zip(100u64..) {
            assert_eq!(json[name], value, "{name}");
        }
        assert_eq!(json["flags"], serde_json::json!(["exact", "zero", "guard"]));
    }

    #[test]
    fn a_file_without_rows_of_pools_is_read() {
        let file = file();
        claim(&file, 0, 4, 10, b"");
        file.write_all_at(&[0; 12], 28).expect("write");
        file.set_len(slot_at(1)).expect("set_len");
        let slots = slots(&file, &header(&file).expect("header")).expect("slots");
        assert_eq!(slots[0].pools, Pools::default());
    }

    #[test]
    fn flags_are_those_of_the_header() {
        let header = include_str!("../../../include/weir/pool.h");
        let defined = header.lines().filter_map(|line| {
            let (name, value) = line.strip_prefix("#define WEIR_POOL_")?.split_once(" 0x")?;
            let digits = value.split('u').next()?;
            let plain = !name.starts_with("ALLOC_");
            plain.then_some((name.to_lowercase(), u32::from_str_radix(digits, 16).ok()?))
        });
        let known = POOL_FLAGS.map(|(name, flag)| (name.to_owned(), flag));
        assert_eq!(defined.collect::<Vec<_>>(), known);
    }

    #[test]
    fn a_live_slot_is_the_last_of_its_process() {
        let file = file();
        claim(&file, 0, 4, 10, b"/bin/sh");
        claim(&file, 1, 2, 10, b"/bin/ls");
        claim(&file, 2, 2, 12, b"/bin/ps");
        let exe = |pid| live(&file, pid).expect("read").map(|slot| slot.exe);
        assert_eq!(exe(10).as_deref(), Some("/bin/ls"));
        assert_eq!(exe(11), None);
        // Killed while it changed its rows: what is there is all there will be.
        file.write_all_at(&1u32.to_ne_bytes(), slot_at(2) + POOLS_TURN_AT as u64).expect("write");
        assert_eq!(exe(12).as_deref(), Some("/bin/ps"));
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
        claim_pool(&file, 0, 1, 1, b"");
        file.set_len(pools_at(SLOT_COUNT) + 7).expect("set_len");
        let error = slots(&file, &header(&file).expect("header")).expect_err("cut in the rows");
        assert!(error.to_string().contains("16 rows of pools are claimed, but only 0"), "{error}");
        file.set_len(40).expect("set_len");
        let error = header(&file).expect_err("cut in the header").to_string();
        assert!(error.contains("cut to 40 bytes"), "{error}");
    }

    #[test]
    fn what_no_process_wrote_is_damaged() {
        let file = file();
        let read = |slot: u32| super::slot(&file, slot).expect("filled in");
        claim(&file, 0, 77, 10, b"/bin/true");
        assert_eq!((read(0).state, read(0).pid), (State::Damaged, 10));
        assert_eq!(read(0).figures, Figures::default());
        for field in [0, 2, 8, 15, 20] {
            claim(&file, 1, 2, 11, b"");
            assert_eq!(read(1).state, State::Reached);
            file.write_all_at(&[0xff; 8], slot_at(1) + 32 + 8 * field).expect("write");
            assert_eq!(read(1).state, State::Damaged, "field {field}");
            assert!(!read(1).has_figures());
        }
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
        init(&file).expect("init");
        file.write_all_at(&9u32.to_ne_bytes(), 32).expect("write");
        assert!(header(&file).expect_err("rows").to_string().contains("rows of 9 bytes"));
    }
}
