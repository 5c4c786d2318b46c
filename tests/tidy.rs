//! The arrows of the code base, as a test over its text: who may know whom, and what is nowhere allowed.
//!
//! The compiler and clippy keep what they can; this keeps the rest. Each rule carries samples that break it, and a test
//! that it does break on them: a check that cannot fail is worse than none. It reads text, not types, so it can be
//! deceived; it is there to catch a slip, not an adversary.
//!
//! An exception is a line in [`ALLOWED`] with its reason, and an exception that is no longer needed fails the test.

use std::collections::BTreeSet;
use std::fmt;

#[path = "tidy/source.rs"]
mod source;

use source::{Source, is_of_a_word, numbered, squeeze, tree, word_positions};

/// Exceptions to the rules. Each one says why.
const ALLOWED: &[Allowance] = &[
    Allowance {
        rule: "no sleep in a test",
        path: "tests/support/mod.rs",
        reason: "the pause between two questions of `eventually`, which asks until a deadline",
    },
    Allowance {
        rule: "no sleep in a test",
        path: "tests/support/process.rs",
        reason: "`Drop` cannot await: it polls, a bounded number of times, whether the child has ended",
    },
    Allowance {
        rule: "each library has its place",
        path: "src/demo/client.rs",
        reason: "the demo's callers stand outside the node and reach it as everyone does",
    },
    Allowance {
        rule: "each library has its place",
        path: "src/demo/receiver.rs",
        reason: "the demo's receiver of alerts is a stranger to the node, as an operator's is",
    },
    Allowance { rule: "one reader of OS time", path: "src/simulated/answer.rs", reason: VIRTUAL },
    Allowance { rule: "one reader of OS time", path: "src/simulated/books.rs", reason: VIRTUAL },
];

/// Why the simulated provider may ask what time it is.
const VIRTUAL: &str =
    "tokio's clock, which a paused test moves by hand; a stranger to the node decides nothing for it";

/// The rules, in the order in which they are explained.
const RULES: &[Rule] = &[
    Rule {
        name: "pure code knows no machine",
        check: pure_code_knows_no_machine,
        bad: &[
            ("src/limit/bucket.rs", "use tokio::sync::mpsc;"),
            ("src/limit/bucket.rs", "fn f() { tracing::info!(\"spent\"); }"),
            ("src/limit/bucket.rs", "use std::sync::{Arc, Mutex};"),
            ("src/limit/bucket.rs", "use std::time::{Duration, Instant};"),
            ("src/limit/mod.rs", "fn f() { std::thread::yield_now(); }"),
            ("src/control/mod.rs", "use rand::Rng;"),
        ],
        good: &[
            ("src/limit/bucket.rs", "// tokio is not known here\nuse std::time::Duration;"),
            ("src/limit/bucket.rs", "const HINT: &str = \"see tokio\"; fn operand() {}"),
            ("src/node/mod.rs", "use tokio::sync::mpsc;"),
        ],
    },
    Rule {
        name: "no float in a decision",
        check: no_float_in_a_decision,
        bad: &[
            ("src/limit/share.rs", "fn f(share: f64) {}"),
            ("src/limit/share.rs", "let half = 0.5;"),
            ("src/control/mod.rs", "let x = level as f32;"),
        ],
        good: &[
            ("src/limit/share.rs", "let x = pair.0.1 + range(0..1).start;"),
            ("src/limit/share.rs", "/// Half is 0.5, written as 500 per mille.\nconst HALF: u32 = 500;"),
            ("src/limit/share.rs", "fn f() {}\n#[cfg(test)]\nmod tests { const NAIVE: f64 = 0.5; }"),
        ],
    },
    Rule {
        name: "no iteration over hash maps in pure code",
        check: no_iteration_over_hash_maps,
        bad: &[
            (
                "src/limit/pool.rs",
                "struct Pool { purses: HashMap<u32, u64> }\nfn f(p: &Pool) { p.purses.iter(); }",
            ),
            ("src/limit/pool.rs", "let open = HashSet::new();\nfor id in &open { f(id); }"),
            (
                "src/limit/pool.rs",
                "struct P { a: hashbrown::HashMap<u32, u64> }\nfn f(p: &P) { p\n  .a\n  .values(); }",
            ),
            ("src/control/mod.rs", "struct C { keys: HashMap<K, V> }\nfn f(c: C) { for k in c.keys {} }"),
        ],
        good: &[
            (
                "src/limit/pool.rs",
                "struct Pool { purses: BTreeMap<u32, u64> }\nfn f(p: &Pool) { p.purses.iter(); }",
            ),
            (
                "src/limit/pool.rs",
                "struct Pool { purses: HashMap<u32, u64>, queue: Vec<u32> }\nfn f(p: &Pool) { p.queue.iter(); p.purses.get(&1); }",
            ),
        ],
    },
    Rule {
        name: "each library has its place",
        check: each_library_has_its_place,
        bad: &[
            ("src/node/mod.rs", "use axum::Router;"),
            ("src/policy/mod.rs", "fn f(body: hyper::body::Incoming) {}"),
            ("src/node/mod.rs", "use hyper_util::rt::TokioExecutor;"),
            ("src/node/mod.rs", "fn f() { bincode::encode(); }"),
            ("cluster/src/lease.rs", "use openraft::Raft;"),
            ("src/node/mod.rs", "use chitchat::ChitchatId;"),
        ],
        good: &[
            ("src/proxy/mod.rs", "use axum::Router;"),
            ("src/upstream/client.rs", "use hyper::body::Incoming;"),
            ("src/node/codec.rs", "fn f() { bincode::encode(); }"),
            ("src/node/mod.rs", "use http::HeaderMap; // axum reads these"),
            ("cluster/src/raft/network.rs", "use openraft::Raft;"),
        ],
    },
    Rule {
        name: "the cluster knows no arithmetic",
        check: the_cluster_knows_no_arithmetic,
        bad: &[
            ("cluster/src/ring.rs", "struct TenantId(u64);"),
            ("cluster/src/ring.rs", "fn move_bucket() {}"),
            ("cluster/src/machine.rs", "let tokens = 3;"),
        ],
        good: &[
            ("cluster/src/ring.rs", "struct ShardId(u16);"),
            ("cluster/tests/toy.rs", "let tokens = 3;"),
            ("src/node/mod.rs", "struct TenantId(u64);"),
        ],
    },
    Rule {
        name: "one reader of OS time",
        check: one_reader_of_os_time,
        bad: &[
            ("src/node/mod.rs", "let now = Instant::now();"),
            ("src/node/mod.rs", "let now = std::time::SystemTime :: now();"),
            ("src/policy/mod.rs", "let today = jiff::ZonedDateTime::now();"),
            ("src/node/mod.rs", "fn f() {}\n#[cfg(test)]\nmod tests { fn g() { Instant::now(); } }"),
        ],
        good: &[
            ("src/clock.rs", "let now = Instant::now();"),
            ("src/node/mod.rs", "/// Not `Instant::now`.\nfn f(now: Instant) {}"),
            ("tests/streams.rs", "let begun = Instant::now();"),
        ],
    },
    Rule {
        name: "each file has a first page",
        check: each_file_has_a_first_page,
        bad: &[
            ("src/meter/sse.rs", "use std::fmt;\n//! too late"),
            ("src/meter/mod.rs", "//! meter"),
            ("src/meter/mod.rs", ""),
            ("cluster/src/lib.rs", "// A comment is not a page of the documentation\n"),
        ],
        good: &[
            ("src/meter/sse.rs", "//! Server-sent events, split as bytes arrive.\nuse std::fmt;"),
            ("src/limit/tests/laws.rs", "//! The laws."),
            ("src/meter/sse.rs", "//! One idea:\n//! frames out of bytes.\n"),
        ],
    },
    Rule {
        name: "a file is one idea",
        check: a_file_is_one_idea,
        bad: &[("src/limit/limiter.rs", LONG)],
        good: &[("src/limit/limiter.rs", LONG_WITH_TESTS), ("tests/story.rs", LONG)],
    },
    Rule {
        name: "nothing is left for later",
        check: nothing_is_left_for_later,
        bad: &[
            ("src/node/mod.rs", "fn f() { todo!() }"),
            ("src/node/mod.rs", "fn f() { unimplemented!(\"later\") }"),
            ("tests/streams.rs", "#[test]\n#[ignore = \"flaky\"]\nfn f() {}"),
            ("src/node/mod.rs", concat!("// TO", "DO: the other half")),
            (".ci/run", concat!("# FIX", "ME")),
        ],
        good: &[("src/node/mod.rs", "fn f() { ignore(todos()) }"), ("README.md", "Nothing is ignored.")],
    },
    Rule {
        name: "no sleep in a test",
        check: no_sleep_in_a_test,
        bad: &[
            ("tests/streams.rs", "std::thread::sleep(LONG_ENOUGH);"),
            ("tests/streams.rs", "use tokio::time::sleep;\nasync fn f() { sleep(A_BIT).await }"),
            ("src/node/mod.rs", "fn f() {}\n#[cfg(test)]\nmod tests { fn g() { std::thread::sleep(D); } }"),
            ("tests/sdk/scenario.py", "time.sleep(2)"),
        ],
        good: &[
            ("src/simulated/mod.rs", "async fn gap() { tokio::time::sleep(GAP).await }"),
            ("tests/streams.rs", "// no sleep(1) here\nlet asleep = sleeper();"),
        ],
    },
    Rule {
        name: "no trace of the machine it was written on",
        check: no_trace_of_a_machine,
        bad: &[
            ("README.md", concat!("see /wo", "rk/notes")),
            ("src/cli/mod.rs", concat!("const HOME: &str = \"/ro", "ot/.config\";")),
            ("deploy/compose.yaml", concat!("file: ../sha", "red/policy.yaml")),
            ("src/cli/mod.rs", concat!("// as sha", "red/wire.md says")),
        ],
        good: &[("README.md", "a network/workload in `src/node/`, `/root` and a shared / exclusive lock")],
    },
    Rule {
        name: "dependencies come from the public registries",
        check: dependencies_come_from_the_public_registries,
        bad: &[
            ("Cargo.lock", "source = \"registry+https://mirror.example/index\""),
            ("Cargo.lock", "source = \"git+https://example.com/fork\""),
            ("Cargo.lock", "source = \"sparse+https://mirror.example/\""),
            (".cargo/config.toml", "[source.crates-io]\nreplace-with = \"mirror\""),
            ("tests/sdk/requirements.txt", "--index-url https://mirror.example/simple"),
            ("tests/sdk/requirements.txt", "openai>=3"),
            ("tests/sdk/requirements.txt", "openai @ https://example.com/openai.whl"),
        ],
        good: &[
            ("Cargo.lock", "source = \"registry+https://github.com/rust-lang/crates.io-index\""),
            (".cargo/config.toml", "[build]\njobs = 2"),
            ("tests/sdk/requirements.txt", "# pinned\nopenai==3.57.0\n"),
        ],
    },
];

/// The code of a file, without its tests, may have this many lines. It fits the longest file that a reader still takes
/// in as one idea; most are far shorter.
const LONGEST_FILE: usize = 700;

#[test]
fn the_tree_keeps_every_rule() {
    let sources = tree();
    assert!(sources.iter().any(|source| source.path == "src/lib.rs"), "the walk found no source at all");
    let mut used = vec![false; ALLOWED.len()];
    let mut broken = Vec::new();
    for rule in RULES {
        for source in &sources {
            for finding in (rule.check)(source) {
                let allowed = ALLOWED.iter().position(|a| a.rule == rule.name && a.path == source.path);
                match allowed {
                    Some(index) => used[index] = true,
                    None => broken.push(format!("{}:{finding}  [{}]", source.path, rule.name)),
                }
            }
        }
    }
    for (allowance, used) in ALLOWED.iter().zip(used) {
        if !used {
            broken.push(format!(
                "{}: the exception to [{}] is no longer needed",
                allowance.path, allowance.rule
            ));
        }
        assert!(!allowance.reason.is_empty(), "{}: an exception without a reason", allowance.path);
    }
    assert!(broken.is_empty(), "{} broken:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn every_rule_can_fail() {
    for rule in RULES {
        assert!(!rule.bad.is_empty() && !rule.good.is_empty(), "[{}] has no samples", rule.name);
        for (path, text) in rule.bad {
            let findings = (rule.check)(&Source::new(path, text));
            assert!(!findings.is_empty(), "[{}] did not see what is wrong in {path}:\n{text}", rule.name);
        }
        for (path, text) in rule.good {
            let findings = (rule.check)(&Source::new(path, text));
            assert!(findings.is_empty(), "[{}] saw {findings:?} in {path}:\n{text}", rule.name);
        }
    }
}

#[test]
fn an_exception_names_a_rule() {
    for allowance in ALLOWED {
        assert!(RULES.iter().any(|rule| rule.name == allowance.rule), "no rule [{}]", allowance.rule);
    }
}

/// A fault that nothing finds says nothing of the code around it.
#[test]
fn each_fault_that_can_be_put_in_is_found_by_a_seed_or_a_test_that_ci_runs() {
    let sources = tree();
    let between = |text: &str, before: &str| -> Vec<String> {
        let after = text.split(before).skip(1);
        after.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
    };
    let text = |path: &str| {
        let source = sources.iter().find(|source| source.path == path);
        source.unwrap_or_else(|| panic!("no {path}")).text.clone()
    };
    let shipped = sources.iter().filter(|source| source.is_rust_under(&["src/", "cluster/src/"]));
    let made: BTreeSet<String> =
        shipped.flat_map(|source| between(&source.text, concat!("mutant", "::is(\""))).collect();
    let mut found: BTreeSet<String> =
        between(&text("tests/simulation/mutants.rs"), "    find(\"").into_iter().collect();
    let lines = text(".ci/mutants");
    let named = lines.lines().filter(|line| !line.starts_with('#'));
    found.extend(named.filter_map(|line| line.split_whitespace().next()).map(str::to_owned));
    assert!(made.len() > 20, "the search found only {made:?}");
    let unfound: Vec<_> = made.difference(&found).collect();
    assert!(unfound.is_empty(), "found by no seed and no line of .ci/mutants: {unfound:?}");
    let gone: Vec<_> = found.difference(&made).collect();
    assert!(gone.is_empty(), "in no code any more: {gone:?}");
}

// The rules.

fn pure_code_knows_no_machine(source: &Source) -> Vec<Finding> {
    if !source.is_pure() {
        return Vec::new();
    }
    let names = [
        "tokio",
        "hyper",
        "axum",
        "tracing",
        "rand",
        "Mutex",
        "RwLock",
        "Condvar",
        "Barrier",
        "thread",
        "Instant",
        "SystemTime",
        "async",
        "await",
    ];
    words(source.shipped(), &names)
}

fn no_float_in_a_decision(source: &Source) -> Vec<Finding> {
    if !source.is_pure() {
        return Vec::new();
    }
    let mut findings = words(source.shipped(), &["f32", "f64"]);
    for (number, line) in numbered(source.shipped()) {
        for (at, _) in line.match_indices('.') {
            let whole = line[..at].trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
            let digits = &line[whole.len()..at];
            let followed = line[at + 1..].starts_with(|c: char| c.is_ascii_digit());
            // `pair.0.1` is a field of a field, and `x1.0` a field of x1.
            let is_number = !whole.ends_with(|c: char| is_of_a_word(c) || c == '.');
            if followed && is_number && digits.starts_with(|c: char| c.is_ascii_digit()) {
                findings.push(Finding::new(number, "a float literal"));
            }
        }
    }
    findings
}

/// The order of a hash map differs from process to process, so a replay would differ too.
fn no_iteration_over_hash_maps(source: &Source) -> Vec<Finding> {
    if !source.is_pure() {
        return Vec::new();
    }
    let (squeezed, lines) = squeeze(source.shipped());
    let mut findings = Vec::new();
    for map in names_of_hash_maps(&squeezed) {
        for at in word_positions(&squeezed, map) {
            let (before, after) = (&squeezed[..at], &squeezed[at + map.len()..]);
            let steps = [
                "iter",
                "keys",
                "values",
                "drain",
                "into_iter",
                "into_keys",
                "into_values",
                "iter_mut",
                "values_mut",
            ];
            let stepped = after.strip_prefix('.').and_then(|call| call.split_once("()"));
            // `for … in &mut self.map {`
            let subject = before.trim_end_matches(|c: char| is_of_a_word(c) || c == '.');
            let looped = subject.trim_end_matches("mut ").trim_end_matches('&').trim_end().ends_with(" in");
            if stepped.is_some_and(|(step, _)| steps.contains(&step)) || (looped && after.starts_with('{')) {
                findings.push(Finding::new(lines[at], &format!("iterates over the hash map `{map}`")));
            }
        }
    }
    findings
}

/// What is declared as `name: HashMap<…>`, `name: &mut hashbrown::HashMap<…>` or `let name = HashMap::…`.
fn names_of_hash_maps(squeezed: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for map in ["HashMap", "HashSet"] {
        for at in word_positions(squeezed, map) {
            let path = squeezed[..at].trim_end_matches("std::collections::").trim_end_matches("hashbrown::");
            let kind = path.trim_end_matches("mut ").trim_end_matches('&');
            if let Some(declared) = kind.strip_suffix([':', '=']) {
                let name = &declared[declared.trim_end_matches(is_of_a_word).len()..];
                names.extend(Some(name).filter(|name| !name.is_empty()));
            }
        }
    }
    names
}

fn each_library_has_its_place(source: &Source) -> Vec<Finding> {
    if !source.is_rust_under(&["src/", "cluster/src/", "jepsen/src/"]) {
        return Vec::new();
    }
    let places: [(&[&str], &[&str]); 4] = [
        (
            &["axum", "hyper", "hyper_util", "hyper_rustls"],
            &[
                "src/proxy/",
                "src/admin/",
                "src/upstream/",
                "src/simulated/",
                "cluster/src/peer/",
                "jepsen/src/",
            ],
        ),
        (&["bincode"], &["/codec.rs", "cluster/src/wire.rs"]),
        (&["openraft"], &["cluster/src/raft/"]),
        (&["chitchat"], &["cluster/src/gossip/"]),
    ];
    let mut findings = Vec::new();
    for (libraries, homes) in places {
        if !homes.iter().any(|home| source.path.starts_with(home) || source.path.ends_with(home)) {
            findings.extend(words(&source.code, libraries));
        }
    }
    findings
}

fn the_cluster_knows_no_arithmetic(source: &Source) -> Vec<Finding> {
    if !source.is_rust_under(&["cluster/src/"]) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, line) in numbered(&source.code) {
        // A library's name for what ends a task.
        let lower = line.replace("CancellationToken", "").to_lowercase();
        for word in ["tenant", "token", "bucket", "policy", "policies"] {
            if lower.contains(word) {
                findings.push(Finding::new(number, &format!("`{word}` is not a word of the cluster")));
            }
        }
    }
    findings
}

fn one_reader_of_os_time(source: &Source) -> Vec<Finding> {
    if !source.is_rust_under(&["src/", "cluster/src/", "jepsen/src/"]) || source.path == "src/clock.rs" {
        return Vec::new();
    }
    let (squeezed, lines) = squeeze(&source.code);
    let mut findings = Vec::new();
    for call in ["Instant::now", "SystemTime::now", "Timestamp::now", "ZonedDateTime::now"] {
        for (at, _) in squeezed.match_indices(call) {
            findings.push(Finding::new(lines[at], &format!("`{call}`: take `now` as an argument")));
        }
    }
    findings
}

fn each_file_has_a_first_page(source: &Source) -> Vec<Finding> {
    if !source.is_rust_under(&["src/", "cluster/src/", "jepsen/src/"]) {
        return Vec::new();
    }
    let page: Vec<&str> = source.text.lines().map_while(|line| line.strip_prefix("//!")).collect();
    // Five words: the shortest first page that says more than the file's name does.
    match page.iter().flat_map(|line| line.split_whitespace()).count() {
        1..5 if source.is_test_file() => Vec::new(),
        0 => vec![Finding::new(1, "starts without a `//!` page")],
        1..5 => vec![Finding::new(1, "its `//!` page says no more than its name")],
        _ => Vec::new(),
    }
}

fn a_file_is_one_idea(source: &Source) -> Vec<Finding> {
    let lines = source.shipped().lines().count();
    if !source.is_rust_under(&["src/", "cluster/src/", "jepsen/src/"])
        || source.is_test_file()
        || lines <= LONGEST_FILE
    {
        return Vec::new();
    }
    vec![Finding::new(
        lines,
        &format!("{lines} lines without its tests; {LONGEST_FILE} is the bound: split it"),
    )]
}

fn nothing_is_left_for_later(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    if source.is_rust() {
        let (squeezed, lines) = squeeze(&source.code);
        for mark in ["todo!", "unimplemented!", "#[ignore"] {
            for (at, _) in squeezed.match_indices(mark) {
                findings.push(Finding::new(lines[at], mark));
            }
        }
    }
    findings.extend(words(&source.text, &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")]));
    findings
}

/// Waiting a while for something to have happened makes a test slow on a fast machine and wrong on a slow one.
fn no_sleep_in_a_test(source: &Source) -> Vec<Finding> {
    let skipped = match source.is_test_file() {
        true => 0,
        false if source.is_rust() => source.shipped().len(),
        false => return Vec::new(),
    };
    let first_line = source.code[..skipped].matches('\n').count();
    let calls = ["sleep", "sleep_until", "sleep_ms"];
    numbered(&source.code[skipped..])
        .filter(|(_, line)| {
            calls.iter().any(|call| {
                word_positions(line, call).any(|at| line[at + call.len()..].trim_start().starts_with('('))
            })
        })
        .map(|(number, _)| Finding::new(first_line + number, "sleeps; ask until a deadline instead"))
        .collect()
}

fn no_trace_of_a_machine(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in numbered(&source.text) {
        for place in [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("sha", "red/")] {
            let outside_a_word = |at: usize| !line[..at].ends_with(is_of_a_word);
            if line.match_indices(place).any(|(at, _)| outside_a_word(at)) {
                findings.push(Finding::new(number, &format!("`{place}` exists on one machine only")));
            }
        }
    }
    findings
}

fn dependencies_come_from_the_public_registries(source: &Source) -> Vec<Finding> {
    let of_public_registry =
        |line: &str| line == "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    let pinned = |line: &str| {
        line.split_once("==").is_some_and(|(name, version)| {
            let plain = |text: &str| {
                !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "._-".contains(c))
            };
            plain(name) && plain(version)
        })
    };
    let is_wrong: &dyn Fn(&str) -> bool = match source.path.as_str() {
        "Cargo.lock" => &|line| line.starts_with("source = ") && !of_public_registry(line),
        ".cargo/config.toml" => {
            &|line| ["[source", "[registr", "replace-with"].iter().any(|key| line.starts_with(key))
        }
        path if path.ends_with("requirements.txt") => {
            &|line| !line.is_empty() && !line.starts_with('#') && !pinned(line)
        }
        _ => return Vec::new(),
    };
    numbered(&source.text)
        .filter(|(_, line)| is_wrong(line.trim()))
        .map(|(number, line)| {
            Finding::new(number, &format!("not pinned to a public registry: {}", line.trim()))
        })
        .collect()
}

fn words(text: &str, names: &[&str]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in numbered(text) {
        for name in names {
            if word_positions(line, name).next().is_some() {
                findings.push(Finding::new(number, &format!("`{name}` does not belong here")));
            }
        }
    }
    findings
}

// What a rule is.

struct Rule {
    name: &'static str,
    check: fn(&Source) -> Vec<Finding>,
    bad: &'static [(&'static str, &'static str)],
    good: &'static [(&'static str, &'static str)],
}

struct Allowance {
    rule: &'static str,
    path: &'static str,
    reason: &'static str,
}

#[derive(Debug)]
struct Finding {
    line: usize,
    what: String,
}

impl Finding {
    fn new(line: usize, what: &str) -> Finding {
        Finding { line, what: what.to_owned() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.what)
    }
}

/// One line more of code than a file may have.
const LONG: &str = text(&[b'\n'; LONGEST_FILE + 1]);

/// As long, but with tests from the second line on.
const LONG_WITH_TESTS: &str = text(&LONG_WITH_TESTS_BYTES);
const LONG_WITH_TESTS_BYTES: [u8; LONGEST_FILE + 1] = {
    let start = *b"\n#[cfg(test)]\nmod tests {";
    let mut bytes = [b'\n'; LONGEST_FILE + 1];
    let mut at = 0;
    while at < start.len() {
        bytes[at] = start[at];
        at += 1;
    }
    bytes
};

const fn text(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => panic!("ASCII is UTF-8"),
    }
}
