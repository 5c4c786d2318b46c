//! One logical request: up to three attempts, one answer.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::Instant;

use super::pool::{ProviderBody, Unanswered};
use super::{Upstream, feedback, hygiene, retry};
use crate::node::Guard;
use crate::telemetry::Metrics;

/// What goes to the provider.
pub struct Outbound {
    /// The method.
    pub method: Method,
    /// Path and query, below the provider's base.
    pub path_and_query: String,
    /// End-to-end headers: see [`super::hygiene::outbound`].
    pub headers: HeaderMap,
    /// The body. Kept, so that it can be sent again.
    pub body: Bytes,
    /// When the whole exchange, its attempts and its answer, has to be over.
    pub deadline: Instant,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The node lacks something, such as the provider's secret. Nothing was sent.
    NotConfigured(String),
    /// No connection could be made. Nothing was sent.
    Unreachable(String),
    /// The connection broke before an answer began. The provider may bill.
    Broken(String),
    /// No answer began in time. The provider may bill.
    TimedOut,
}

/// Sends `outbound` to `upstream`, and again after a failure that is the provider's own, as long as attempts are left and nothing of
/// an answer has been passed on. The last answer is returned whatever its status.
///
/// `guard` is told of each attempt before it is made, so that a caller who vanishes meanwhile is charged for what may be billed.
///
/// # Errors
/// No answer began: see [`Failure`].
pub async fn send(
    guard: &mut Guard,
    metrics: &Metrics,
    upstream: &Upstream,
    outbound: &Outbound,
) -> Result<Response<ProviderBody>, Failure> {
    let mut attempt = 1;
    loop {
        let outcome = once(guard, upstream, outbound).await;
        count(metrics, upstream, &outcome);
        let asked = match &outcome {
            Ok(answer) if retry::worth_retrying(answer.status()) => {
                retry::retry_after(answer.headers(), crate::clock::wall_now())
            }
            Err(Failure::Unreachable(_)) => None,
            _ => return outcome,
        };
        let wait = retry::wait(attempt, asked, rand::random());
        let in_time = |wait: &Duration| crate::clock::timer_now() + *wait < outbound.deadline;
        let wait = wait.filter(|_| attempt < upstream.max_attempts).filter(in_time);
        let Some(wait) = wait else { return outcome };
        tokio::time::sleep(wait).await;
        if let Err(denial) = guard.pay_again().await {
            tracing::debug!(provider = upstream.name, ?denial, "no further attempt: its pool does not pay");
            metrics.attempts(&upstream.name, "not_paid").inc();
            return outcome;
        }
        // The failed answer's body is not read: unless it is there already, its connection is given up rather than drained.
        drop(outcome);
        attempt += 1;
    }
}

async fn once(
    guard: &mut Guard,
    upstream: &Upstream,
    outbound: &Outbound,
) -> Result<Response<ProviderBody>, Failure> {
    let request = prepare(guard, upstream, outbound).map_err(Failure::NotConfigured)?;
    guard.sending();
    let patience = outbound.deadline.min(crate::clock::timer_now() + upstream.timeouts.first_byte);
    let answer = tokio::time::timeout_at(patience, upstream.client.request(request)).await;
    match answer {
        Ok(Ok(mut answer)) => {
            guard.answered(answer.status().as_u16());
            let said = feedback::of(answer.status(), answer.headers(), crate::clock::wall_now());
            said.into_iter().for_each(|said| guard.heard(said));
            if hygiene::length_is_said_twice(answer.headers()) {
                answer.body_mut().is_the_last();
            }
            Ok(answer)
        }
        Ok(Err(error @ Unanswered::NotConnected(_))) => {
            guard.not_sent();
            Err(Failure::Unreachable(causes(&error)))
        }
        Ok(Err(error @ Unanswered::Broken(_))) => Err(Failure::Broken(causes(&error))),
        Err(_elapsed) => Err(Failure::TimedOut),
    }
}

fn count<B>(metrics: &Metrics, upstream: &Upstream, outcome: &Result<Response<B>, Failure>) {
    let outcome = match outcome {
        Ok(answer) if answer.status() == StatusCode::OK => {
            upstream.answered_200.get_or_init(|| metrics.attempts(&upstream.name, "200")).inc();
            return;
        }
        Ok(answer) => answer.status().as_str().to_owned(),
        Err(Failure::NotConfigured(_)) => "not_configured".to_owned(),
        Err(Failure::Unreachable(_)) => "unreachable".to_owned(),
        Err(Failure::Broken(_)) => "broken".to_owned(),
        Err(Failure::TimedOut) => "timed_out".to_owned(),
    };
    metrics.attempts(&upstream.name, &outcome).inc();
}

fn prepare(guard: &Guard, upstream: &Upstream, outbound: &Outbound) -> Result<Request<Full<Bytes>>, String> {
    let mut request = Request::new(Full::new(outbound.body.clone()));
    *request.method_mut() = outbound.method.clone();
    *request.uri_mut() = upstream.uri(&outbound.path_and_query)?;
    let headers = request.headers_mut();
    *headers = outbound.headers.clone();
    if let Some((name, value)) = upstream.credential()? {
        headers.insert(name.clone(), value.clone());
    }
    if let Ok(id) = HeaderValue::try_from(guard.id().to_string()) {
        headers.insert("x-tollgate-decision", id);
    }
    Ok(request)
}

/// An error with its causes, on one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        line.push_str(": ");
        line.push_str(&cause.to_string());
        next = cause.source();
    }
    line
}
