//! The one form of an HTTP/1 request head that is let through (RFC 9112 §2–§6, with every leniency it permits left out).
//!
//! Lines end in CRLF; nothing is folded; a name is a token and its colon follows at once; HTTP/1.1 has one Host, which an absolute
//! target repeats; the body's length is said once: by one Content-Length of digits, or by `Transfer-Encoding: chunked` and nothing
//! else. Libraries before and behind us differ on the rest, and where two differ a second request can hide.
//!
//! Pure: bytes in, a verdict out. Never here: a repaired head.

use memchr::memchr;

/// Bounds of a head.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// All of it, in bytes.
    pub head: usize,
    /// Its header lines.
    pub headers: usize,
    /// Its request target, in bytes.
    pub target: usize,
}

/// How the body that follows a head is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// By its length; 0 where there is no body.
    Length(u64),
    /// In chunks.
    Chunked,
}

/// Why a head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is malformed or could be read in two ways: 400.
    Malformed(&'static str),
    /// It is longer than the bound: 431.
    TooLong,
    /// It has more lines than the bound: 431.
    TooManyHeaders,
    /// Its target is longer than the bound: 414.
    TargetTooLong,
    /// It speaks another version: 505.
    Version,
    /// It asks for a tunnel: 501.
    Tunnel,
    /// It did not arrive in time: 408.
    Late,
}

/// What was found of a head so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It goes on.
    Unfinished,
    /// It ends before this index.
    Ends(usize),
}

/// Looks for the end of a head in bytes that arrive bit by bit, each byte once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scan {
    looked_at: usize,
    line_start: usize,
    lines: usize,
}

impl Scan {
    /// Whether nothing was looked at yet.
    #[must_use]
    pub const fn is_at_start(&self) -> bool {
        self.looked_at == 0
    }

    /// Looks at what `bytes` has beyond the last call's.
    ///
    /// # Errors
    /// It is over a bound already, or a line of it does not end in CRLF.
    pub fn look(&mut self, bytes: &[u8], bounds: &Bounds) -> Result<Look, Refusal> {
        while let Some(at) = memchr(b'\n', &bytes[self.looked_at..]) {
            let newline = self.looked_at + at;
            if newline == 0 || bytes[newline - 1] != b'\r' {
                return Err(Refusal::Malformed("a line ends in LF without CR"));
            }
            let empty = newline - 1 == self.line_start;
            (self.looked_at, self.line_start) = (newline + 1, newline + 1);
            if empty && self.lines > 0 {
                return if newline < bounds.head {
                    Ok(Look::Ends(newline + 1))
                } else {
                    Err(Refusal::TooLong)
                };
            }
            self.lines += 1;
            if self.lines > bounds.headers + 1 {
                return Err(Refusal::TooManyHeaders);
            }
        }
        self.looked_at = bytes.len();
        // Method, spaces and version take a few bytes more than the target; which bound is told matters little beyond it.
        if self.lines == 0 && bytes.len() > bounds.target + 64 {
            return Err(Refusal::TargetTooLong);
        }
        if bytes.len() >= bounds.head { Err(Refusal::TooLong) } else { Ok(Look::Unfinished) }
    }
}

/// Checks a whole head, its empty line included.
///
/// # Errors
/// It is not of the one form.
pub fn check(head: &[u8], bounds: &Bounds) -> Result<Framing, Refusal> {
    let mut rest = head;
    let request = line(&mut rest)?;
    let mut request = request.split(|byte| *byte == b' ');
    let (method, target, version) = (request.next(), request.next(), request.next());
    let (Some(method), Some(target), Some(version), None) = (method, target, version, request.next()) else {
        return Err(Refusal::Malformed("the request line is not method, target and version"));
    };
    if method.is_empty() || method.len() > 32 || !method.iter().all(|byte| is_token(*byte)) {
        return Err(Refusal::Malformed("the method is not a token"));
    }
    let modern = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            return Err(Refusal::Version);
        }
        _ => return Err(Refusal::Malformed("the version is not HTTP/1.1 or HTTP/1.0")),
    };
    if target.len() > bounds.target {
        return Err(Refusal::TargetTooLong);
    }
    if method == b"CONNECT" {
        return Err(Refusal::Tunnel);
    }
    let authority = check_target(method, target)?;

    let mut fields = Fields { modern, ..Fields::default() };
    loop {
        match line(&mut rest)? {
            [] => break,
            header => fields.take(header)?,
        }
    }
    fields.verdict(authority)
}

/// The lines that decide where a request ends and for whom it is.
#[derive(Default)]
struct Fields<'h> {
    modern: bool,
    host: Option<&'h [u8]>,
    length: Option<u64>,
    chunked: bool,
}

impl<'h> Fields<'h> {
    fn take(&mut self, line: &'h [u8]) -> Result<(), Refusal> {
        let colon = memchr(b':', line).ok_or(Refusal::Malformed("a header line has no colon"))?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
            // Space before the colon, and a line that continues the one before it, are among these.
            return Err(Refusal::Malformed("a header name is not a token"));
        }
        if !value.iter().all(|byte| is_of_a_value(*byte)) {
            return Err(Refusal::Malformed("a header value has a control character"));
        }
        let value = without_spaces(value);
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                once(self.host.replace(value).is_none(), "there are two Host headers")
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                once(self.length.replace(length(value)?).is_none(), "there are two Content-Length headers")
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Refusal::Malformed("the Transfer-Encoding is not chunked alone"));
                }
                once(!std::mem::replace(&mut self.chunked, true), "there are two Transfer-Encoding headers")
            }
            _ => Ok(()),
        }
    }

    fn verdict(self, authority: Option<&[u8]>) -> Result<Framing, Refusal> {
        match (self.host, authority) {
            (None, _) if self.modern => return Err(Refusal::Malformed("there is no Host header")),
            (Some(host), _) if !is_host(host) => {
                return Err(Refusal::Malformed("the Host header is not a host"));
            }
            (Some(host), Some(authority)) if !host.eq_ignore_ascii_case(authority) => {
                return Err(Refusal::Malformed("the target and the Host header name two hosts"));
            }
            _ => {}
        }
        match (self.length, self.chunked) {
            (Some(_), true) => Err(Refusal::Malformed("Content-Length and Transfer-Encoding contradict")),
            (None, true) if !self.modern => Err(Refusal::Malformed("HTTP/1.0 has no Transfer-Encoding")),
            (None, true) => Ok(Framing::Chunked),
            (length, false) => Ok(Framing::Length(length.unwrap_or(0))),
        }
    }
}

fn once(is_first: bool, otherwise: &'static str) -> Result<(), Refusal> {
    if is_first { Ok(()) } else { Err(Refusal::Malformed(otherwise)) }
}

/// Without the spaces around it. Tabs, which may stand there too, stay, and are no part of any value that is looked at: nginx leaves
/// them as well.
fn without_spaces(mut value: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] | [rest @ .., b' '] = value {
        value = rest;
    }
    value
}

/// Takes one line off `rest`, without its CRLF.
fn line<'h>(rest: &mut &'h [u8]) -> Result<&'h [u8], Refusal> {
    let unfinished = Refusal::Malformed("the head does not end");
    let newline = memchr(b'\n', rest).ok_or(unfinished)?;
    let (line, after) = rest.split_at(newline + 1);
    *rest = after;
    line.strip_suffix(b"\r\n").ok_or(Refusal::Malformed("a line ends in LF without CR"))
}

/// Checks the target's form and returns the authority that it names.
fn check_target<'h>(method: &[u8], target: &'h [u8]) -> Result<Option<&'h [u8]>, Refusal> {
    let malformed = Err(Refusal::Malformed("the request target is malformed"));
    if !target.iter().all(|byte| is_of_a_target(*byte)) || !escapes_are_whole(target) {
        return malformed;
    }
    if target.first() == Some(&b'/') || (target == b"*" && method == b"OPTIONS") {
        return Ok(None);
    }
    let Some(rest) = strip_scheme(target) else { return malformed };
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let authority = &rest[..end];
    if is_host(authority) { Ok(Some(authority)) } else { malformed }
}

fn strip_scheme(target: &[u8]) -> Option<&[u8]> {
    [&b"http://"[..], b"https://"].into_iter().find_map(|scheme| {
        let (start, rest) = target.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    })
}

/// A percent sign is followed by two hexadecimal digits, and never by those of NUL.
fn escapes_are_whole(target: &[u8]) -> bool {
    let mut rest = target;
    while let Some(at) = memchr(b'%', rest) {
        match rest.get(at + 1..at + 3) {
            Some(b"00") | None => return false,
            Some(digits) if !digits.iter().all(u8::is_ascii_hexdigit) => return false,
            Some(_) => rest = &rest[at + 3..],
        }
    }
    true
}

/// Digits, and so few that they fit: no sign, no list, no other base.
fn length(value: &[u8]) -> Result<u64, Refusal> {
    let malformed = Refusal::Malformed("the Content-Length is not a number");
    if value.is_empty() || value.len() > 19 || !value.iter().all(u8::is_ascii_digit) {
        return Err(malformed);
    }
    Ok(value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

/// A host and perhaps a port: no user, no path, no list.
fn is_host(bytes: &[u8]) -> bool {
    let fits =
        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'[' | b']');
    !bytes.is_empty() && bytes.len() <= 300 && bytes.iter().all(fits)
}

const fn is_token(byte: u8) -> bool {
    TOKEN[byte as usize]
}

/// The bytes of a token: RFC 9110 §5.6.2.
const TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let marks = b"!#$%&'*+-.^_`|~";
    let mut at = 0;
    while at < 256 {
        table[at] = (at as u8).is_ascii_alphanumeric();
        at += 1;
    }
    at = 0;
    while at < marks.len() {
        table[marks[at] as usize] = true;
        at += 1;
    }
    table
};

/// Tab, visible characters and those above ASCII: RFC 9110 §5.5.
const fn is_of_a_value(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// Visible ASCII but for what RFC 3986 wants escaped and parsers differ on, and for a fragment, which no target has.
const fn is_of_a_target(byte: u8) -> bool {
    byte > b' '
        && byte < 0x7f
        && !matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' | b'#')
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { head: 16 * 1024, headers: 100, target: 8 * 1024 };

    fn verdict(head: &str) -> Result<Framing, Refusal> {
        match Scan::default().look(head.as_bytes(), &BOUNDS)? {
            Look::Ends(end) => {
                assert_eq!(end, head.len());
                check(head.as_bytes(), &BOUNDS)
            }
            Look::Unfinished => panic!("unfinished: {head:?}"),
        }
    }

    #[test]
    fn the_strict_form_is_let_through() {
        for (head, framing) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Framing::Length(0)),
            ("GET / HTTP/1.0\r\n\r\n", Framing::Length(0)),
            ("GET http://a.example:80/x HTTP/1.1\r\nhost: A.example:80\r\n\r\n", Framing::Length(0)),
            ("OPTIONS * HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", Framing::Length(0)),
            ("POST /a?b=%20[c] HTTP/1.1\r\nHost:a\r\nContent-Length:  17 \r\n\r\n", Framing::Length(17)),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nTRANSFER-encoding: Chunked\r\nX: caf\u{e9}\r\n\r\n",
                Framing::Chunked,
            ),
            ("GET / HTTP/1.1\r\nHost: a\r\nEmpty:\r\n\r\n", Framing::Length(0)),
        ] {
            assert_eq!(verdict(head), Ok(framing), "{head:?}");
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let with = |lines: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let mut heads: Vec<String> = [
            "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
            "Content-Length: 5\r\nContent-Length: 6\r\n",
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: 5, 5\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: 0x5\r\n",
            "Content-Length: -1\r\n",
            "Content-Length:\r\n",
            "Content-Length:\t5\r\n",
            "Content-Length: 18446744073709551616\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked, gzip\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Transfer-Encoding: identity\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding : chunked\r\n",
            "Transfer-Encoding: \u{b}chunked\r\n",
            "X: a\r\n folded\r\n",
            "X: a\r\n\tfolded\r\n",
            " X: a\r\n",
            "X\r\n",
            ": a\r\n",
            "X: a\rb\r\n",
            "X: a\0b\r\n",
            "X: a\u{7f}\r\n",
            "X: a\nY: b\r\n",
            "Host: a\r\n",
        ]
        .map(with)
        .into();
        heads.extend(
            [
                "GET / HTTP/1.1\r\n\r\n",
                "GET / HTTP/1.1\nHost: a\n\n",
                "GET / HTTP/1.1\r\nHost: a\n\r\n",
                "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
                "GET / HTTP/1.1\r\nHost:\r\n\r\n",
                "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
                "GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n",
                "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
                "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
                "GET a HTTP/1.1\r\nHost: a\r\n\r\n",
                "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
                "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
                "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
                "GET / http/1.1\r\nHost: a\r\n\r\n",
                "GET /\r\nHost: a\r\n\r\n",
                "GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n",
                "GET /%2 HTTP/1.1\r\nHost: a\r\n\r\n",
                "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n",
                "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
                "GET /\\a HTTP/1.1\r\nHost: a\r\n\r\n",
                "GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n",
                "G(T / HTTP/1.1\r\nHost: a\r\n\r\n",
                "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
                " GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            ]
            .map(str::to_owned),
        );
        for head in heads {
            assert!(matches!(verdict(&head), Err(Refusal::Malformed(_))), "{head:?}: {:?}", verdict(&head));
        }
        assert_eq!(verdict("GET / HTTP/2.0\r\nHost: a\r\n\r\n"), Err(Refusal::Version));
        assert_eq!(verdict("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n"), Err(Refusal::Tunnel));
    }

    #[test]
    fn every_bound_is_told_as_soon_as_it_is_passed() {
        let look = |bytes: &str| Scan::default().look(bytes.as_bytes(), &BOUNDS);
        assert_eq!(look(&format!("GET /{}", "a".repeat(9_000))), Err(Refusal::TargetTooLong));
        assert_eq!(look(&format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(17_000))), Err(Refusal::TooLong));
        assert_eq!(
            look(&format!("GET / HTTP/1.1\r\n{}", "X: a\r\n".repeat(101))),
            Err(Refusal::TooManyHeaders)
        );
        let most = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: a\r\n".repeat(99));
        assert_eq!(verdict(&most), Ok(Framing::Length(0)));
        let uri = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(8 * 1024));
        assert_eq!(verdict(&uri), Err(Refusal::TargetTooLong));
    }

    #[test]
    fn a_head_is_found_however_it_is_cut() {
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
        for cut in 0..head.len() - 3 {
            let mut scan = Scan::default();
            assert_eq!(scan.look(&head[..cut], &BOUNDS), Ok(Look::Unfinished), "cut at {cut}");
            assert_eq!(scan.look(head, &BOUNDS), Ok(Look::Ends(head.len() - 3)), "cut at {cut}");
        }
    }
}
