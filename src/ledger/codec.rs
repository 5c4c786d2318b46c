//! The bytes of rows on disk, and of what nodes ask each other about them.
//!
//! Laws: those of `crate::codec`; other bytes are [`Unreadable`].

use super::exchange::{Answer, Question};
use super::row::Row;
use crate::codec;

/// The version of everything below. A later one reads the rows of this one, or says that it does not.
const VERSION: u8 = 1;

/// The most bytes of a row: its longest names fit ten times.
pub const ROW_MOST: usize = 64 * 1024;
/// The most bytes of a question.
const QUESTION_MOST: usize = 4 * 1024;
/// The most bytes of an answer: several times what a page is cut at.
const ANSWER_MOST: usize = 8 * 1024 * 1024;

/// Bytes that this version did not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("written by another version of this program, or broken")]
pub struct Unreadable;

macro_rules! messages {
    ($($encode:ident, $decode:ident: $type:ty, $most:ident, $what:literal;)*) => {$(
        #[doc = concat!("The bytes of ", $what, ", or none if they are too many.")]
        #[must_use]
        pub fn $encode(value: &$type) -> Option<Vec<u8>> {
            codec::encode::<$most, _>(VERSION, value)
        }

        #[doc = concat!("Reads ", $what, ".")]
        ///
        /// # Errors
        /// [`Unreadable`]
        pub fn $decode(bytes: &[u8]) -> Result<$type, Unreadable> {
            codec::decode::<$most, _>(VERSION, bytes).ok_or(Unreadable)
        }
    )*};
}

messages! {
    row, read_row: Row, ROW_MOST, "a row";
    question, read_question: Question, QUESTION_MOST, "a question";
    answer, read_answer: Answer, ANSWER_MOST, "an answer";
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row as some_row;
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written_and_never_by_halves() {
        let written = some_row(5, "northwind");
        let bytes = row(&written).unwrap();
        assert_eq!((bytes[0], read_row(&bytes)), (VERSION, Ok(written.clone())));
        for end in 0..bytes.len() {
            assert_eq!(read_row(&bytes[..end]), Err(Unreadable));
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(read_row(&longer), Err(Unreadable));
        let mut later = bytes;
        later[0] += 1;
        assert_eq!(read_row(&later), Err(Unreadable));
        let endless = Row { model_asked: "x".repeat(ROW_MOST).into(), ..written };
        assert_eq!(row(&endless), None);
    }

    /// Whoever changes these bytes changes what lies on disks: then the version counts up, and this version's are still read.
    #[test]
    fn the_bytes_of_a_row_are_pinned() {
        insta::assert_snapshot!(hex::encode(row(&some_row(5, "northwind")).unwrap()));
    }
}
