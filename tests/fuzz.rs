//! Bytes that nobody meant: streams and reports of usage, mutated. What was found once is kept in `tests/fuzz/` and replayed with
//! every run; `FUZZ_SECONDS=600 cargo test --test fuzz` looks longer than the moment that every run takes, and keeps what it finds.
//!
//! Mutation is our own, seeded and small: a coverage-guided fuzzer needs a nightly compiler. The laws are those of the meter:
//! what is relayed is what came, where the network cut it changes nothing, and a report is exact only when it is a report.

#![allow(clippy::unwrap_used, reason = "a corpus that cannot be read fails the test, as it should")]

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use tollgate::meter::{Metered, Shape, StreamEnd, StreamMeter, StreamMeterOptions, usage_of_body};

const SHAPES: [Shape; 5] =
    [Shape::OpenAi, Shape::Responses, Shape::Anthropic, Shape::Gemini, Shape::GeminiArray];

/// Xorshift: a seed gives the same run on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % (below.max(1) as u64)).unwrap()
    }
}

fn folder(kind: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "fuzz", kind].iter().collect()
}

fn corpus(kind: &str) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder(kind)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| (file.display().to_string(), fs::read(&file).unwrap())).collect()
}

fn play(shape: Shape, drop_usage_chunk: bool, pieces: &[&[u8]], end: StreamEnd) -> (Vec<u8>, Metered, bool) {
    let mut meter = StreamMeter::new(StreamMeterOptions {
        shape,
        expected_choices: 2,
        drop_usage_chunk,
        count: Arc::new(|text| text.len() as u64),
        phase: 0,
    });
    let mut relayed = Vec::new();
    for piece in pieces {
        relayed.extend_from_slice(&meter.feed(Bytes::copy_from_slice(piece)));
    }
    if end == StreamEnd::Clean {
        relayed.extend_from_slice(&meter.take_held());
    }
    let error = meter.error_seen();
    (relayed, meter.finish(end), error)
}

/// The laws of a stream.
fn judge_stream(bytes: &[u8], dice: &mut Dice) -> Result<(), String> {
    for shape in SHAPES {
        for drop in [false, shape == Shape::OpenAi] {
            for end in [StreamEnd::Clean, StreamEnd::Cut] {
                let whole = play(shape, drop, &[bytes], end);
                if !drop && whole.0 != bytes {
                    return Err(format!("{shape:?}: what was relayed is not what came"));
                }
                let mut at = 0;
                let mut pieces = Vec::new();
                while at < bytes.len() {
                    let longest = 1 + dice.roll(40);
                    let next = (at + 1 + dice.roll(longest)).min(bytes.len());
                    pieces.push(&bytes[at..next]);
                    at = next;
                }
                let cut = play(shape, drop, &pieces, end);
                // What a cut stream still held is not relayed, so that only its length may differ.
                if (cut.1, cut.2) != (whole.1, whole.2) || end == StreamEnd::Clean && cut.0 != whole.0 {
                    return Err(format!(
                        "{shape:?} {end:?} drop={drop}: {:?} in pieces, {:?} whole",
                        cut.1, whole.1
                    ));
                }
                believable(whole.1)?;
            }
        }
    }
    Ok(())
}

/// The laws of a whole answer.
fn judge_usage(bytes: &[u8], _: &mut Dice) -> Result<(), String> {
    for shape in SHAPES {
        let metered = usage_of_body(shape, bytes);
        believable(metered)?;
        let is_object = || {
            let text = std::str::from_utf8(bytes).unwrap_or_default();
            text.trim_start().starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
        };
        if metered != Metered::Unknown && !is_object() {
            return Err(format!("{shape:?}: {metered:?} of what is no JSON object"));
        }
    }
    Ok(())
}

fn believable(metered: Metered) -> Result<(), String> {
    match metered {
        Metered::Exact(usage) if usage.total() == 0 => Err("an exact report of nothing".to_owned()),
        Metered::Exact(usage) if usage.reasoning > usage.output => {
            Err(format!("more reasoning than output: {usage:?}"))
        }
        _ => Ok(()),
    }
}

fn mutate(bytes: &[u8], others: &[(String, Vec<u8>)], dice: &mut Dice) -> Vec<u8> {
    const WORDS: [&[u8]; 22] = [
        b"\n\n",
        b"\r\n",
        b"\r",
        b"data:",
        b"data: ",
        b"event: error\n",
        b": ping\n",
        b"[DONE]",
        b"null",
        b"{",
        b"}",
        b"[",
        b"]",
        b"\"",
        b"\\",
        b",",
        b"\"usage\":",
        b"\"choices\":[]",
        b"-1",
        b"1e9",
        b"99999999999999999999",
        b"\xf0\x9f\x91",
    ];
    let mut mutated = bytes.to_vec();
    for _ in 0..=dice.roll(6) {
        let at = dice.roll(mutated.len() + 1);
        match dice.roll(7) {
            0 if at < mutated.len() => mutated[at] ^= 1 << dice.roll(8),
            1 => mutated.truncate(at),
            2 => {
                let end = (at + dice.roll(30)).min(mutated.len());
                mutated.drain(at..end);
            }
            3 => {
                let end = (at + dice.roll(200)).min(mutated.len());
                let copy = mutated[at..end].to_vec();
                mutated.splice(at..at, copy);
            }
            4 => {
                let other = &others[dice.roll(others.len())].1;
                let from = dice.roll(other.len());
                let until = (from + dice.roll(200)).min(other.len());
                mutated.splice(at..at, other[from..until].iter().copied());
            }
            _ => _ = mutated.splice(at..at, WORDS[dice.roll(WORDS.len())].iter().copied()).count(),
        }
        mutated.truncate(64 * 1024);
    }
    mutated
}

type Judge = fn(&[u8], &mut Dice) -> Result<(), String>;

fn replay(kind: &str, judge: Judge) {
    for (name, bytes) in corpus(kind) {
        for seed in 1..20 {
            judge(&bytes, &mut Dice(seed)).unwrap_or_else(|why| panic!("{name}, seed {seed}: {why}"));
        }
    }
}

/// Mutates `inputs` times from a fixed seed; as long as `FUZZ_SECONDS` says from a fresh one, if it says.
fn search(kind: &str, judge: Judge, inputs: u64) {
    let seconds: Option<u64> = std::env::var("FUZZ_SECONDS").ok().map(|text| text.parse().unwrap());
    let began = tollgate::clock::now();
    let seed = if seconds.is_some() { rand::random::<u64>() | 1 } else { 7 };
    let corpus = corpus(kind);
    let mut dice = Dice(seed);
    let mut tried = 0;
    loop {
        let over = match seconds {
            None => tried >= inputs,
            Some(seconds) => tollgate::clock::now().since(began).as_nanos() > seconds * 1_000_000_000,
        };
        if over {
            return;
        }
        tried += 1;
        let base = &corpus[dice.roll(corpus.len())].1;
        let input = mutate(base, &corpus, &mut dice);
        let judged = std::panic::catch_unwind(|| judge(&input, &mut Dice(tried)));
        let why = match judged {
            Ok(Ok(())) => continue,
            Ok(Err(why)) => why,
            Err(_) => "a panic".to_owned(),
        };
        let file = folder(kind).join(format!("found-{seed}-{tried}"));
        fs::write(&file, &input).unwrap();
        panic!("{why}; kept as {}", file.display());
    }
}

#[test]
fn every_stream_obeys_the_laws() {
    replay("streams", judge_stream);
    search("streams", judge_stream, 3_000);
}

#[test]
fn every_report_obeys_the_laws() {
    replay("usage", judge_usage);
    search("usage", judge_usage, 20_000);
}
