//! A source file as the rules see it: its path, its text, and its code without comments and literals.

use std::fs;
use std::path::Path;

/// A file: its path from the root of the repository, its text, and for Rust the text with comments and literals blanked out.
pub struct Source {
    pub path: String,
    pub text: String,
    pub code: String,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        let code = if path.ends_with(".rs") { blank(text) } else { text.to_owned() };
        Source { path: path.to_owned(), text: text.to_owned(), code }
    }

    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub fn is_rust_under(&self, places: &[&str]) -> bool {
        self.is_rust() && places.iter().any(|place| self.path.starts_with(place))
    }

    pub fn is_test_file(&self) -> bool {
        self.path.starts_with("tests/") || self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }

    pub fn is_pure(&self) -> bool {
        self.is_rust_under(&["src/limit/", "src/control/"]) && !self.is_test_file()
    }

    /// The code before the file's own tests, which come last.
    pub fn shipped(&self) -> &str {
        let mark = "#[cfg(test)]";
        let mut marks = self.code.match_indices(mark).map(|(at, _)| at);
        let end = marks.find(|at| {
            let item = self.code[at + mark.len()..].trim_start();
            item.starts_with("mod ") && item.find(['{', ';']).is_some_and(|end| item[end..].starts_with('{'))
        });
        &self.code[..end.unwrap_or(self.code.len())]
    }
}

/// Every text file of the repository that is ours.
pub fn tree() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.to_owned()];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository can be listed") {
            let entry = entry.expect("an entry of the repository can be read");
            let name = entry.file_name();
            // What git ignores, and git itself.
            if ["target", ".git", ".venv", "proptest-regressions", "__pycache__"]
                .iter()
                .any(|&skip| name == skip)
            {
                continue;
            }
            let kind = entry.file_type().expect("an entry of the repository has a kind");
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file()
                && let Ok(text) = fs::read_to_string(entry.path())
            {
                let path = entry.path();
                let path = path
                    .strip_prefix(root)
                    .expect("the walk began at the root")
                    .to_string_lossy()
                    .replace('\\', "/");
                sources.push(Source::new(&path, &text));
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

pub fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

pub fn is_of_a_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

pub fn word_positions<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        !text[..at].ends_with(is_of_a_word) && !text[at + word.len()..].starts_with(is_of_a_word)
    })
}

/// The text without white space, save for one space where it parts two words, and the line number of each byte of it:
/// code reads the same however it is broken into lines.
pub fn squeeze(text: &str) -> (String, Vec<usize>) {
    let mut squeezed = String::new();
    let mut lines = Vec::new();
    let (mut line, mut parted) = (1, false);
    for c in text.chars() {
        if c == '\n' {
            line += 1;
        }
        if c.is_whitespace() {
            parted = true;
            continue;
        }
        if parted && is_of_a_word(c) && squeezed.ends_with(is_of_a_word) {
            squeezed.push(' ');
        }
        squeezed.push(c);
        lines.resize(squeezed.len(), line);
        parted = false;
    }
    (squeezed, lines)
}

/// Rust text with comments, strings and characters replaced by spaces; every line keeps its number.
fn blank(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after_a_word = code.ends_with(is_of_a_word);
        let length = literal_or_comment(rest, after_a_word);
        if length == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            code.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[length..];
        }
    }
    code
}

/// The length in bytes of the comment or literal that `rest` starts with; 0 when it starts with neither.
fn literal_or_comment(rest: &str, after_a_word: bool) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    if let Some(string) = rest.strip_prefix('"') {
        return 1 + quoted(string, '"');
    }
    if !after_a_word {
        let prefix = rest.len() - rest.trim_start_matches(['b', 'c']).len();
        let raw = &rest[prefix.min(1)..];
        if let Some(raw) = raw.strip_prefix('r') {
            let hashes = raw.len() - raw.trim_start_matches('#').len();
            if raw[hashes..].starts_with('"') {
                let end = format!("\"{}", "#".repeat(hashes));
                let start = rest.len() - raw.len() + hashes + 1;
                return rest[start..].find(&end).map_or(rest.len(), |at| start + at + end.len());
            }
        }
    }
    if let Some(character) = rest.strip_prefix('\'') {
        // A lifetime has no closing quote right after its first character.
        let mut characters = character.chars();
        let first = characters.next();
        if first == Some('\\') {
            return 1 + quoted(character, '\'');
        }
        if let Some(first) = first
            && characters.next() == Some('\'')
        {
            return 2 + first.len_utf8();
        }
    }
    0
}

fn quoted(inside: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in inside.char_indices() {
        if !escaped && c == quote {
            return at + 1;
        }
        escaped = !escaped && c == '\\';
    }
    inside.len()
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

#[test]
fn comments_and_strings_are_not_code() {
    let source = Source::new(
        "src/x.rs",
        "let a = \"in // \\\" string\"; // line\nlet b = r#\"raw \" quote\"#; /* a /* nested */ block */ let c = '\"';\nlet d: &'static str = b\"bytes\";",
    );
    let code: Vec<&str> = source.code.lines().map(str::trim_end).collect();
    assert_eq!(code.len(), 3, "lines keep their numbers");
    assert!(code[0].starts_with("let a = ") && code[0].ends_with(';'), "{code:?}");
    assert!(code[1].contains("let b = ") && code[1].contains("let c = "), "{code:?}");
    assert!(code[2].starts_with("let d: &'static str = "), "{code:?}");
    for word in ["string", "line", "raw", "quote", "nested", "block", "bytes"] {
        assert!(!source.code.contains(word), "`{word}` survived in {code:?}");
    }
}
