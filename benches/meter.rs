//! What the meter costs per streamed chunk of the usual size, one event of about 220 bytes.

use std::sync::Arc;

use bytes::Bytes;
use divan::Bencher;
use divan::counter::ItemsCount;
use tollgate::meter::{StreamMeter, StreamMeterOptions, usage_of_body};
use tollgate::route::Dialect;

/// As many chunks as an answer of some length has.
const CHUNKS: usize = 1000;

fn main() {
    divan::main();
}

fn meter(dialect: Dialect, drop_usage_chunk: bool) -> StreamMeter {
    StreamMeter::new(StreamMeterOptions {
        shape: dialect.into(),
        expected_choices: 1,
        drop_usage_chunk,
        count: Arc::new(|text| text.len() as u64 / 4),
        phase: 0,
    })
}

fn openai_chunk() -> Bytes {
    Bytes::from_static(br#"data: {"id":"chatcmpl-B9MBs8CjcvOU2jLn4n570","object":"chat.completion.chunk","created":1741569952,"model":"gpt-4o-mini","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}],"usage":null}

"#)
}

fn anthropic_chunk() -> Bytes {
    Bytes::from_static(
        b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" word\"}}\n\n",
    )
}

fn feed_chunks(bencher: Bencher, dialect: Dialect, drop_usage_chunk: bool, pieces: &[Bytes]) {
    bencher
        .counter(ItemsCount::new(CHUNKS))
        .with_inputs(|| meter(dialect, drop_usage_chunk))
        .bench_local_values(|mut meter| {
            for _ in 0..CHUNKS {
                for piece in pieces {
                    divan::black_box(meter.feed(piece.clone()));
                }
            }
            meter
        });
}

#[divan::bench]
fn openai(bencher: Bencher) {
    feed_chunks(bencher, Dialect::OpenAi, false, &[openai_chunk()]);
}

#[divan::bench]
fn openai_dropping_the_usage_chunk(bencher: Bencher) {
    feed_chunks(bencher, Dialect::OpenAi, true, &[openai_chunk()]);
}

#[divan::bench]
fn openai_dropping_and_cut_in_two(bencher: Bencher) {
    let chunk = openai_chunk();
    feed_chunks(bencher, Dialect::OpenAi, true, &[chunk.slice(..100), chunk.slice(100..)]);
}

#[divan::bench]
fn anthropic(bencher: Bencher) {
    feed_chunks(bencher, Dialect::Anthropic, false, &[anthropic_chunk()]);
}

/// The usage at the end of an answer of 100 kB.
#[divan::bench]
fn whole_answer(bencher: Bencher) {
    let body = format!(
        r#"{{"choices":[{{"index":0,"message":{{"role":"assistant","content":"{}"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":19,"completion_tokens":25000,"total_tokens":25019}}}}"#,
        "word ".repeat(20_000)
    );
    bencher.bench_local(|| usage_of_body(Dialect::OpenAi, divan::black_box(body.as_bytes())));
}
