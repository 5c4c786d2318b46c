//! Where the elements of a streamed JSON array begin and end: how Gemini streams unless asked for events.
//!
//! Laws: those of [`sse`](super::sse): each byte is looked at once, an element that lies in one chunk is read in place,
//! and at most [`MAX_EVENT`] bytes of one that does not are kept. Never checks that an element is JSON: who reads it does.

use super::sse::MAX_EVENT;

/// Splits a stream into the elements of its one array.
#[derive(Debug, Default)]
pub(super) struct ArraySplitter {
    /// The bytes of the element under way, from earlier chunks.
    pending: Vec<u8>,
    /// How many braces and brackets are open within the array.
    depth: u32,
    oversized: bool,
    in_string: bool,
    after_backslash: bool,
    /// Whether the array has begun, and whether it has ended.
    opened: bool,
    closed: bool,
    /// Whether anything came that has no place in an array of objects.
    odd: bool,
    any_element: bool,
}

impl ArraySplitter {
    /// Reads `chunk` and calls `each` with every element that it completes; `None` stands for one too large to be kept.
    pub fn feed(&mut self, chunk: &[u8], mut each: impl FnMut(Option<&[u8]>)) {
        let mut start = 0;
        for (at, &byte) in chunk.iter().enumerate() {
            if self.in_string {
                if std::mem::take(&mut self.after_backslash) {
                    continue;
                }
                match byte {
                    b'\\' => self.after_backslash = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' if self.depth > 0 => self.in_string = true,
                b'[' if !self.opened => self.opened = true,
                b'{' | b'[' => {
                    if self.depth == 0 {
                        self.odd |= !self.opened || self.closed || byte == b'[';
                        start = at;
                    }
                    self.depth = self.depth.saturating_add(1);
                }
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        self.complete(&chunk[start..=at], &mut each);
                        start = at + 1;
                    }
                }
                b']' => self.closed = true,
                b',' | b' ' | b'\t' | b'\r' | b'\n' => {}
                _ if self.depth == 0 => self.odd = true,
                _ => {}
            }
        }
        if self.depth > 0 {
            self.keep(&chunk[start..]);
        }
    }

    /// Whether an error can be put in as an element of its own.
    pub const fn between_elements(&self) -> bool {
        self.depth == 0 && !self.closed
    }

    /// Whether the array has ended.
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether something came that cannot be read as an array of objects.
    pub const fn is_odd(&self) -> bool {
        self.odd
    }

    /// What has to come before another element.
    pub const fn separator(&self) -> &'static str {
        match (self.opened, self.any_element) {
            (false, _) => "[",
            (true, false) => "",
            (true, true) => ",\n",
        }
    }

    /// Bytes of memory that the element under way takes.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        self.pending.capacity()
    }

    fn complete(&mut self, last: &[u8], each: &mut impl FnMut(Option<&[u8]>)) {
        self.any_element = true;
        if self.pending.is_empty() && !self.oversized {
            return each(Some(last).filter(|element| element.len() <= MAX_EVENT));
        }
        self.keep(last);
        each(Some(self.pending.as_slice()).filter(|_| !self.oversized));
        self.pending = Vec::new();
        self.oversized = false;
    }

    fn keep(&mut self, part: &[u8]) {
        if self.pending.len() + part.len() > MAX_EVENT {
            self.oversized = true;
            self.pending = Vec::new();
        } else if !self.oversized {
            self.pending.extend_from_slice(part);
        }
    }
}
