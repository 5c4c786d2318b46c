//! Reading and counting a request of usual size: the part of every request's cost that grows with its body.

use bytes::Bytes;
use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use tollgate::estimate::{self, Encoding, TokenCache};
use tollgate::route::{Ask, Bounds, Endpoint};

fn main() {
    estimate::warm_up([Encoding::O200k, Encoding::Cl100k]);
    divan::main();
}

/// A chat of about `bytes`, in turns of about 300.
fn chat(bytes: usize) -> Bytes {
    let turn = |at: usize| {
        let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
        let text = "Where a tenant spends in one minute what it was given for two,\\nthe second is refused. "
            .repeat(3);
        format!(r#"{{"role":"{role}","content":"{at}. {text}"}}"#)
    };
    let turns: Vec<String> = (0..bytes.div_ceil(300)).map(turn).collect();
    let members = r#""temperature":0.7,"max_tokens":256,"user":"ada""#;
    Bytes::from(format!(r#"{{"model":"gpt-4o","stream":true,{members},"messages":[{}]}}"#, turns.join(",")))
}

#[divan::bench(args = [700, 16_000, 1_000_000])]
fn read(bencher: Bencher<'_, '_>, bytes: usize) {
    let (body, bounds) = (chat(bytes), Bounds::default());
    bencher
        .counter(BytesCount::new(body.len()))
        .bench(|| Ask::read(Endpoint::ChatCompletions, black_box(&body), &bounds).map(|ask| ask.choices));
}

#[divan::bench(args = [700, 16_000])]
fn count_first_time(bencher: Bencher<'_, '_>, bytes: usize) {
    let ask = Ask::read(Endpoint::ChatCompletions, &chat(bytes), &Bounds::default()).expect("a valid body");
    bencher
        .with_inputs(|| TokenCache::new(7, TokenCache::CAPACITY))
        .bench_refs(|cache| estimate::input_tokens(black_box(&ask), Encoding::O200k, cache));
}

#[divan::bench(args = [700, 16_000])]
fn count_again(bencher: Bencher<'_, '_>, bytes: usize) {
    let ask = Ask::read(Endpoint::ChatCompletions, &chat(bytes), &Bounds::default()).expect("a valid body");
    let cache = TokenCache::new(7, TokenCache::CAPACITY);
    bencher.bench(|| estimate::input_tokens(black_box(&ask), Encoding::O200k, &cache));
}

#[divan::bench]
fn patch(bencher: Bencher<'_, '_>) {
    let body = chat(700);
    let ask = Ask::read(Endpoint::ChatCompletions, &body, &Bounds::default()).expect("a valid body");
    bencher.bench(|| ask.patched(black_box(&body), Some("gpt-4o-2024-11-20"), true));
}
