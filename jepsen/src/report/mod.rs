//! What a run says to a person: a text, and a page of HTML that needs nothing beside it. Both are in the run's folder, with all they rest on.

mod html;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::checker::coverage::admissions;
use crate::checker::{Judgement, Outcome, Verdict, judge, outcome, recoveries, silences};
use crate::history::{History, SECOND};

/// Judges the history in `folder`, writes the report there, and returns what it comes to with the text.
///
/// # Errors
/// The folder cannot be written.
pub fn write(folder: &Path, history: &History) -> Result<(Outcome, String), String> {
    let judgements = judge(history);
    let outcome = outcome(&judgements);
    let text = text(history, &judgements, outcome, folder);
    let page = html::page(history, &judgements, outcome);
    let verdicts = serde_json::to_string_pretty(&judgements).map_err(|error| error.to_string())?;
    for (name, content) in [("report.txt", &text), ("report.html", &page), ("verdicts.json", &verdicts)] {
        fs::write(folder.join(name), content).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    Ok((outcome, text))
}

/// The middle one and the longest of these times, in milliseconds.
fn middle_and_longest(times: Vec<Option<u64>>) -> Option<(u64, u64)> {
    let mut times: Vec<u64> = times.into_iter().flatten().map(|took| took / 1_000_000).collect();
    times.sort_unstable();
    Some((*times.get(times.len() / 2)?, *times.last()?))
}

fn text(history: &History, judgements: &[Judgement], outcome: Outcome, folder: &Path) -> String {
    let mut text = String::new();
    let plan = &history.plan;
    let (begin, end) = history.span();
    let _ = writeln!(
        text,
        "seed={} nodes={} lease={}ms workload={} seconds={} faults={} admissions={} attempts={}",
        plan.seed,
        plan.nodes,
        plan.lease / 1_000_000,
        plan.workload,
        (end - begin) / SECOND,
        history.windows.len(),
        admissions(history),
        history.attempts.len()
    );
    // From the end of a fault until all is answered again, and what it cost those who ask at nodes that it does not strike.
    for (name, times) in [("recovery", recoveries(history)), ("silence elsewhere", silences(history))] {
        if let Some((middle, longest)) = middle_and_longest(times) {
            let _ = writeln!(text, "{name} p50={middle}ms max={longest}ms");
        }
    }
    for Judgement { guarantee, verdict } in judgements {
        let (word, why) = match verdict {
            Verdict::Valid(why) => ("valid  ", why),
            Verdict::Invalid(why) => ("INVALID", why),
            Verdict::Unknown(why) => ("unknown", why),
        };
        let _ = writeln!(text, "{word}  {guarantee:<26} {why}");
    }
    let _ = write!(text, "{}\n{}", outcome.words(), folder.join("report.html").display());
    text
}
