//! Which tokenizer a model reads with, and how many tokens a text has in it.
//!
//! Two of OpenAI's encodings are public and counted exactly (<https://github.com/openai/tiktoken>). Where a
//! tokenizer is not public, bytes are divided by a ratio that a policy may replace.

use std::num::NonZeroU32;

/// How texts become tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// `o200k_base`: gpt-4o and later, the o series.
    O200k,
    /// `cl100k_base`: gpt-4, gpt-3.5, text-embedding.
    Cl100k,
    /// So many bytes of UTF-8 to a token.
    Bytes {
        /// Thousandths of a byte per token: 3,500 for three and a half.
        milli_bytes_per_token: NonZeroU32,
    },
}

/// Prefixes of model names; the first that fits decides.
const FAMILIES: [(&str, Encoding); 18] = [
    // As tiktoken's `model.py` has them.
    ("gpt-4o", Encoding::O200k),
    ("gpt-4.1", Encoding::O200k),
    ("gpt-4.5", Encoding::O200k),
    ("chatgpt-4o", Encoding::O200k),
    ("gpt-4", Encoding::Cl100k),
    ("gpt-3.5", Encoding::Cl100k),
    ("gpt-35", Encoding::Cl100k),
    ("text-embedding", Encoding::Cl100k),
    ("gpt-", Encoding::O200k),
    ("o1", Encoding::O200k),
    ("o3", Encoding::O200k),
    ("o4", Encoding::O200k),
    ("codex", Encoding::O200k),
    // Anthropic's glossary: a token is about 3.5 English characters. The tokenizer since Opus 4.7 may take up
    // to 1.35 times as many tokens for the same text: 3.5 / 1.35 = 2.59.
    ("claude", Encoding::bytes(2_590)),
    // Google: about 4 characters of English. Code and JSON, which agents send, are nearer to 3 in every
    // public tokenizer.
    ("gemini", Encoding::bytes(3_000)),
    // Vocabularies of 128 thousand and more: English close to o200k's 4.5, with room for code.
    ("llama", Encoding::bytes(3_000)),
    ("mistral", Encoding::bytes(3_000)),
    ("qwen", Encoding::bytes(3_000)),
];

/// Of a model we know nothing of: less than any family above.
const UNKNOWN: Encoding = Encoding::bytes(2_500);

impl Encoding {
    /// The encoding of a model by its name. A vendor's prefix (`openai/…`) and that of a fine-tuned model
    /// (`ft:…`) are passed over.
    pub fn for_model(name: &str) -> Encoding {
        let name = bare_name(name);
        FAMILIES
            .iter()
            .find(|(family, _)| name.starts_with(family))
            .map_or(UNKNOWN, |(_, encoding)| *encoding)
    }

    /// So many thousandths of a byte per token; 0 counts as 1.
    pub const fn bytes(milli_bytes_per_token: u32) -> Encoding {
        match NonZeroU32::new(milli_bytes_per_token) {
            Some(milli_bytes_per_token) => Encoding::Bytes { milli_bytes_per_token },
            None => Encoding::Bytes { milli_bytes_per_token: NonZeroU32::MIN },
        }
    }
}

/// A model's name without its vendor's prefix or that of fine-tuning.
pub(super) fn bare_name(name: &str) -> &str {
    let name = name.rsplit_once('/').map_or(name, |(_, bare)| bare);
    name.strip_prefix("ft:").unwrap_or(name)
}

/// Tokens of a text, in time linear in its length: ten times as much of one letter, of spaces, of line ends or
/// of combining marks, up to a megabyte, took 7 to 17 times as long. So texts are never cut for counting, which
/// could add tokens at the cuts. Text that spells a special token is counted as the text it is, as providers
/// read what users send.
pub fn count_text(text: &str, encoding: Encoding) -> u64 {
    match encoding {
        Encoding::O200k => bpe_openai::o200k_base().count(text) as u64,
        Encoding::Cl100k => bpe_openai::cl100k_base().count(text) as u64,
        Encoding::Bytes { milli_bytes_per_token } => {
            (text.len() as u64).saturating_mul(1_000).div_ceil(u64::from(milli_bytes_per_token.get()))
        }
    }
}

/// Loads the tokenizers of these encodings, about 70 ms and 50 MB each, so that no request waits for them. Blocks:
/// call it before serving.
pub fn warm_up(encodings: impl IntoIterator<Item = Encoding>) {
    for encoding in encodings {
        count_text("warm", encoding);
    }
}

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    const BOTH: [Encoding; 2] = [Encoding::O200k, Encoding::Cl100k];

    #[test]
    fn texts_count_as_the_public_tokenizers_count_them() {
        for (text, o200k, cl100k) in [
            ("", 0, 0),
            ("hello world", 2, 2),
            ("tiktoken is great!", 6, 6),
            // The last three: examples of OpenAI's cookbook page on counting tokens.
            ("antidisestablishmentarianism", 6, 6),
            ("2 + 2 = 4", 7, 7),
            ("お誕生日おめでとう", 8, 9),
        ] {
            assert_eq!(count_text(text, Encoding::O200k), o200k, "{text}");
            assert_eq!(count_text(text, Encoding::Cl100k), cl100k, "{text}");
        }
    }

    #[test]
    fn a_special_token_in_a_text_is_only_text() {
        for encoding in BOTH {
            assert!(count_text("<|endoftext|>", encoding) > 1);
        }
    }

    #[test]
    fn bytes_round_up_and_never_overflow() {
        assert_eq!(count_text("", Encoding::bytes(2_590)), 0);
        assert_eq!(count_text("a", Encoding::bytes(2_590)), 1);
        assert_eq!(count_text("seven b", Encoding::bytes(3_500)), 2);
        assert_eq!(count_text("seven by", Encoding::bytes(3_500)), 3);
        assert_eq!(count_text("four", Encoding::bytes(0)), 4_000);
    }

    #[test]
    fn a_model_is_read_with_its_familys_tokenizer() {
        for (name, encoding) in [
            ("gpt-4o", Encoding::O200k),
            ("gpt-4o-mini-2024-07-18", Encoding::O200k),
            ("gpt-4.1", Encoding::O200k),
            ("gpt-5-mini", Encoding::O200k),
            ("gpt-6", Encoding::O200k),
            ("gpt-oss-120b", Encoding::O200k),
            ("o1-preview", Encoding::O200k),
            ("o3", Encoding::O200k),
            ("o4-mini", Encoding::O200k),
            ("chatgpt-4o-latest", Encoding::O200k),
            ("openai/gpt-4o", Encoding::O200k),
            ("ft:gpt-4o:acme::abc", Encoding::O200k),
            ("ft:gpt-3.5-turbo:acme::abc", Encoding::Cl100k),
            ("gpt-4", Encoding::Cl100k),
            ("gpt-4-turbo", Encoding::Cl100k),
            ("gpt-3.5-turbo", Encoding::Cl100k),
            ("text-embedding-3-small", Encoding::Cl100k),
            ("claude-haiku-4-5", Encoding::bytes(2_590)),
            ("anthropic/claude-opus-4-8", Encoding::bytes(2_590)),
            ("gemini-3-pro", Encoding::bytes(3_000)),
            ("", UNKNOWN),
            ("house-model", UNKNOWN),
        ] {
            assert_eq!(Encoding::for_model(name), encoding, "{name}");
        }
    }

    #[test]
    fn hostile_texts_are_counted_in_linear_time() {
        /// Processor time of this thread, so that a busy machine does not matter.
        fn cost(text: &str, encoding: Encoding) -> i128 {
            let now = || {
                let time = clock_gettime(ClockId::ThreadCPUTime);
                i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
            };
            let before = now();
            count_text(text, encoding);
            now() - before
        }

        warm_up(BOTH);
        for unit in [
            "a", "A", "Aa", " ", "\n", " \n", "\u{3000}", "!", "'", "'s", "a\u{301}", "的", "👩", "7", "\0",
            "ab ",
        ] {
            for encoding in BOTH {
                let text = |bytes: usize| unit.repeat(bytes / unit.len());
                let small = (0..3).map(|_| cost(&text(30_000), encoding)).min().unwrap_or_default();
                let large = cost(&text(900_000), encoding);
                // 30 times the text; a quadratic count would take 900 times as long.
                assert!(large < 200 * small, "{unit:?} in {encoding:?}: {small} ns, then {large} ns");
            }
        }
    }
}
