//! The lines of a batch's input file: each is a request of its own, to be read and counted like any other
//! (<https://platform.openai.com/docs/guides/batch>).

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Endpoint;

/// Lines in one file; the provider's own bound.
pub const LINES_MAX: usize = 50_000;

#[derive(Deserialize)]
struct Line<'l> {
    method: &'l str,
    url: &'l str,
    #[serde(borrow)]
    body: &'l RawValue,
}

/// The requests in a file, in order: the number of the line, from 1, its endpoint and its body; or what is wrong with it.
pub fn lines(file: &[u8]) -> impl Iterator<Item = Result<(usize, Endpoint, &[u8]), String>> {
    let lines = file.split(|byte| *byte == b'\n').enumerate();
    lines.filter(|(_, line)| !line.trim_ascii().is_empty()).map(|(at, line)| {
        let number = at + 1;
        if number > LINES_MAX {
            return Err(format!("the file has more than {LINES_MAX} lines"));
        }
        let line: Line<'_> = serde_json::from_slice(line)
            .map_err(|_| format!("line {number} is not a request with method, url and body"))?;
        let endpoint = [Endpoint::ChatCompletions, Endpoint::Completions, Endpoint::Embeddings]
            .into_iter()
            .find(|endpoint| endpoint.path() == line.url && line.method == "POST")
            .ok_or_else(|| format!("line {number} asks for something that is not served in batches"))?;
        Ok((number, endpoint, line.body.get().as_bytes()))
    })
}
