//! Where a chunked body ends (RFC 9112 §7.1), in bytes that pass through.
//!
//! Stricter than the grammar: a size is at most sixteen digits, all extensions of a body fit in a kilobyte, lines end in CRLF, and
//! a body has no trailer fields, which nobody would read.

/// The most bytes of chunk extensions in one body.
const MOST_EXTENSIONS: usize = 1024;

/// What is wrong with a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadChunk(pub &'static str);

/// A chunked body, as far as it has come.
#[derive(Clone, Copy, Debug)]
pub struct Chunks {
    expected: Expected,
    size: u64,
    extensions: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// A digit of a size; this many have come.
    Digit(u8),
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    EndCr,
    EndLf,
}

impl Chunks {
    /// A body of which nothing has come.
    #[must_use]
    pub const fn new() -> Self {
        Self { expected: Expected::Digit(0), size: 0, extensions: 0 }
    }

    /// Takes what has come: how many of these bytes are the body's, if it ends among them.
    ///
    /// # Errors
    /// It is not of the strict form.
    pub fn pass(&mut self, bytes: &[u8]) -> Result<Option<usize>, BadChunk> {
        let mut at = 0;
        while at < bytes.len() {
            if self.expected == Expected::Data {
                let there = u64::try_from(bytes.len() - at).unwrap_or(u64::MAX).min(self.size);
                self.size -= there;
                at += usize::try_from(there).unwrap_or(usize::MAX);
                if self.size == 0 {
                    self.expected = Expected::DataCr;
                }
                continue;
            }
            let byte = bytes[at];
            at += 1;
            self.expected = match (self.expected, byte) {
                (Expected::Digit(seen), _) if byte.is_ascii_hexdigit() => {
                    if seen == 16 {
                        return Err(BadChunk("a chunk's size has too many digits"));
                    }
                    let digit = char::from(byte).to_digit(16).unwrap_or(0);
                    self.size = self.size << 4 | u64::from(digit);
                    Expected::Digit(seen + 1)
                }
                (Expected::Digit(1..), b'\r') => Expected::SizeLf,
                (Expected::Digit(1..), b';') => Expected::Extension,
                (Expected::Extension, b'\r') => Expected::SizeLf,
                (Expected::Extension, b'\t' | b' '..=b'~') => {
                    self.extensions += 1;
                    if self.extensions > MOST_EXTENSIONS {
                        return Err(BadChunk("chunk extensions are too long"));
                    }
                    Expected::Extension
                }
                (Expected::SizeLf, b'\n') if self.size == 0 => Expected::EndCr,
                (Expected::SizeLf, b'\n') => Expected::Data,
                (Expected::DataCr, b'\r') => Expected::DataLf,
                (Expected::DataLf, b'\n') => Expected::Digit(0),
                (Expected::EndCr, b'\r') => Expected::EndLf,
                (Expected::EndLf, b'\n') => return Ok(Some(at)),
                (Expected::EndCr, _) => return Err(BadChunk("a chunked body has trailers")),
                _ => return Err(BadChunk("a chunk is malformed")),
            };
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_found_however_the_body_is_cut() {
        let body = b"5\r\nhello\r\nA;x=1\r\n0123456789\r\n0\r\n\r\nGET /";
        let end = body.len() - 5;
        for cut in 0..end {
            let mut chunks = Chunks::new();
            assert_eq!(chunks.pass(&body[..cut]), Ok(None), "cut at {cut}");
            assert_eq!(chunks.pass(&body[cut..]), Ok(Some(end - cut)), "cut at {cut}");
        }
    }

    #[test]
    fn what_is_not_strict_is_refused() {
        for body in [
            "0x5\r\nhello\r\n",
            "-5\r\n",
            "\r\n",
            ";x\r\n",
            " 5\r\n",
            "5 \r\n",
            "5\nhello\r\n",
            "5\r\nhello\n0\r\n\r\n",
            "5\r\nhello!\r\n",
            "5;a\nb\r\n",
            "10000000000000000\r\n",
            "0\r\nX: trailer\r\n\r\n",
        ] {
            assert!(Chunks::new().pass(body.as_bytes()).is_err(), "{body:?}");
        }
        let bomb = format!("1;{}\r\n", "a".repeat(20_000));
        assert_eq!(Chunks::new().pass(bomb.as_bytes()), Err(BadChunk("chunk extensions are too long")));
        let many = "1;aaaaaaaa\r\nx\r\n".repeat(1_000);
        assert!(Chunks::new().pass(many.as_bytes()).is_err());
    }
}
