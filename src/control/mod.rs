//! What all nodes agree on beside who owns what: the policy, the keys, the pools and the budgets. The replicated half of the limiter:
//! (state, place in the log, command) → answer.
//!
//! The cluster has it applied on every node in the order of one log, and puts it into its snapshots ([`Agreed`]); a node that is its own
//! cluster has the same log with nobody else in it. What a document *says* is not known here: whoever proposes one has read and
//! checked it, and `apply` only stores it, or two versions of this program would read the same log in two ways. For the same reason
//! a command carries all that its effect depends on: the proposer's wall clock, and of a policy what other parts need of it.
//!
//! In reading order: [`policy`] (the documents, by version), [`keys`], [`exceptions`] (tenants suspended, limits overridden), [`pool`] and [`budget`], which owners' purses
//! ([`crate::limit::Purse`]) draw from; [`escrow`] (what is said to both), [`terms`] (what a policy means for both), [`period`] (the
//! calendar), [`price`] (what usage costs), [`codec`] (bytes).
//!
//! Laws:
//! - deterministic: the same log gives the same value; a snapshot and the entries after it give what the whole log gives;
//! - a refused command changes nothing;
//! - one [`Control::version`] for all that every node must have in force: it grows by one with each policy, each change of a key and each
//!   exception that begins or ends.
//!   A command names the version it was checked against, and is refused under any other ([`Refusal::Stale`]): so whatever was found
//!   good together is in force together;
//! - everything is bounded: [`policy::VERSIONS_MAX`], [`policy::BYTES_MAX`], [`keys::KEYS_MAX`], [`keys::SECRETS_MAX`],
//!   [`keys::REVOKED_MAX`], [`exceptions::SUSPENDED_MAX`], [`exceptions::OVERRIDES_MAX`], and a command by what an entry takes.
//!
//! **A part** (the pools, the budgets) is a [`Part`]: a field of [`Control`] in an `Arc` (a fork must be cheap: `Arc::make_mut`), a
//! variant of [`escrow::Step`] and of [`escrow::Stepped`], and a line in each of `Control`'s ways to tell its parts: apply, fenced,
//! configure. What it needs of a policy goes into [`policy::Settings`], compiled by the proposer. Its commands do not make a new
//! version. What only a leader may propose comes from [`tollgate_cluster::shards::Host::govern`], which also says what every session
//! has in force: what one gains by another's loss starts when that has reached the version it came with.
//!
//! Never here: clocks, I/O, randomness, floats, iteration over a hash map, the text of a document.

pub mod budget;
pub mod codec;
pub mod escrow;
pub mod exceptions;
pub mod keys;
pub mod period;
pub mod policy;
pub mod pool;
pub mod price;
pub mod terms;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tollgate_cluster::agreed::{Agreed, At};
use tollgate_cluster::authority::Standing;
use tollgate_cluster::id::{NodeId, SessionId, Version};
use tollgate_cluster::mutant;

use budget::{BudgetRefusal, Budgets};
use escrow::{Standings, Step, Stepped};
use exceptions::Exceptions;
use keys::Keys;
use policy::History;
use pool::Pools;

/// The replicated state. Clones are cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    version: u64,
    policy: Arc<History>,
    keys: Arc<Keys>,
    exceptions: Arc<Exceptions>,
    pools: Arc<Pools>,
    budgets: Arc<Budgets>,
    /// The life of a node that is its own cluster.
    alone: Option<SessionId>,
}

/// A part of the state that hears of the log.
pub trait Part {
    /// What it needs of a policy.
    type Settings;
    /// What is said to it.
    type Command;
    /// What it answers.
    type Answer;

    /// Does what the command says, or refuses it whole.
    fn apply(&mut self, at: &At<'_>, standings: Standings<'_>, command: Self::Command) -> Self::Answer;

    /// A policy with these settings is agreed on, in this very entry.
    fn configure(&mut self, at: &At<'_>, settings: &Self::Settings);

    /// `session` is over, in this very entry: what it was given and has not reported is lost.
    fn fenced(&mut self, at: &At<'_>, session: SessionId);

    /// `node` is a member no more, in this very entry.
    fn removed(&mut self, at: &At<'_>, node: NodeId);
}

/// What is said to the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Another policy.
    Policy(policy::Commit),
    /// A change of a key.
    Key(keys::Commit),
    /// A change of what is excepted from the policy.
    Exception(exceptions::Commit),
    /// Overrides whose time is over end.
    Lapse,
    /// What sessions draw and report, and what else concerns pools and budgets. It makes no version.
    Escrow(Vec<Step>),
}

/// What the state answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is done, and makes this version.
    Done {
        /// The version that every node now puts in force.
        version: u64,
    },
    /// It was so already: the policy says just that since this version.
    Already {
        /// Which.
        version: u64,
    },
    /// Nothing has changed.
    Refused(Refusal),
    /// Of each step of [`Command::Escrow`], what came of it.
    Escrow(Vec<Stepped>),
    /// It was written by another version of this program.
    Unreadable,
}

/// Why a command changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// It was checked against what is no longer agreed on. Whoever proposed it checks again.
    #[error("it was checked against version {basis}, and version {ours} is agreed on by now: try again")]
    Stale {
        /// What it was checked against.
        basis: u64,
        /// What is agreed on.
        ours: u64,
    },
    /// The policy is not the one that was to be replaced.
    #[error("{}", in_words(*expected, *ours))]
    Expected {
        /// The version that was to be replaced; 0: none.
        expected: u64,
        /// The version that the policy has; 0: none.
        ours: u64,
    },
    /// There is such a key.
    #[error("tenant {tenant} has a key {label:?} already: choose another label, or rotate that one")]
    KeyExists {
        /// Whose.
        tenant: String,
        /// Its label.
        label: String,
    },
    /// The hash is another key's.
    #[error("this hash is that of key {label:?} of tenant {tenant}: make a new key")]
    HashTaken {
        /// Whose.
        tenant: String,
        /// Its label.
        label: String,
    },
    /// There is no such key.
    #[error("tenant {tenant} has no key {label:?} that was made by `tollgate keys create`")]
    NoSuchKey {
        /// Whose.
        tenant: String,
        /// Its label.
        label: String,
    },
    /// It is so already.
    #[error("{0}")]
    NoChange(String),
    /// There is no room.
    #[error("{what}: {most} is the most")]
    TooMany {
        /// Of what, and what to do.
        what: String,
        /// The bound.
        most: u64,
    },
}

fn in_words(expected: u64, ours: u64) -> String {
    match (expected, ours) {
        (0, ours) => {
            format!("there is a policy already, of version {ours}: give --expect {ours} to replace it")
        }
        (expected, 0) => {
            format!("version {expected} was to be replaced, but there is no policy yet: give --expect 0")
        }
        (expected, ours) => format!(
            "version {expected} was to be replaced, but the policy is of version {ours}: look at it with `tollgate policy show`, then give --expect {ours}"
        ),
    }
}

impl Control {
    /// Grows by one with every policy and every change of a key; 0 before the first.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The policies.
    #[must_use]
    pub fn policy(&self) -> &History {
        &self.policy
    }

    /// The keys that are agreed on beside those of the policy.
    #[must_use]
    pub const fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    /// What is excepted from the policy.
    #[must_use]
    pub const fn exceptions(&self) -> &Arc<Exceptions> {
        &self.exceptions
    }

    /// What owners draw from for the accounts of providers.
    #[must_use]
    pub const fn pools(&self) -> &Arc<Pools> {
        &self.pools
    }

    /// What owners draw from for what a period may use.
    #[must_use]
    pub const fn budgets(&self) -> &Arc<Budgets> {
        &self.budgets
    }

    /// Does what `command` says.
    pub fn obey(&mut self, at: &At<'_>, command: Command) -> Answer {
        self.settle_down(at);
        let next = self.version + 1;
        let done = match command {
            Command::Escrow(steps) => {
                return Answer::Escrow(steps.into_iter().map(|step| self.step(at, step)).collect());
            }
            Command::Policy(commit) => {
                if let Some(version) = self.policy.is_already(&commit) {
                    return Answer::Already { version };
                }
                let checked = self.checked(commit.basis).and_then(|()| self.policy.admits(&commit));
                checked.map(|()| {
                    self.configure(at, &commit.settings);
                    Arc::make_mut(&mut self.policy).push(next, commit);
                })
            }
            Command::Key(commit) => {
                let checked = self.checked(commit.basis);
                checked.and_then(|()| Arc::make_mut(&mut self.keys).apply(next, commit))
            }
            Command::Exception(commit) => {
                let checked = self.checked(commit.basis);
                checked.and_then(|()| Arc::make_mut(&mut self.exceptions).apply(at.time, next, commit))
            }
            // Whoever proposes it may be late or early: what it does depends on the log's time alone.
            Command::Lapse if !self.exceptions.has_lapsed(at.time) => {
                return Answer::Already { version: self.version };
            }
            Command::Lapse => {
                Arc::make_mut(&mut self.exceptions).lapse(at.time);
                Ok(())
            }
        };
        match done {
            Ok(()) => {
                self.version = next;
                Answer::Done { version: next }
            }
            Err(refusal) => Answer::Refused(refusal),
        }
    }

    fn checked(&self, basis: u64) -> Result<(), Refusal> {
        if basis == self.version { Ok(()) } else { Err(Refusal::Stale { basis, ours: self.version }) }
    }

    fn step(&mut self, at: &At<'_>, step: Step) -> Stepped {
        let alone = self.alone;
        let living = |session| alone.filter(|alone| *alone == session).map(|_| Standing::Serving);
        let standings = |session| at.authority.standing(session).or_else(|| living(session));
        match step {
            Step::Pool(command) => {
                Stepped::Pool(Part::apply(Arc::make_mut(&mut self.pools), at, &standings, command))
            }
            Step::Budget(command) if command.is_led() => Stepped::Budget(Err(BudgetRefusal::NotLed)),
            Step::Budget(command) => {
                Stepped::Budget(Part::apply(Arc::make_mut(&mut self.budgets), at, &standings, command))
            }
            Step::Led { term, command } => {
                let now = at.position.term;
                Stepped::Budget(if now == term || mutant::is("decision_outlives_term") {
                    Part::apply(Arc::make_mut(&mut self.budgets), at, &standings, command)
                } else {
                    Err(BudgetRefusal::NotLed)
                })
            }
            Step::Live(session) => Stepped::Live(self.live(at, session)),
        }
    }

    fn live(&mut self, at: &At<'_>, session: SessionId) -> bool {
        if !at.authority.nodes().is_empty() {
            return false;
        }
        if let Some(before) = self.alone.replace(session).filter(|before| *before != session) {
            self.end(at, before);
        }
        true
    }

    /// A node that was its own cluster has founded one: its last life there is over.
    fn settle_down(&mut self, at: &At<'_>) {
        if !at.authority.nodes().is_empty()
            && let Some(session) = self.alone.take()
        {
            self.end(at, session);
        }
    }

    fn configure(&mut self, at: &At<'_>, settings: &policy::Settings) {
        Arc::make_mut(&mut self.pools).configure(at, settings);
        Arc::make_mut(&mut self.budgets).configure(at, settings);
    }

    fn end(&mut self, at: &At<'_>, session: SessionId) {
        Arc::make_mut(&mut self.pools).fenced(at, session);
        Arc::make_mut(&mut self.budgets).fenced(at, session);
    }
}

impl Agreed for Control {
    fn apply(&mut self, at: At<'_>, command: &[u8]) -> Vec<u8> {
        let answer = match codec::read_command(command) {
            Ok(command) => self.obey(&at, command),
            Err(_unreadable) => Answer::Unreadable,
        };
        codec::answer(&answer)
    }

    fn fenced(&mut self, at: At<'_>, session: SessionId) {
        self.end(&at, session);
    }

    fn removed(&mut self, _at: At<'_>, _node: NodeId) {}

    fn version(&self) -> Version {
        Version(self.version)
    }

    fn fork(&self) -> Arc<dyn Agreed> {
        Arc::new(self.clone())
    }

    fn written(&self) -> Vec<u8> {
        codec::state(self)
    }

    fn restored(&self, bytes: &[u8]) -> Result<Arc<dyn Agreed>, String> {
        let read = codec::read_state(bytes).map_err(|unreadable| unreadable.to_string())?;
        Ok(Arc::new(read))
    }
}
