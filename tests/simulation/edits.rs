//! The policy, edited under load: one host tightens it and loosens it by turns, and all follow, some of them slowly.
//!
//! From when the editor was told that the tight policy is in force until it proposes the loose one, the tight one is what the history is
//! judged by. A loose one whose outcome is not known is refused later: it was made for a version that is gone by then.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;
use tollgate::control::policy::{Commit, Origin};
use tollgate::control::{Answer, Command, Control, codec, terms};
use tollgate::node::agreement::{compressed, succeed};
use tollgate::node::{Node, Tenants};
use tollgate_cluster::id::Version;
use tollgate_cluster::member::Member;

use super::history::{Event, Limit};
use super::host::{a_moment, below, policy_text};
use super::turmoil_world::SeededEntropy;
use super::world::{Phase, World};

fn control(member: &Member<Tenants>) -> Option<Control> {
    member.agreed()?.downcast::<Control>().cloned()
}

/// Puts in force on a host what is agreed on.
pub struct Follower {
    pub node: Arc<Node>,
    pub member: Arc<Member<Tenants>>,
}

impl Follower {
    pub async fn run(self, chance: SeededEntropy, cancel: CancellationToken) {
        let mut changed = self.member.changed();
        while !cancel.is_cancelled() {
            changed.mark_unchanged();
            let before = self.node.snapshot();
            if let Some(control) = control(&self.member).filter(|control| control.version() > before.version)
            {
                // As long as a large document takes to be read, and sometimes far longer than a lease: whoever lags so must not answer.
                let slow = below(&chance, 4) == 0;
                a_moment(&chance, if slow { 1_000..3_000 } else { 0..400 }).await;
                let next = succeed(&before, &control, self.node.now());
                self.node.apply(next.unwrap_or_else(|why| panic!("an own document: {why}")));
                self.member.refresh();
                continue;
            }
            if changed.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Edits the policy.
pub struct Editor {
    pub world: Arc<World>,
    pub host: usize,
    pub member: Arc<Member<Tenants>>,
}

impl Editor {
    pub async fn run(self, tight: Limit, chance: SeededEntropy, cancel: CancellationToken) {
        let mut is_tight = false;
        while self.world.phase() < Phase::Healed && !cancel.is_cancelled() {
            a_moment(&chance, 300..1_500).await;
            if is_tight {
                self.world.push(Event::Loose { at: self.now() });
            }
            let limit = if is_tight { self.world.plan.limit } else { tight };
            match self.propose(limit).await {
                Some(version) if !is_tight => {
                    let all_said_so = self.member.in_force_everywhere(Version(version)).await;
                    self.world.push(Event::Tight { at: self.now() });
                    let how =
                        if all_said_so { "tight: all have said so" } else { "tight: all leases are over" };
                    self.world.count(how, 1);
                    is_tight = true;
                }
                // Whatever came of it, it is not tight for sure.
                _ => is_tight = false,
            }
        }
    }

    /// Proposes the first policy, until there is one.
    pub async fn seed(self, chance: SeededEntropy, cancel: CancellationToken) {
        while !cancel.is_cancelled() {
            if control(&self.member).is_some_and(|control| control.version() > 0) {
                return;
            }
            // A calendar begins by the clocks of those who are there: where one is wrong, not by that alone.
            let members = self.member.shards().facts().map_or(0, |facts| facts.authority.nodes().len());
            if self.world.plan.budget.is_none() || members + 1 >= self.world.hosts.len() {
                self.propose(self.world.plan.limit).await;
            }
            a_moment(&chance, 50..150).await;
        }
    }

    fn now(&self) -> u64 {
        self.world.hosts[self.host].clock.true_now()
    }

    async fn propose(&self, limit: Limit) -> Option<u64> {
        let text = policy_text(&self.world, limit);
        let policy =
            tollgate::policy::parse(&text, "an edit").unwrap_or_else(|problems| panic!("{problems}"));
        let commit = Commit {
            basis: control(&self.member)?.version(),
            expect: None,
            document: compressed(&text),
            digest: Sha256::digest(&text).into(),
            origin: Origin::Operator,
            by: "the editor".to_owned(),
            wall_millis: 0,
            settings: terms::settings(&policy),
        };
        let answer = self.member.propose(codec::command(&Command::Policy(commit))).await.ok()?;
        match codec::read_answer(&answer) {
            Ok(Answer::Done { version } | Answer::Already { version }) => Some(version),
            _ => None,
        }
    }
}
