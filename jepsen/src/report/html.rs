//! The page: verdicts, the faults over what was admitted, refused and unanswered, latency, who decided for which shard, counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::checker::{Judgement, Outcome, Verdict, recoveries, silences};
use crate::history::{At, History, Outcome as Answer, SECOND};

/// The plots' width, in units of the drawing.
const WIDE: u64 = 1000;

const STYLE: &str = "body{font:14px/1.5 system-ui,sans-serif;max-width:1080px;margin:2em auto;padding:0 1em;color:#1c2733}\
h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}table{border-collapse:collapse;width:100%}\
td,th{padding:.25em .6em;border-bottom:1px solid #d9e0e6;text-align:left;vertical-align:top}svg{width:100%;height:auto;display:block}\
.valid{color:#1a7f4b;font-weight:600}.invalid{color:#c2261c;font-weight:700}.unknown{color:#9a6700;font-weight:600}\
code{overflow-wrap:anywhere}.key span{margin-right:1.2em}";

const COLOURS: [&str; 9] =
    ["#2f6fdf", "#e07b39", "#3a9a5b", "#a24fc4", "#c2a21c", "#d1495b", "#2ca6a4", "#7a6f5d", "#5b5b9a"];

/// The page of a run.
pub fn page(history: &History, judgements: &[Judgement], outcome: Outcome) -> String {
    let plan = &history.plan;
    let (begin, end) = history.span();
    let title = format!("{} · seed {} · {} nodes", plan.workload, plan.seed, plan.nodes);
    let mut page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>\
         <p class={}>{}</p><p>{} seconds, lease {} ms, {} attempts, {} faults. <code>{}</code></p>",
        match outcome {
            Outcome::Kept => "valid",
            Outcome::Broken => "invalid",
            Outcome::Inconclusive => "unknown",
        },
        outcome.words(),
        (end - begin) / SECOND,
        plan.lease / 1_000_000,
        history.attempts.len(),
        history.windows.len(),
        escaped(&plan.binary)
    );
    verdicts(&mut page, judgements);
    let axis = Axis { begin, span: (end - begin).max(1) };
    let _ = write!(page, "<h2>What callers saw</h2>");
    rates(&mut page, history, &axis);
    let _ = write!(page, "<h2>Latency of answers (ms, median and 99th of each second)</h2>");
    latency(&mut page, history, &axis);
    let _ = write!(page, "<h2>Who decided, shard by shard</h2>");
    ownership(&mut page, history, &axis);
    windows(&mut page, history, begin);
    counts(&mut page, history);
    page
}

/// From an instant to a place in the drawing.
struct Axis {
    begin: At,
    span: u64,
}

impl Axis {
    fn at(&self, at: At) -> u64 {
        u64::try_from(u128::from(at.saturating_sub(self.begin)) * u128::from(WIDE) / u128::from(self.span))
            .unwrap_or(WIDE)
            .min(WIDE)
    }

    fn seconds(&self) -> usize {
        (self.span / SECOND) as usize + 1
    }

    fn second(&self, at: At) -> usize {
        ((at.saturating_sub(self.begin)) / SECOND) as usize
    }
}

fn verdicts(page: &mut String, judgements: &[Judgement]) {
    let _ = write!(page, "<h2>Verdicts</h2><table>");
    for Judgement { guarantee, verdict } in judgements {
        let (word, why) = match verdict {
            Verdict::Valid(why) => ("valid", why),
            Verdict::Invalid(why) => ("invalid", why),
            Verdict::Unknown(why) => ("unknown", why),
        };
        let _ = write!(page, "<tr><td>{guarantee}<td class={word}>{word}<td>{}", escaped(why));
    }
    let _ = write!(page, "</table>");
}

/// Faults as grey columns, to be drawn under a plot.
fn shades(history: &History, axis: &Axis, high: u64) -> String {
    let mut shades = String::new();
    for window in &history.windows {
        let (from, to) = (axis.at(window.begin), axis.at(window.healed));
        let _ = write!(
            shades,
            "<rect x={from} y=0 width={} height={high} fill=#00000018><title>{}: {}</title></rect>",
            (to - from).max(2),
            window.nemesis,
            escaped(&window.what)
        );
    }
    shades
}

fn rates(page: &mut String, history: &History, axis: &Axis) {
    const HIGH: u64 = 220;
    let kinds = [
        ("admitted", "#1a7f4b", &[Answer::Admitted][..]),
        ("refused by a limit", "#2f6fdf", &[Answer::Limited, Answer::Duplicate][..]),
        (
            "unavailable, unknown or no connection",
            "#c2261c",
            &[Answer::Unavailable, Answer::Unknown, Answer::NotSent][..],
        ),
    ];
    let series: Vec<Vec<u64>> = kinds
        .iter()
        .map(|(_, _, outcomes)| {
            let mut counts = vec![0; axis.seconds()];
            for attempt in history.attempts.iter().filter(|attempt| outcomes.contains(&attempt.outcome)) {
                if let Some(count) = counts.get_mut(axis.second(attempt.com)) {
                    *count += 1;
                }
            }
            counts
        })
        .collect();
    let most = series.iter().flatten().copied().max().unwrap_or(1).max(1);
    let _ = write!(page, "<p class=key>");
    for (name, colour, _) in kinds {
        let _ = write!(page, "<span><b style=color:{colour}>━</b> {name}</span>");
    }
    let _ = write!(
        page,
        "<span>grey: a fault</span> (top: {most} a second)</p><svg viewBox=\"0 0 {WIDE} {HIGH}\">{}",
        shades(history, axis, HIGH)
    );
    for (series, (_, colour, _)) in series.iter().zip(kinds) {
        line(page, axis, series, most, HIGH, colour);
    }
    let _ = write!(page, "</svg>");
}

fn latency(page: &mut String, history: &History, axis: &Axis) {
    const HIGH: u64 = 160;
    let mut seconds: Vec<Vec<u64>> = vec![Vec::new(); axis.seconds()];
    for attempt in &history.attempts {
        if matches!(attempt.outcome, Answer::Admitted | Answer::Limited)
            && let Some(second) = seconds.get_mut(axis.second(attempt.com))
        {
            second.push((attempt.com - attempt.inv) / 1_000_000);
        }
    }
    for second in &mut seconds {
        second.sort_unstable();
    }
    let of = |percent: usize| -> Vec<u64> {
        seconds.iter().map(|second| second.get(second.len() * percent / 100).copied().unwrap_or(0)).collect()
    };
    let (middle, late) = (of(50), of(99));
    let most = late.iter().copied().max().unwrap_or(1).clamp(1, 3_000);
    let _ = write!(
        page,
        "<p>top: {most} ms</p><svg viewBox=\"0 0 {WIDE} {HIGH}\">{}",
        shades(history, axis, HIGH)
    );
    line(page, axis, &late, most, HIGH, "#e07b39");
    line(page, axis, &middle, most, HIGH, "#2f6fdf");
    let _ = write!(page, "</svg>");
}

fn line(page: &mut String, axis: &Axis, series: &[u64], most: u64, high: u64, colour: &str) {
    let _ = write!(page, "<polyline fill=none stroke={colour} stroke-width=1.5 points=\"");
    for (second, value) in series.iter().enumerate() {
        let (x, y) = (axis.at(axis.begin + second as u64 * SECOND), high - (value * high / most).min(high));
        let _ = write!(page, "{x},{y} ");
    }
    let _ = write!(page, "\"/>");
}

fn ownership(page: &mut String, history: &History, axis: &Axis) {
    const ROW: u64 = 12;
    let tenants: BTreeMap<u16, &str> =
        history.decided.iter().map(|decided| (decided.shard, &*decided.tenant)).collect();
    if tenants.is_empty() {
        let _ = write!(page, "<p>The owners kept no audit.</p>");
        return;
    }
    let nodes: BTreeSet<u8> = history.decided.iter().map(|decided| decided.node).collect();
    let _ = write!(page, "<p class=key>");
    for node in nodes {
        let _ = write!(page, "<span><b style=color:{}>■</b> n{node}</span>", colour(node));
    }
    let high = tenants.len() as u64 * ROW;
    let _ =
        write!(page, "<span>one row for each tenant's shard</span></p><svg viewBox=\"0 0 {WIDE} {high}\">");
    let mut cells: BTreeMap<(u16, u64), u8> = BTreeMap::new();
    for decided in &history.decided {
        cells.insert((decided.shard, axis.at(decided.lo)), decided.node);
    }
    for (row, (shard, tenant)) in tenants.iter().enumerate() {
        let mut runs: Vec<(u64, u64, u8)> = Vec::new();
        for ((_, x), node) in cells.range((*shard, 0)..=(*shard, WIDE)) {
            match runs.last_mut() {
                Some((_, to, of)) if of == node && *x <= *to + 6 => *to = *x,
                _ => runs.push((*x, *x, *node)),
            }
        }
        for (from, to, node) in runs {
            let _ = write!(
                page,
                "<rect x={from} y={} width={} height={} fill={}><title>{tenant}, shard {shard}: n{node}</title></rect>",
                row as u64 * ROW + 1,
                (to - from).max(1),
                ROW - 2,
                colour(node)
            );
        }
    }
    let _ = write!(page, "{}</svg>", shades(history, axis, high));
}

fn colour(node: u8) -> &'static str {
    COLOURS[usize::from(node.saturating_sub(1)) % COLOURS.len()]
}

fn windows(page: &mut String, history: &History, begin: At) {
    let _ = write!(
        page,
        "<h2>Faults</h2><table><tr><th>at<th>fault<th>what<th>lasted<th>answered again after<th>silence elsewhere<th>note"
    );
    let millis =
        |took: Option<u64>| took.map_or("not seen".to_owned(), |took| format!("{} ms", took / 1_000_000));
    let times = recoveries(history).into_iter().zip(silences(history));
    for (window, (took, silent)) in history.windows.iter().zip(times) {
        let (took, silent) = (millis(took), millis(silent));
        let _ = write!(
            page,
            "<tr><td>{} s<td>{}<td>{}<td>{} ms<td>{took}<td>{silent}<td>{}",
            window.begin.saturating_sub(begin) / SECOND,
            window.nemesis,
            escaped(&window.what),
            (window.healed - window.begin) / 1_000_000,
            escaped(&window.note)
        );
    }
    let _ = write!(page, "</table>");
}

fn counts(page: &mut String, history: &History) {
    let mut codes: BTreeMap<(Answer, &str), u64> = BTreeMap::new();
    for attempt in &history.attempts {
        *codes.entry((attempt.outcome, &attempt.code)).or_default() += 1;
    }
    let _ = write!(page, "<h2>Counts</h2><table><tr><th>outcome<th>what came<th>how often");
    for ((outcome, code), count) in codes {
        let _ = write!(page, "<tr><td>{outcome:?}<td>{}<td>{count}", escaped(code));
    }
    let _ = write!(
        page,
        "<tr><td>at the provider<td>arrivals<td>{}<tr><td>at owners<td>decisions<td>{}<tr><td>at owners<td>ends<td>{}</table>",
        history.arrivals.len(),
        history.decided.len(),
        history.ended.len()
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
