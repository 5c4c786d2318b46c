//! What was used, over all nodes: each holds the rows of the requests that it was asked, so each is asked for its own, page by page.
//!
//! Law: a node that does not answer is named, never passed over: what is shown without it says so.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_cluster::id::NodeId;

use super::{Admin, json_page, problem};
use crate::ledger::codec;
use crate::ledger::exchange::{Answer, Cursor, Filter, Question, Want};
use crate::ledger::rollup::{By, Rollup, Sums};
use crate::limit::Name;

/// How long one node may take for one page.
const PAGE: Duration = Duration::from_secs(10);
/// How long one answer may be made up of pages. Whoever has more to read is told where to go on, or to ask for less.
const WHOLE: Duration = Duration::from_secs(20);

/// A question in an address.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    from: Option<String>,
    to: Option<String>,
    tenant: Option<String>,
    by: Option<String>,
    cursor: Option<String>,
}

impl Asked {
    fn filter(&self) -> Result<Filter, Box<Response>> {
        let time = |name: &str, text: &Option<String>, otherwise| match text.as_deref().map(read_time) {
            None => Ok(otherwise),
            Some(Some(at)) => Ok(at.as_millisecond()),
            Some(None) => {
                let message =
                    format!("`{name}` is no time: write 2026-11-30 (midnight, UTC) or 2026-11-30T12:00:00Z.");
                Err(Box::new(problem(StatusCode::BAD_REQUEST, "invalid_request", &message)))
            }
        };
        Ok(Filter {
            from_ms: time("from", &self.from, i64::MIN)?,
            to_ms: time("to", &self.to, i64::MAX)?,
            tenant: self.tenant.as_deref().map(Name::from),
        })
    }
}

/// A day in UTC, or an instant.
fn read_time(text: &str) -> Option<Timestamp> {
    let day = || text.parse::<jiff::civil::Date>().ok()?.to_zoned_datetime(TimeZone::UTC).ok();
    text.parse().ok().or_else(|| day().map(|day| day.timestamp()))
}

/// `GET /v1/usage`: sums by tenant, model, key or day.
pub(super) async fn sums(State(admin): State<Arc<Admin>>, Query(asked): Query<Asked>) -> Response {
    let filter = match asked.filter() {
        Ok(filter) => filter,
        Err(refusal) => return *refusal,
    };
    let Some(by) = By::parse(asked.by.as_deref().unwrap_or("tenant")) else {
        let message = "`by` is one of tenant, model, key and day.";
        return problem(StatusCode::BAD_REQUEST, "invalid_request", message);
    };
    let deadline = crate::clock::timer_now() + WHOLE;
    let (mut whole, mut missing, mut unreadable) = (Rollup::default(), Vec::new(), 0);
    for node in nodes(&admin) {
        let (mut of_node, mut cursor) = (Rollup::default(), Some(Cursor::default()));
        while let Some(at) = cursor {
            if crate::clock::timer_now() >= deadline {
                let message =
                    "There is too much to sum up in one answer: ask for a shorter time (`from`, `to`).";
                return problem(StatusCode::UNPROCESSABLE_ENTITY, "too_much", message);
            }
            let question = Question { filter: filter.clone(), want: Want::Sums(by), cursor: at };
            match ask(&admin, node, question).await {
                Ok(answer) => {
                    of_node.add(answer.sums);
                    unreadable += answer.unreadable;
                    cursor = answer.next;
                }
                Err(why) => {
                    // Half of a node's rows would be worse than none.
                    of_node = Rollup::default();
                    missing.push(json!({ "node": node.0, "why": why }));
                    break;
                }
            }
        }
        whole.add(of_node);
    }
    let mut total = Sums::default();
    let groups: Vec<Value> = whole
        .0
        .iter()
        .map(|(group, sums)| {
            total.add(sums);
            let mut line = json!(sums);
            line["group"] = json!(group);
            line
        })
        .collect();
    json_page(&json!({
        "by": by, "groups": groups, "total": total, "missing": missing, "unreadable": unreadable,
    }))
}

/// `GET /v1/usage/rows`: a page of rows, and where to go on.
pub(super) async fn rows(State(admin): State<Arc<Admin>>, Query(asked): Query<Asked>) -> Response {
    let filter = match asked.filter() {
        Ok(filter) => filter,
        Err(refusal) => return *refusal,
    };
    let Some((from, mut at)) = asked.cursor.as_deref().map_or(Some(BEGINNING), read_place) else {
        let message = "`cursor` is the `next` of another page, as it was.";
        return problem(StatusCode::BAD_REQUEST, "invalid_request", message);
    };
    let deadline = crate::clock::timer_now() + WHOLE;
    let mut missing = Vec::new();
    let (mut unreadable, nodes) = (0, nodes(&admin));
    for (place, node) in nodes.iter().copied().enumerate().filter(|(_, node)| *node >= from) {
        let after = nodes.get(place + 1).map(|next| write_place(*next, Cursor::default()));
        loop {
            let question = Question { filter: filter.clone(), want: Want::Rows, cursor: at };
            let answer = match ask(&admin, node, question).await {
                Ok(answer) => answer,
                Err(why) => {
                    missing.push(json!({ "node": node.0, "why": why }));
                    break;
                }
            };
            unreadable += answer.unreadable;
            let late = crate::clock::timer_now() >= deadline;
            if !answer.rows.is_empty() || late {
                let rows: Vec<Value> = answer.rows.iter().map(|row| row.to_json()).collect();
                let next = answer.next.map(|next| write_place(node, next)).or(after);
                return json_page(
                    &json!({ "rows": rows, "next": next, "missing": missing, "unreadable": unreadable }),
                );
            }
            match answer.next {
                Some(next) => at = next,
                None => break,
            }
        }
        at = Cursor::default();
    }
    json_page(&json!({ "rows": [], "next": null, "missing": missing, "unreadable": unreadable }))
}

const BEGINNING: (NodeId, Cursor) = (NodeId(0), Cursor { segment: 0, offset: 0 });

fn write_place(node: NodeId, Cursor { segment, offset }: Cursor) -> String {
    format!("{}.{segment}.{offset}", node.0)
}

fn read_place(text: &str) -> Option<(NodeId, Cursor)> {
    let numbers: Vec<u64> = text.split('.').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    match numbers.as_slice() {
        [node, segment, offset] => Some((NodeId(*node), Cursor { segment: *segment, offset: *offset })),
        _ => None,
    }
}

/// The members, in the order of their numbers; of a node alone, itself.
fn nodes(admin: &Admin) -> Vec<NodeId> {
    let facts = admin.membership.as_ref().and_then(|membership| membership.member().shards().facts());
    facts.map_or_else(|| vec![NodeId(1)], |facts| facts.authority.nodes().keys().copied().collect())
}

async fn ask(admin: &Admin, node: NodeId, question: Question) -> Result<Answer, String> {
    let member = admin.membership.as_ref().map(|membership| membership.member());
    match member.filter(|member| member.node() != Some(node)) {
        None => {
            let ledger = admin.node.ledger().cloned().ok_or("it keeps no usage ledger")?;
            let reading = tokio::task::spawn_blocking(move || ledger.answer(&question));
            reading.await.map_err(|_| "it failed to read its ledger".to_owned())
        }
        Some(member) => {
            let question = codec::question(&question).ok_or("the question is too long")?;
            let answer = member.look_up(node, question, PAGE).await.map_err(|error| error.to_string())?;
            let unread = "it keeps no usage ledger, or is of another version";
            codec::read_answer(&answer).map_err(|_| unread.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_places_are_read_as_they_are_written() {
        let at = |text: &str| read_time(text).map(|at| at.to_string());
        assert_eq!(at("2026-11-30").as_deref(), Some("2026-11-30T00:00:00Z"));
        assert_eq!(at("2026-11-30T12:00:00+01:00").as_deref(), Some("2026-11-30T11:00:00Z"));
        assert_eq!((at("yesterday"), at("")), (None, None));
        let place = (NodeId(7), Cursor { segment: 3, offset: 4096 });
        assert_eq!(read_place(&write_place(place.0, place.1)), Some(place));
        for text in ["", "1", "1.2", "1.2.3.4", "1.2.x", "-1.2.3"] {
            assert_eq!(read_place(text), None, "{text}");
        }
    }
}
