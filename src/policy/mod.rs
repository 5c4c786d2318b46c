//! The policy document: one YAML file → one checked value.
//!
//! [`parse`] reads text and answers either a [`Policy`] or every problem it found, each with line, column, setting and hint.
//! It is pure: no file, clock, environment or network. Secrets are references ([`SecretReference`]) until a node resolves them.
//!
//! In reading order: `types` (what comes out), `effective` (what it means for one tenant), `tree` (YAML → positions), `cursor`
//! (reading a tree), `document` (the mappings), `scalar` (single values), `validate` (how they fit together), `arithmetic` (what
//! the sums come to), [`summary`] and [`diff`] (what people read).
//!
//! Laws
//! - **Whole or not at all.** A document with one error yields no policy; what is running stays.
//! - **Unknown is wrong.** A field nobody reads is an error: a limit with a typo in its name would otherwise not exist.
//! - **Integers.** Ratios are millionths, money is micro-dollars, and decimals are read as text: no float is involved.
//! - **Bounded.** 8 MiB, 32 levels, no aliases, names of limited length, numbers up to [`MAX_AMOUNT`].
//!
//! Never here: reading files, watching them, enforcing anything.

pub mod arithmetic;
mod cursor;
pub mod diff;
mod document;
mod effective;
mod identity;
mod pending;
mod problem;
mod salvage;
mod scalar;
mod secret;
pub mod summary;
mod tree;
mod types;
mod units;
mod validate;

#[cfg(test)]
mod tests;

pub use pending::not_yet_enforced;
pub use problem::{Problem, Problems};
pub use salvage::salvage;
pub use scalar::is_name;
pub use secret::{Secret, SecretProblem, SecretReference};
pub use tree::MAX_BYTES;
pub use types::*;
pub use units::{IpNetwork, MicroDollars, Ratio, parse_duration};

/// The policy of `deploy/policy.yaml`: one node in front of OpenAI and Anthropic, each setting explained where it stands.
pub const EXAMPLE: &str = include_str!("../../deploy/policy.yaml");

/// Reads and checks a policy document. `source_name` is what problems call it, as a rule its path.
///
/// # Errors
/// Everything wrong with the document (up to 100 problems), in document order.
pub fn parse(text: &str, source_name: &str) -> Result<Policy, Problems> {
    let tree = tree::read(text).map_err(|problem| Problems {
        source_name: source_name.to_owned(),
        errors: vec![problem],
        warnings: Vec::new(),
        untold: 0,
    })?;
    let report = problem::Report::on(&tree);
    let policy = document::policy(cursor::Cursor::at(&tree, &report));
    if let Some(policy) = policy.as_ref().filter(|_| report.positions_hold()) {
        validate::check(policy, &report);
    }
    let warnings = report.finish(source_name)?;
    let mut policy = policy.expect("a document that could not be read was reported");
    policy.price_book.sort_by_key(|list| list.effective);
    policy.warnings = warnings;
    Ok(policy)
}
