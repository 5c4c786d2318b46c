//! What is agreed on, in force on a node, or not.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tollgate_cluster::alone::Alone;
use tollgate_cluster::outside::OsEntropy;
use tollgate_cluster::store::twin::MemoryFolder;

use crate::clock::Clocks;
use crate::control::policy::{Commit, Origin, Settings};
use crate::control::{Command, Control, codec};
use crate::limit::{Amount, Options};
use crate::node::agreement::{Agreement, Disagreement, Proposal, Source, compressed};
use crate::node::{Asking, Node, Principal, Reserved, Snapshot};
use crate::policy::KeyHash;
use crate::route::Endpoint;

struct Stage {
    folder: MemoryFolder,
    alone: Arc<Alone>,
    agreement: Agreement,
}

impl Stage {
    /// A node that starts with what `folder` holds.
    async fn on(folder: MemoryFolder) -> Self {
        let control = Arc::new(Control::default());
        let alone = Alone::open(&folder, Arc::new(Clocks), &OsEntropy, control).await.unwrap();
        let alone = Arc::new(alone);
        let node = Node::alone(Snapshot::nothing(), Options::default(), Arc::new(Clocks));
        let agreement = Agreement::new(Arc::new(node), Source::Alone(alone.clone()));
        agreement.catch_up().await;
        Self { folder, alone, agreement }
    }

    async fn restart(self) -> Self {
        self.alone.close().await;
        let folder = self.folder.clone();
        drop(self);
        Self::on(folder).await
    }

    async fn propose(&self, text: &str, expect: Option<u64>) -> Result<u64, Disagreement> {
        let proposal = Proposal { text, name: "test", expect, origin: Origin::Operator, by: "a test" };
        self.agreement.propose(proposal).await.map(|agreed| agreed.version)
    }

    /// What a node of a later version of the program may have proposed.
    async fn propose_unread(&self, text: &str) {
        let commit = Commit {
            basis: self.agreement.control().version(),
            expect: None,
            document: compressed(text),
            digest: Sha256::digest(text).into(),
            origin: Origin::Operator,
            by: "another".to_owned(),
            wall_millis: 0,
            settings: Settings::default(),
        };
        self.alone.propose(codec::command(&Command::Policy(commit))).await.unwrap();
    }

    async fn admits(&self) -> bool {
        let node = self.agreement.node();
        let principal = Arc::new(Principal::new("acme".into(), "k".into(), None, "t".into(), Some(0)));
        let model = "model".into();
        let asking = Asking {
            id: node.new_id(),
            principal: &principal,
            endpoint: Endpoint::ChatCompletions,
            user: None,
            model_asked: "model",
            model: &model,
            provider: "simulated",
            estimate: Amount::new(1, 0),
            idempotency: None,
            lane: crate::limit::Lane::Regular,
        };
        matches!(node.reserve(asking).await, Reserved::Held(_))
    }
}

fn text(limits: &str) -> String {
    let hash = KeyHash::of(b"k");
    format!(
        "version: 1\nproviders: {{}}\npools: {{}}\nmodels: {{}}\ntiers: {{ t: {{ {limits} }} }}\ntenants: [ {{ id: acme, tier: t, keys: [ {{ label: k, hash: '{hash}' }} ] }} ]\n"
    )
}

#[tokio::test]
async fn a_version_that_cannot_be_read_leaves_the_last_one_in_force_and_the_node_not_ready() {
    let stage = Stage::on(MemoryFolder::new("newer")).await;
    assert!(stage.agreement.waiting_for().unwrap().contains("waiting for a policy"));
    assert_eq!(stage.propose(&text("requests_per_minute: 5"), Some(0)).await.unwrap(), 1);
    assert_eq!(stage.agreement.waiting_for(), None);
    stage.propose_unread("version: 99\nwhatever: else\n").await;
    stage.agreement.catch_up().await;
    let waiting = stage.agreement.waiting_for().unwrap();
    assert!(waiting.starts_with("version 2 of what is agreed on cannot be put in force here:"), "{waiting}");
    assert_eq!(stage.agreement.node().snapshot().version, 1);
    assert!(stage.admits().await, "a node alone goes on by what it has");
    // It cannot tell whether what is proposed goes together with what it cannot read.
    let refused = stage.propose(&text("requests_per_minute: 6"), None).await;
    assert!(matches!(refused, Err(Disagreement::Unavailable(_))), "{refused:?}");

    // Once there is one that it can read, all is well.
    stage.propose_unread(&text("requests_per_minute: 7")).await;
    stage.agreement.catch_up().await;
    assert_eq!((stage.agreement.waiting_for(), stage.agreement.node().snapshot().version), (None, 3));
}

#[tokio::test]
async fn a_limit_that_comes_back_starts_empty_on_a_node_that_was_not_there_when_it_went() {
    let limited = text("requests_per_minute: 5");
    let stage = Stage::on(MemoryFolder::new("remembers")).await;
    stage.propose(&limited, None).await.unwrap();
    assert!(stage.admits().await, "a limit that nobody had before starts full");
    stage.propose(&text("max_inflight: 100"), None).await.unwrap();
    let stage = stage.restart().await;
    assert!(stage.admits().await);
    assert_eq!(stage.propose(&limited, Some(2)).await.unwrap(), 3);
    assert!(!stage.admits().await);
}

#[tokio::test]
async fn a_document_that_no_entry_takes_is_refused_with_what_to_do() {
    let stage = Stage::on(MemoryFolder::new("large")).await;
    let keys: String = (0..60_000_u32)
        .map(|number| {
            format!(
                "{{ label: k{number}, hash: \"sha256:{}\" }},",
                hex::encode(Sha256::digest(number.to_le_bytes()))
            )
        })
        .collect();
    let long = text("requests_per_minute: 5").replace("keys: [ ", &format!("keys: [ {keys} "));
    let refused = stage.propose(&long, None).await.unwrap_err().to_string();
    assert!(refused.contains("bytes compressed") && refused.contains("tollgate keys create"), "{refused}");
    assert_eq!(stage.agreement.control().version(), 0);
}
