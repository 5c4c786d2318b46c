//! Stories of documents: what a good one means, and where a bad one is told to be bad.

mod errors;
mod meaning;

use super::{Policy, Problem, parse};

/// A document with every setting, and nothing wrong with it.
const EVERYTHING: &str = include_str!("everything.yaml");

fn read(text: &str) -> Policy {
    match parse(text, "policy.yaml") {
        Ok(policy) => policy,
        Err(problems) => panic!("{problems}"),
    }
}

/// The fixture with one text replaced by another; the text must be there, once.
fn with(from: &str, to: &str) -> String {
    assert_eq!(EVERYTHING.matches(from).count(), 1, "`{from}` is not there once");
    EVERYTHING.replace(from, to)
}

fn errors_of(text: &str) -> Vec<Problem> {
    parse(text, "policy.yaml").expect_err("this document should be refused").errors
}

fn warnings_of(text: &str) -> Vec<Problem> {
    read(text).warnings
}
