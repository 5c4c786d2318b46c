//! What is asked of a ledger, by this node or by another: some of its rows, or their sums, a page at a time.
//!
//! Law: an answer reads and holds a bounded number of bytes; whoever wants all goes on at `next`.

use std::io;

use serde::{Deserialize, Serialize};

use super::rollup::{By, Rollup};
use super::row::Row;
use super::segment::{self, HEADER};
use super::store::Catalog;
use crate::limit::Name;

/// Bytes of rows in one answer.
const PAGE: u64 = 512 * 1024;
/// Bytes that are read for one answer: some hundred milliseconds of them.
const SCAN: u64 = 16 * 1024 * 1024;

/// Which rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Decided then or later, in milliseconds since 1970.
    pub from_ms: i64,
    /// Decided before then.
    pub to_ms: i64,
    /// Of this tenant.
    pub tenant: Option<Name>,
}

impl Filter {
    fn takes(&self, row: &Row) -> bool {
        (self.from_ms..self.to_ms).contains(&row.at_ms)
            && self.tenant.as_ref().is_none_or(|tenant| *tenant == row.tenant)
    }
}

/// A place between two rows of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The segment.
    pub segment: u64,
    /// The byte in it; 0 for its first row.
    pub offset: u64,
}

/// What is wanted of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Want {
    /// The rows themselves.
    Rows,
    /// Their sums.
    Sums(By),
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Which rows.
    pub filter: Filter,
    /// What of them.
    pub want: Want,
    /// Where to begin.
    pub cursor: Cursor,
}

/// A page of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Rows, in the order in which they ended.
    pub rows: Vec<Row>,
    /// Sums.
    pub sums: Rollup,
    /// Where to go on; none at the end.
    pub next: Option<Cursor>,
    /// Rows of another version, and segments that could not be read to their end.
    pub unreadable: u64,
}

/// Answers from what is written.
#[must_use]
pub fn answer(catalog: &Catalog, question: &Question) -> Answer {
    let mut answer = Answer::default();
    let (mut read, mut taken) = (0, 0);
    let mut at = question.cursor;
    while let Some((number, path, summary)) = catalog.from(at.segment) {
        let begin = if number == at.segment { at.offset.max(HEADER) } else { HEADER };
        at = Cursor { segment: number, offset: begin };
        let concerns = summary.last_ms >= question.filter.from_ms && summary.first_ms < question.filter.to_ms;
        while concerns && at.offset < summary.bytes {
            if read >= SCAN || taken >= PAGE {
                answer.next = Some(at);
                return answer;
            }
            let rows = match segment::read(&path, at.offset, summary.bytes) {
                Ok(rows) => rows,
                // It has just become too old.
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => {
                    tracing::error!(file = %path.display(), %error, "usage rows cannot be read");
                    answer.unreadable += 1;
                    break;
                }
            };
            answer.unreadable += rows.unreadable;
            read += rows.next - at.offset;
            at.offset = rows.next;
            for (row, bytes) in rows.rows.into_iter().filter(|(row, _)| question.filter.takes(row)) {
                match question.want {
                    Want::Rows => {
                        taken += bytes;
                        answer.rows.push(row);
                    }
                    Want::Sums(by) => answer.sums.count(by, &row),
                }
            }
        }
        at = Cursor { segment: number.saturating_add(1), offset: 0 };
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row;
    use super::super::store::{Batch, Keep, Store};
    use super::*;

    fn store(folder: &std::path::Path, rows: i64) -> Store {
        let keep = Keep { segment_bytes: 64 * 1024, ..Keep::default() };
        let mut store = Store::open(folder, keep, 0).unwrap();
        for number in 0..rows {
            let mut batch = Batch::default();
            let tenant = if number % 2 == 0 { "even" } else { "odd" };
            let bytes = segment::put_row(&row(number, tenant), &mut batch.bytes).unwrap();
            batch.rows.push((number, bytes));
            store.append(&batch, 0).unwrap();
        }
        store
    }

    fn all(store: &Store, filter: &Filter, want: Want) -> (Answer, usize) {
        let (mut whole, mut pages, mut cursor) = (Answer::default(), 0, Some(Cursor::default()));
        while let Some(at) = cursor {
            let page = answer(store.catalog(), &Question { filter: filter.clone(), want, cursor: at });
            assert!(page.rows.len() < 20_000, "a page is bounded");
            whole.rows.extend(page.rows);
            whole.sums.add(page.sums);
            (cursor, pages) = (page.next, pages + 1);
        }
        (whole, pages)
    }

    #[test]
    fn page_by_page_every_row_comes_once() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path(), 12_000);
        let everything = Filter { from_ms: i64::MIN, to_ms: i64::MAX, tenant: None };
        let (whole, pages) = all(&store, &everything, Want::Rows);
        let times: Vec<i64> = whole.rows.iter().map(|row| row.at_ms).collect();
        assert_eq!(times, (0..12_000).collect::<Vec<_>>());
        assert!(pages > 2, "{pages}");
        let some = Filter { from_ms: 500, to_ms: 600, tenant: Some("odd".into()) };
        let (some, _) = all(&store, &some, Want::Rows);
        assert_eq!(some.rows.len(), 50);
        let (sums, _) = all(&store, &everything, Want::Sums(By::Tenant));
        assert_eq!((sums.sums.0["even"].requests, sums.sums.0["odd"].settled), (6_000, 120_000));
        assert!(sums.rows.is_empty());
    }

    #[test]
    fn a_segment_that_went_meanwhile_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path(), 1_000);
        let (_, path, first) = store.catalog().from(0).unwrap();
        std::fs::remove_file(path).unwrap();
        let everything = Filter { from_ms: i64::MIN, to_ms: i64::MAX, tenant: None };
        let (rest, _) = all(&store, &everything, Want::Rows);
        assert_eq!((rest.rows.len() as u64, rest.unreadable), (1_000 - first.rows, 0));
    }
}
