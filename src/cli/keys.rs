//! `tollgate keys`: makes keys and hashes them on this machine alone, and has a cluster know them: create, list, rotate, revoke.
//!
//! A secret is made here and only its hash is sent. It is printed once.
//!
//! A key is `tg-` and 256 random bits from the operating system in hexadecimal; a policy holds its SHA-256. That many random
//! bits need no salt and no slow hash: there is nothing to guess. A key of someone else's making may be guessable, so `hash`
//! says so when it is short.

use std::io::{Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use http::Method;
use serde_json::{Value, json};

use super::apply::{encoded, print};
use super::limits::Limits;
use crate::admin::client::{Failure, Operator};
use crate::admin::random_key;
use crate::policy::KeyHash;

/// Arguments of `tollgate keys`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    operator: Operator,
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
    },
    /// Read a key from standard input and print the hash that goes into the policy
    Hash,
    /// Make a key that works on every node at once, beside those of the policy; it is printed once
    Create(Box<Create>),
    /// The keys of the policy and those that were made beside it
    List {
        /// Only this tenant's
        #[arg(long)]
        tenant: Option<String>,
    },
    /// Give a key a new secret; the old one works until its grace is over. Tenant, label and limits stay, and what is used of them
    Rotate {
        #[command(flatten)]
        which: Which,
        /// How long the old secret works
        #[arg(long, value_name = "TIME", default_value = "24h")]
        grace: String,
    },
    /// Have a key work no more, on every node within a second. One of the policy's document as well
    Revoke {
        #[command(flatten)]
        which: Which,
    },
}

/// A key's name.
#[derive(Debug, clap::Args)]
struct Which {
    /// Whose key
    #[arg(long)]
    tenant: String,
    /// Its name within the tenant
    #[arg(long)]
    label: String,
}

/// A key to be made.
#[derive(Debug, clap::Args)]
struct Create {
    #[command(flatten)]
    which: Which,
    /// The project that its requests belong to
    #[arg(long)]
    project: Option<String>,
    /// From when on it is refused: 2027-03-31T00:00:00Z, or a length of time such as 720h
    #[arg(long, value_name = "WHEN")]
    expires: Option<String>,
    /// Its own, within its tenant's.
    #[command(flatten)]
    limits: Limits,
}

/// How long a change may take: who does not answer is waited for until its lease is over.
const WITHIN: Duration = Duration::from_secs(90);
/// The longest key that is hashed, in bytes; a longer one could not be sent in a header.
const MAX_KEY_BYTES: u64 = 4_096;
/// Below this many characters a key cannot carry 128 random bits in hexadecimal.
const SHORT_KEY: usize = 32;

/// Runs the command.
pub fn run(args: Args) -> ExitCode {
    let printed = match args.command {
        Command::New { count } => new(count, args.operator.json),
        Command::Hash => hash(std::io::stdin()),
        agreed => {
            return match agreed_on(&args.operator, agreed) {
                Ok(text) => {
                    print(text.trim_end());
                    ExitCode::SUCCESS
                }
                Err(failure) => failure.report("keys"),
            };
        }
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

/// What a cluster is asked for.
fn agreed_on(operator: &Operator, command: Command) -> Result<String, Failure> {
    let ask =
        |method: Method, path: &str, body: Option<Value>| operator.ask(&method, path, body.as_ref(), WITHIN);
    let made = || random_key().map_err(Failure::Refused);
    let (mut page, key) = match command {
        Command::New { .. } | Command::Hash => return Ok(String::new()),
        Command::List { tenant } => {
            let path = tenant.map_or_else(
                || "/v1/keys".to_owned(),
                |tenant| format!("/v1/keys?tenant={}", encoded(&tenant)),
            );
            let page = ask(Method::GET, &path, None)?;
            return Ok(if operator.json { format!("{page:#}") } else { table(&page) });
        }
        Command::Create(wish) => {
            let (key, hash) = made()?;
            let body = json!({
                "tenant": wish.which.tenant,
                "label": wish.which.label,
                "hash": hash.to_string(),
                "project": wish.project,
                "expires": wish.expires,
            });
            (ask(Method::POST, "/v1/keys", Some(wish.limits.among(body)))?, Some(key))
        }
        Command::Rotate { which, grace } => {
            let (key, hash) = made()?;
            let body = json!({ "tenant": which.tenant, "label": which.label, "hash": hash.to_string(), "grace": grace });
            (ask(Method::POST, "/v1/keys/rotate", Some(body))?, Some(key))
        }
        Command::Revoke { which } => {
            let path = format!("/v1/keys?tenant={}&label={}", encoded(&which.tenant), encoded(&which.label));
            (ask(Method::DELETE, &path, None)?, None)
        }
    };
    if operator.json {
        page["key"] = json!(key);
        return Ok(format!("{page:#}"));
    }
    let text = |name: &str| page[name].as_str().unwrap_or_default();
    let (tenant, label, in_force) = (text("tenant"), text("label"), text("in_force"));
    Ok(match key {
        Some(key) => format!(
            "key   {key}\n\nIt is for key {label} of tenant {tenant}, is shown only here, and works {in_force}."
        ),
        None => format!("Key {label} of tenant {tenant} works no more, {in_force}."),
    })
}

fn table(page: &Value) -> String {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_header(["tenant", "label", "from", "secrets", "expires", "works"]);
    for key in page["keys"].as_array().into_iter().flatten() {
        let text = |name: &str| key[name].as_str().unwrap_or("–").to_owned();
        let secrets: Vec<String> = key["secrets"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|secret| {
                let until =
                    secret["until"].as_str().map(|until| format!(" until {until}")).unwrap_or_default();
                format!("{}…{until}", secret["hash"].as_str().unwrap_or_default())
            })
            .collect();
        let works = match (&key["revoked"], &key["works"]) {
            (Value::Bool(true), _) => "revoked",
            (_, Value::Bool(true)) => "yes",
            _ => "no",
        };
        table.add_row([
            text("tenant"),
            text("label"),
            text("source"),
            secrets.join("\n"),
            text("expires"),
            works.to_owned(),
        ]);
    }
    table.to_string()
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
