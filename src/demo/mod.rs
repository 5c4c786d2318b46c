//! The demo: a cluster and the simulated provider, a compressed minute of real traffic, and books that anyone can check.
//!
//! In reading order: `stage` (what is started), `nodes` (the cluster among it), `receiver` (whom alerts are told), `minute` and `scenes` (what
//! is asked), `callers` (who ask, and note what came back), `operator` (who runs the nodes meanwhile), `evidence` (what the nodes and the provider say afterwards), `audit` (whether the two agree, request by request), `report` (what a
//! person or a program reads), `encore` (what to try by hand).
//!
//! Laws:
//! - **From outside.** Requests, an operator's hands, decisions, metrics and bills go through HTTP, as anyone else's would. The one look inside is at
//!   the owners' own books, which the metrics are compared with.
//! - **No node is special.** Requests go to one node after the other, whoever makes them and whoever owns their tenants.
//! - **No kindness.** Whatever does not add up is a problem that is printed with its id, and one problem makes the demo fail.
//! - **The same play each time.** What is asked is a function of the sample alone; only the clock decides what a limit refuses.
//!
//! Never here: a number that was not read from a node, the provider or a caller.

mod audit;
mod callers;
mod client;
pub mod encore;
mod evidence;
mod minute;
mod nodes;
mod operator;
mod receiver;
mod report;
mod scenes;
mod stage;
mod tables;

use std::sync::Arc;
use std::time::Duration;

use callers::Callers;
use operator::Operator;
pub use report::Report;
pub use stage::Stage;

/// A play that has not ended by then has a bug, and ends here with a problem.
const CURTAIN: Duration = Duration::from_secs(45);

/// Plays the minute, compressed into `length`, and the scenes beside it; then reads the books.
///
/// # Errors
/// A node or the provider cannot be asked what happened. What they say is in the report, problems among it.
pub async fn play(stage: &Stage, length: Duration) -> Result<Report, String> {
    let began = crate::clock::now();
    let minute = minute::requests()?;
    let callers = Arc::new(Callers::new(stage, minute.len()));
    let operator = Operator::new(stage);
    let both = async {
        tokio::join!(minute::play(callers.clone(), minute, length), scenes::play(&callers, &operator));
    };
    if tokio::time::timeout(CURTAIN, both).await.is_err() {
        callers.complain(format!("the play had not ended after {} s", CURTAIN.as_secs()));
    }
    let (seen, complaints) = callers.finish();
    let evidence = evidence::gather(stage, seen, complaints).await?;
    let took = crate::clock::now().since(began);
    Ok(audit::audit(&evidence, took))
}
