//! Undoing a `Content-Encoding` that a provider applied although it was asked for identity (RFC 9110 §8.4.1).
//!
//! A push decoder: bytes in, bytes out, as they come, so that a compressed stream is still relayed at once. What comes out is
//! bounded, in all and at once, whatever the ratio of a hostile body.

use std::io::Write;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

/// What a body may decode to.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// All of it, in bytes.
    pub total: usize,
    /// What one piece of it may become, in bytes: so much is in memory at once.
    pub at_once: usize,
}

impl Bounds {
    /// A body that is read whole, where this much is held.
    #[must_use]
    pub const fn whole(total: usize) -> Self {
        Self { total, at_once: total }
    }

    /// A stream, of which a piece is held at a time. A piece is 16 KiB or so as it comes; no text becomes a hundred times as long.
    pub const STREAM: Self = Self { total: 256 * 1024 * 1024, at_once: 2 * 1024 * 1024 };
}

/// Why a body cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecodable {
    /// An encoding that is not known, or several.
    Unknown,
    /// Bytes that are not of the encoding.
    Corrupt,
    /// It decodes to more than is allowed.
    TooLarge,
}

/// A decoder for one body.
pub enum Decoder {
    /// The bytes as they are.
    Identity,
    /// `gzip`.
    Gzip(Box<flate2::write::MultiGzDecoder<Sink>>),
    /// `deflate`: the zlib format.
    Deflate(Box<flate2::write::ZlibDecoder<Sink>>),
    /// `br`.
    Brotli(Box<brotli::DecompressorWriter<Sink>>),
}

/// Where decoded bytes wait to be taken.
pub struct Sink {
    bytes: Vec<u8>,
    total: usize,
    bounds: Bounds,
}

impl Sink {
    const fn new(bounds: Bounds) -> Self {
        Self { bytes: Vec::new(), total: 0, bounds }
    }

    const fn is_over(&self) -> bool {
        self.total > self.bounds.total || self.bytes.len() > self.bounds.at_once
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.total = self.total.saturating_add(bytes.len());
        self.bytes.extend_from_slice(bytes);
        if self.is_over() {
            return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "decodes to too much"));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Decoder {
    /// The decoder for a body with these headers.
    ///
    /// # Errors
    /// An encoding that cannot be undone.
    pub fn of(headers: &HeaderMap, bounds: Bounds) -> Result<Self, Undecodable> {
        let sink = Sink::new(bounds);
        let mut values = headers.get_all(CONTENT_ENCODING).iter();
        let Some(value) = values.next() else { return Ok(Self::Identity) };
        if values.next().is_some() {
            return Err(Undecodable::Unknown);
        }
        let name = value.to_str().unwrap_or("").trim().to_ascii_lowercase();
        match name.as_str() {
            "identity" | "" => Ok(Self::Identity),
            "gzip" | "x-gzip" => Ok(Self::Gzip(Box::new(flate2::write::MultiGzDecoder::new(sink)))),
            "deflate" => Ok(Self::Deflate(Box::new(flate2::write::ZlibDecoder::new(sink)))),
            "br" => Ok(Self::Brotli(Box::new(brotli::DecompressorWriter::new(sink, 8 * 1024)))),
            _ => Err(Undecodable::Unknown),
        }
    }

    /// Whether bytes pass as they are.
    #[must_use]
    pub const fn is_identity(&self) -> bool {
        matches!(self, Self::Identity)
    }

    /// The body is over: what is left of it.
    ///
    /// # Errors
    /// It ended too early, or its check value is wrong.
    pub fn finish(&mut self) -> Result<Bytes, Undecodable> {
        let (ended, sink) = match self {
            Self::Identity => return Ok(Bytes::new()),
            Self::Gzip(decoder) => (decoder.try_finish(), decoder.get_mut()),
            Self::Deflate(decoder) => (decoder.try_finish(), decoder.get_mut()),
            Self::Brotli(decoder) => (decoder.close(), decoder.get_mut()),
        };
        let rest = Bytes::from(std::mem::take(&mut sink.bytes));
        ended.map(|()| rest).map_err(|_| Undecodable::Corrupt)
    }

    /// What `chunk` decodes to, as far as it can be told yet.
    ///
    /// # Errors
    /// Corrupt or too large.
    pub fn feed(&mut self, chunk: Bytes) -> Result<Bytes, Undecodable> {
        match self {
            Self::Identity => Ok(chunk),
            Self::Gzip(decoder) => push(decoder.as_mut(), &chunk, |decoder| decoder.get_mut()),
            Self::Deflate(decoder) => push(decoder.as_mut(), &chunk, |decoder| decoder.get_mut()),
            Self::Brotli(decoder) => push(decoder.as_mut(), &chunk, |decoder| decoder.get_mut()),
        }
    }
}

fn push<D: Write>(
    decoder: &mut D,
    chunk: &[u8],
    sink: impl Fn(&mut D) -> &mut Sink,
) -> Result<Bytes, Undecodable> {
    let result = decoder.write_all(chunk).and_then(|()| decoder.flush());
    let sink = sink(decoder);
    let over = sink.is_over();
    let bytes = Bytes::from(std::mem::take(&mut sink.bytes));
    match result {
        Ok(()) => Ok(bytes),
        Err(_) if over => Err(Undecodable::TooLarge),
        Err(_) => Err(Undecodable::Corrupt),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const TEXT: &[u8] = b"data: {\"choices\":[{\"delta\":{\"content\":\"hello hello hello\"}}]}\n\n";

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn deflate(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn brotli(bytes: &[u8]) -> Vec<u8> {
        let mut encoded = Vec::new();
        let mut encoder = brotli::CompressorWriter::new(&mut encoded, 4096, 5, 20);
        encoder.write_all(bytes).unwrap();
        drop(encoder);
        encoded
    }

    fn decoder(encoding: &'static str) -> Decoder {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
        Decoder::of(&headers, Bounds::STREAM).unwrap()
    }

    #[test]
    fn each_encoding_is_undone_however_it_is_cut() {
        for (name, encoded) in [("gzip", gzip(TEXT)), ("deflate", deflate(TEXT)), ("br", brotli(TEXT))] {
            for cut in 0..encoded.len() {
                let mut decoder = decoder(name);
                let mut out = decoder.feed(Bytes::copy_from_slice(&encoded[..cut])).unwrap().to_vec();
                out.extend_from_slice(&decoder.feed(Bytes::copy_from_slice(&encoded[cut..])).unwrap());
                out.extend_from_slice(&decoder.finish().unwrap());
                assert_eq!(out, TEXT, "{name} cut at {cut}");
            }
        }
    }

    #[test]
    fn a_body_that_ends_too_early_is_not_taken_for_a_whole_one() {
        for (name, encoded) in [("gzip", gzip(TEXT)), ("deflate", deflate(TEXT)), ("br", brotli(TEXT))] {
            let mut decoder = decoder(name);
            let fed = decoder.feed(Bytes::copy_from_slice(&encoded[..encoded.len() - 1]));
            assert!(fed.is_err() || decoder.finish().is_err(), "{name}");
        }
    }

    #[test]
    fn what_is_not_of_the_encoding_is_said() {
        assert_eq!(decoder("gzip").feed(Bytes::from_static(b"not gzip at all")), Err(Undecodable::Corrupt));
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("zstd"));
        assert_eq!(Decoder::of(&headers, Bounds::STREAM).err(), Some(Undecodable::Unknown));
    }

    #[test]
    fn a_bomb_is_stopped_at_the_bound() {
        const MOST: usize = 1024 * 1024;
        let zeros = vec![0; MOST + 1];
        for (name, bomb) in [("gzip", gzip(&zeros)), ("deflate", deflate(&zeros)), ("br", brotli(&zeros))] {
            assert!(bomb.len() < MOST / 100, "{name}");
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(name));
            for bounds in [Bounds::whole(MOST), Bounds { total: 10 * MOST, at_once: MOST }] {
                let mut decoder = Decoder::of(&headers, bounds).unwrap();
                assert_eq!(decoder.feed(Bytes::from(bomb.clone())), Err(Undecodable::TooLarge), "{name}");
            }
            if name == "br" {
                // All of it in a hundred bytes.
                continue;
            }
            // In small pieces a stream may become long, piece by piece.
            let mut decoder = Decoder::of(&headers, Bounds { total: 10 * MOST, at_once: MOST }).unwrap();
            let pieces =
                bomb.chunks(64).map(|piece| decoder.feed(Bytes::copy_from_slice(piece)).unwrap().len());
            assert_eq!(pieces.sum::<usize>() + decoder.finish().unwrap().len(), MOST + 1, "{name}");
        }
    }
}
