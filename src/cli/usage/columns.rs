//! Rows as a Parquet file: a column for each member, texts and numbers, and the time as one.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use serde_json::Value;

use crate::ledger::row::COLUMNS;

/// Rows that are held until they are written together: some 30 MiB.
const GROUP: usize = 50_000;

/// Columns that are whole numbers.
const NUMBERS: [&str; 11] = [
    "milliseconds",
    "uncached_tokens",
    "cached_tokens",
    "cache_written_tokens",
    "output_tokens",
    "estimate",
    "settled",
    "cost_micro_dollars",
    "policy_version",
    "attempts",
    "status",
];

/// The column that is an instant.
const TIME: &str = "at";

/// A file in the making.
pub(super) struct Parquet<W: Write + Send> {
    file: SerializedFileWriter<W>,
    waiting: Vec<Value>,
}

impl<W: Write + Send> Parquet<W> {
    /// Begins a file.
    pub(super) fn begin(out: W) -> io::Result<Self> {
        let columns = COLUMNS.map(|column| match column {
            TIME => format!("optional int64 {column} (TIMESTAMP(MILLIS,true));"),
            column if NUMBERS.contains(&column) => format!("optional int64 {column};"),
            column => format!("optional binary {column} (UTF8);"),
        });
        let schema =
            parse_message_type(&format!("message usage {{ {} }}", columns.concat())).map_err(told)?;
        let properties = Arc::new(WriterProperties::builder().build());
        let file = SerializedFileWriter::new(out, Arc::new(schema), properties).map_err(told)?;
        Ok(Self { file, waiting: Vec::new() })
    }

    /// Adds a row.
    pub(super) fn row(&mut self, row: Value) -> io::Result<()> {
        self.waiting.push(row);
        if self.waiting.len() < GROUP { Ok(()) } else { self.group() }
    }

    /// Writes what waits, and the end of the file, without which it cannot be read.
    pub(super) fn finish(mut self) -> io::Result<()> {
        if !self.waiting.is_empty() {
            self.group()?;
        }
        self.file.close().map(drop).map_err(told)
    }

    fn group(&mut self) -> io::Result<()> {
        let rows = std::mem::take(&mut self.waiting);
        let mut group = self.file.next_row_group().map_err(told)?;
        for column in COLUMNS {
            let values = rows.iter().map(|row| &row[column]);
            match column {
                TIME => write::<Int64Type, W>(&mut group, values.map(millis)),
                column if NUMBERS.contains(&column) => write::<Int64Type, W>(&mut group, values.map(number)),
                _ => write::<ByteArrayType, W>(
                    &mut group,
                    values.map(|value| value.as_str().map(ByteArray::from)),
                ),
            }
            .map_err(told)?;
        }
        group.close().map(drop).map_err(told)
    }
}

/// Writes the next column. What is none is null.
fn write<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: impl Iterator<Item = Option<T::T>>,
) -> Result<(), ParquetError> {
    let (mut there, mut levels) = (Vec::new(), Vec::new());
    for value in values {
        levels.push(i16::from(value.is_some()));
        there.extend(value);
    }
    let Some(mut column): Option<SerializedColumnWriter<'_>> = group.next_column()? else {
        return Err(ParquetError::General("the schema has fewer columns".to_owned()));
    };
    column.typed::<T>().write_batch(&there, Some(&levels), None)?;
    column.close()
}

fn number(value: &Value) -> Option<i64> {
    value.as_u64().map(|number| i64::try_from(number).unwrap_or(i64::MAX))
}

fn millis(value: &Value) -> Option<i64> {
    Some(value.as_str()?.parse::<jiff::Timestamp>().ok()?.as_millisecond())
}

fn told(error: ParquetError) -> io::Error {
    io::Error::other(error)
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_written_is_read_column_by_column() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("usage.parquet");
        let mut writer = Parquet::begin(std::fs::File::create(&path).unwrap()).unwrap();
        for number in 0..3 {
            let mut row = json!({});
            for column in COLUMNS {
                row[column] = if NUMBERS.contains(&column) {
                    json!(number)
                } else {
                    json!(format!("{column} {number}"))
                };
            }
            row[TIME] = json!("2026-11-30T00:00:00.5Z");
            row["project"] = Value::Null;
            writer.row(row).unwrap();
        }
        writer.finish().unwrap();
        let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
        let rows: Vec<Vec<(String, String)>> = reader
            .get_row_iter(None)
            .unwrap()
            .map(|row| {
                let row = row.unwrap();
                row.get_column_iter().map(|(name, field)| (name.clone(), field.to_string())).collect()
            })
            .collect();
        assert_eq!(rows.len(), 3);
        let of = |row: usize, column: &str| {
            rows[row]
                .iter()
                .find(|(name, _)| name == column)
                .map(|(_, value)| value.as_str())
                .unwrap_or_default()
        };
        assert_eq!((of(2, "settled"), of(2, "tenant"), of(0, "project")), ("2", "\"tenant 2\"", "null"));
        assert!(of(1, TIME).starts_with("2026-11-30 00:00:00"), "{}", of(1, TIME));
        assert_eq!(rows[0].iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), COLUMNS);
    }

    #[test]
    fn every_column_of_numbers_is_a_column() {
        assert!(NUMBERS.iter().chain([&TIME]).all(|column| COLUMNS.contains(column)));
    }
}
