//! One file of rows: a header, records one after the other, and an end that sums them up once no more will come.
//!
//! | what | bytes |
//! |---|---|
//! | header | version `1`, `TGUSAGE`, when it was begun in milliseconds since 1970 (8, little-endian, as all below) |
//! | record | length of its payload (4), kind (1), payload, XXH3 of all that (8) |
//! | end, kind 2 | rows (8), earliest and latest of their times (8, 8), whether it was closed (1) or mended (2) |
//!
//! Laws:
//! - a record is whole or it is not there: what follows the last good one is torn, and is cut before anything is read;
//! - a file with an end never changes again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::codec;
use super::row::Row;

/// The version of a segment, its first byte.
const VERSION: u8 = 1;
const MAGIC: &[u8; 7] = b"TGUSAGE";
/// Bytes of the header: where the first record lies.
pub const HEADER: u64 = 16;
/// Bytes of a record besides its payload.
const FRAME: usize = 4 + 1 + 8;
const END_PAYLOAD: usize = 8 + 8 + 8 + 1;
/// Bytes of an end.
pub const END: u64 = (FRAME + END_PAYLOAD) as u64;
/// Bytes that are read at once; a record is shorter.
const WINDOW: u64 = 1024 * 1024;
const _: () = assert!(codec::ROW_MOST + FRAME < WINDOW as usize);

const ROW: u8 = 1;
const THE_END: u8 = 2;

/// What a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// When it was begun.
    pub created_ms: i64,
    /// Rows.
    pub rows: u64,
    /// The earliest time of a row; the largest number when there is none.
    pub first_ms: i64,
    /// The latest time of a row; the least number when there is none.
    pub last_ms: i64,
    /// Bytes up to the end of its last row.
    pub bytes: u64,
}

impl Summary {
    /// A segment that is just begun.
    #[must_use]
    pub const fn begun(created_ms: i64) -> Self {
        Self { created_ms, rows: 0, first_ms: i64::MAX, last_ms: i64::MIN, bytes: HEADER }
    }

    /// With another row, of so many bytes.
    pub fn add(&mut self, at_ms: i64, bytes: u64) {
        self.rows += 1;
        self.first_ms = self.first_ms.min(at_ms);
        self.last_ms = self.last_ms.max(at_ms);
        self.bytes += bytes;
    }
}

/// How a segment got its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Whoever wrote it closed it.
    Closed = 1,
    /// Whoever wrote it died; the next life mended it.
    Mended = 2,
}

/// What was found of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It has an end.
    Whole(Summary),
    /// It had none, and has one now. So many bytes of a torn tail were cut.
    Mended(Summary, u64),
    /// Not a row was ever written.
    Empty,
    /// It is no segment, or that of a later version: left as it is.
    Foreign,
}

/// The header of a segment.
#[must_use]
pub fn header(created_ms: i64) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&created_ms.to_le_bytes());
    bytes
}

/// Appends the record of a row to `out`; how many bytes, or none if the row is larger than one may be.
pub fn put_row(row: &Row, out: &mut Vec<u8>) -> Option<u64> {
    let payload = codec::row(row)?;
    put(ROW, &payload, out);
    Some((payload.len() + FRAME) as u64)
}

/// The record of an end.
#[must_use]
pub fn end(summary: &Summary, ended: Ended) -> Vec<u8> {
    let mut payload = Vec::with_capacity(END_PAYLOAD);
    payload.extend_from_slice(&summary.rows.to_le_bytes());
    payload.extend_from_slice(&summary.first_ms.to_le_bytes());
    payload.extend_from_slice(&summary.last_ms.to_le_bytes());
    payload.push(ended as u8);
    let mut out = Vec::new();
    put(THE_END, &payload, &mut out);
    out
}

fn put(kind: u8, payload: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    // Rows are bounded, and ends are short.
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.push(kind);
    out.extend_from_slice(payload);
    let check = xxhash_rust::xxh3::xxh3_64(&out[start..]);
    out.extend_from_slice(&check.to_le_bytes());
}

/// The first record in `bytes`: its kind, its payload and its whole length.
fn take(bytes: &[u8]) -> Option<(u8, &[u8], usize)> {
    let length = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let whole = length.checked_add(FRAME).filter(|_| length <= codec::ROW_MOST)?;
    let (record, check) = bytes.get(..whole)?.split_at(whole - 8);
    let sound = xxhash_rust::xxh3::xxh3_64(record).to_le_bytes() == check;
    sound.then(|| (record[4], &record[5..], whole))
}

/// Looks at a segment, and mends it if it has no end.
///
/// # Errors
/// The file cannot be read or written.
pub fn look(path: &Path) -> io::Result<Found> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let length = file.metadata()?.len();
    let head = read_at(&file, 0, HEADER.min(length))?;
    if length < HEADER {
        // Its header was not written whole, so nothing after it was.
        return Ok(if header(0).starts_with(head.get(..8).unwrap_or(&head)) {
            Found::Empty
        } else {
            Found::Foreign
        });
    }
    if head[0] != VERSION || head[1..8] != MAGIC[..] {
        return Ok(Found::Foreign);
    }
    let created_ms = i64::from_le_bytes(head[8..].try_into().map_err(io::Error::other)?);
    if let Some(summary) = ended(&file, length, created_ms)? {
        return Ok(Found::Whole(summary));
    }
    let summary = scan(&file, length, created_ms)?;
    file.set_len(summary.bytes)?;
    if summary.rows == 0 {
        return Ok(Found::Empty);
    }
    file.write_all_at(&end(&summary, Ended::Mended), summary.bytes)?;
    file.sync_all()?;
    Ok(Found::Mended(summary, length - summary.bytes))
}

/// The sum of a segment that has an end.
fn ended(file: &File, length: u64, created_ms: i64) -> io::Result<Option<Summary>> {
    let Some(bytes) = length.checked_sub(END).filter(|at| *at >= HEADER) else { return Ok(None) };
    let tail = read_at(file, bytes, END)?;
    let Some((THE_END, payload, _)) = take(&tail).filter(|(_, payload, _)| payload.len() == END_PAYLOAD)
    else {
        return Ok(None);
    };
    let number =
        |at: usize| -> io::Result<[u8; 8]> { payload[at..at + 8].try_into().map_err(io::Error::other) };
    Ok(Some(Summary {
        created_ms,
        rows: u64::from_le_bytes(number(0)?),
        first_ms: i64::from_le_bytes(number(8)?),
        last_ms: i64::from_le_bytes(number(16)?),
        bytes,
    }))
}

/// Reads all good records from the first on.
fn scan(file: &File, length: u64, created_ms: i64) -> io::Result<Summary> {
    let mut summary = Summary::begun(created_ms);
    while summary.bytes < length {
        let window = read_at(file, summary.bytes, WINDOW.min(length - summary.bytes))?;
        let mut at = 0;
        while let Some((kind, payload, whole)) = take(&window[at..]) {
            // An end in the middle is none of ours.
            if kind != ROW {
                return Ok(summary);
            }
            let Ok(row) = codec::read_row(payload) else { return Ok(summary) };
            summary.add(row.at_ms, whole as u64);
            at += whole;
        }
        if at == 0 {
            return Ok(summary);
        }
    }
    Ok(summary)
}

/// Some rows of a segment, and where the next ones lie.
pub struct Rows {
    /// Each with the bytes of its record.
    pub rows: Vec<(Row, u64)>,
    /// Where to go on.
    pub next: u64,
    /// Rows that this version cannot read, though they are whole.
    pub unreadable: u64,
}

/// Reads the rows from `from` on, which lies at a record, up to `until` at most: about a mebibyte of them.
///
/// # Errors
/// The file cannot be read, or there is no good record where one must be.
pub fn read(path: &Path, from: u64, until: u64) -> io::Result<Rows> {
    let file = File::open(path)?;
    let window = read_at(&file, from, WINDOW.min(until.saturating_sub(from)))?;
    let mut read = Rows { rows: Vec::new(), next: from, unreadable: 0 };
    let mut at = 0;
    while let Some((kind, payload, whole)) = take(&window[at..]) {
        at += whole;
        read.next += whole as u64;
        match codec::read_row(payload) {
            Ok(row) if kind == ROW => read.rows.push((row, whole as u64)),
            _ => read.unreadable += 1,
        }
    }
    if at == 0 && !window.is_empty() {
        let broken = format!("no sound record at byte {from} of {}", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, broken));
    }
    Ok(read)
}

fn read_at(file: &File, at: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row;
    use super::*;

    fn segment(rows: i64, ended: Option<Ended>) -> (Vec<u8>, Summary) {
        let mut bytes = header(1_000);
        let mut summary = Summary::begun(1_000);
        for number in 0..rows {
            let row = row(50 - number, "northwind");
            let length = put_row(&row, &mut bytes).unwrap();
            summary.add(row.at_ms, length);
        }
        if let Some(ended) = ended {
            bytes.extend(end(&summary, ended));
        }
        (bytes, summary)
    }

    #[test]
    fn a_segment_with_an_end_is_read_and_never_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1");
        let (bytes, summary) = segment(3, Some(Ended::Closed));
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!((summary.first_ms, summary.last_ms, summary.rows), (48, 50, 3));
        assert_eq!(look(&path).unwrap(), Found::Whole(summary));
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        let read = read(&path, HEADER, summary.bytes).unwrap();
        assert_eq!(read.rows.iter().map(|(row, _)| row.at_ms).collect::<Vec<_>>(), [50, 49, 48]);
        assert_eq!((read.next, read.unreadable), (summary.bytes, 0));
    }

    #[test]
    fn wherever_it_is_torn_it_is_cut_at_the_last_good_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1");
        let (bytes, whole) = segment(3, Some(Ended::Closed));
        let record = (whole.bytes - HEADER) / 3;
        for length in 0..bytes.len() {
            std::fs::write(&path, &bytes[..length]).unwrap();
            let rows = (length as u64).saturating_sub(HEADER) / record;
            match look(&path).unwrap() {
                Found::Empty => assert_eq!(rows, 0, "torn at {length}"),
                Found::Mended(summary, cut) => {
                    assert_eq!(summary.rows, rows.min(3), "torn at {length}");
                    assert_eq!(cut, length as u64 - summary.bytes);
                    assert_eq!(look(&path).unwrap(), Found::Whole(summary), "mended once");
                }
                other => panic!("torn at {length}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_flipped_bit_ends_what_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1");
        let (bytes, whole) = segment(3, None);
        let record = (whole.bytes - HEADER) / 3;
        for at in HEADER..whole.bytes {
            let mut flipped = bytes.clone();
            flipped[at as usize] ^= 0x10;
            std::fs::write(&path, &flipped).unwrap();
            let rows = (at - HEADER) / record;
            match look(&path).unwrap() {
                Found::Empty => assert_eq!(rows, 0, "flipped at {at}"),
                Found::Mended(summary, _) => assert_eq!(summary.rows, rows, "flipped at {at}"),
                other => panic!("flipped at {at}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_is_no_segment_of_ours_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1");
        let (mut later, _) = segment(1, Some(Ended::Closed));
        later[0] = 2;
        for bytes in [&later[..], b"notes", b"a text that is longer than a header"] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(look(&path).unwrap(), Found::Foreign);
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
        }
    }
}
