//! `tollgate keys`: makes keys and hashes them, on this machine alone.
//!
//! A key is `tg-` and 256 random bits from the operating system in hexadecimal; a policy holds its SHA-256. That many random
//! bits need no salt and no slow hash: there is nothing to guess. A key of someone else's making may be guessable, so `hash`
//! says so when it is short.

use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use rand::TryRng as _;
use rand::rngs::SysRng;

use crate::policy::KeyHash;

/// Arguments of `tollgate keys`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make keys: prints each key once, and the hash that goes into the policy
    New {
        /// How many
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
        count: u16,
        /// Print one JSON object with a list of keys
        #[arg(long)]
        json: bool,
    },
    /// Read a key from standard input and print the hash that goes into the policy
    Hash,
}

/// The longest key that is hashed, in bytes; a longer one could not be sent in a header.
const MAX_KEY_BYTES: u64 = 4_096;
/// Below this many characters a key cannot carry 128 random bits in hexadecimal.
const SHORT_KEY: usize = 32;

/// Runs the command.
pub fn run(args: Args) -> ExitCode {
    let printed = match args.command {
        Command::New { count, json } => new(count, json),
        Command::Hash => hash(std::io::stdin()),
    };
    match printed
        .and_then(|text| std::io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string()))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("tollgate keys: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn new(count: u16, json: bool) -> Result<String, String> {
    let keys: Vec<(String, KeyHash)> = (0..count).map(|_| random_key()).collect::<Result<_, _>>()?;
    if json {
        let list: Vec<_> = keys
            .iter()
            .map(|(key, hash)| serde_json::json!({ "key": key, "hash": hash.to_string() }))
            .collect();
        return Ok(format!("{}\n", serde_json::json!({ "keys": list })));
    }
    let mut text = String::new();
    for (key, hash) in &keys {
        text.push_str(&format!("key   {key}\nhash  {hash}\n\n"));
    }
    text.push_str(
        "# The key is for the tenant and is kept nowhere else. The hash is for the policy:\n    keys:\n",
    );
    for (_, hash) in &keys {
        text.push_str(&format!("      - label: CHANGE-ME\n        hash: \"{hash}\"\n"));
    }
    Ok(text)
}

fn random_key() -> Result<(String, KeyHash), String> {
    let mut bits = [0_u8; 32];
    SysRng
        .try_fill_bytes(&mut bits)
        .map_err(|error| format!("the operating system gives no random numbers: {error}"))?;
    let key = format!("tg-{}", hex::encode(bits));
    let hash = KeyHash::of(key.as_bytes());
    Ok((key, hash))
}

fn hash(input: impl std::io::Read) -> Result<String, String> {
    let mut bytes = Vec::new();
    input
        .take(MAX_KEY_BYTES + 2)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("standard input cannot be read: {error}"))?;
    let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let key = line.strip_suffix(b"\r").unwrap_or(line);
    if key.is_empty() {
        return Err("standard input is empty; write the key to it: printf %s \"$KEY\" | tollgate keys hash"
            .to_owned());
    }
    if key.len() as u64 > MAX_KEY_BYTES {
        return Err(format!("the key is longer than {MAX_KEY_BYTES} bytes"));
    }
    if !key.iter().all(u8::is_ascii_graphic) {
        return Err(
            "the key has spaces, line breaks or characters beyond ASCII; it could not be sent in a header"
                .to_owned(),
        );
    }
    if key.len() < SHORT_KEY {
        eprintln!(
            "tollgate keys: this key is short enough to be guessed from its hash; `tollgate keys new` makes better ones"
        );
    }
    Ok(format!("{}\n", KeyHash::of(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_has_256_bits_and_hashes_to_its_hash() {
        let (first, hash) = random_key().unwrap();
        let (second, _) = random_key().unwrap();
        assert_eq!(first.len(), "tg-".len() + 64);
        assert_ne!(first, second);
        assert_eq!(hash_of(first.as_bytes()), format!("{hash}\n"));
    }

    #[test]
    fn a_line_break_at_the_end_is_not_part_of_the_key() {
        // SHA-256 of "abc", FIPS 180-2 appendix B.1.
        let expected = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n";
        for input in ["abc", "abc\n", "abc\r\n"] {
            assert_eq!(hash_of(input.as_bytes()), expected);
        }
    }

    #[test]
    fn what_cannot_be_a_key_is_refused() {
        let too_long = vec![b'k'; 4_097];
        for input in [&b""[..], b"\n", b"two words", b"two\nlines", &too_long] {
            assert!(hash(input).is_err());
        }
    }

    #[test]
    fn the_snippet_is_a_list_of_keys_a_policy_takes() {
        let text = new(2, false).unwrap();
        let snippet: String = text
            .lines()
            .skip_while(|line| !line.starts_with("    keys:"))
            .map(|line| format!("{line}\n"))
            .collect();
        let snippet = snippet.replacen("CHANGE-ME", "one", 1).replacen("CHANGE-ME", "two", 1);
        let document = format!(
            "version: 1\nproviders: {{}}\npools: {{}}\nmodels: {{}}\ntiers: {{ t: {{}} }}\ndefault_tier: t\ntenants:\n  - id: a\n{snippet}"
        );
        let policy = crate::policy::parse(&document, "snippet").unwrap();
        assert_eq!(policy.tenants[0].keys.len(), 2);
    }

    fn hash_of(input: &[u8]) -> String {
        hash(input).unwrap()
    }
}
