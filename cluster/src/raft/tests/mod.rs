//! Stories of Raft: several members in one process, on a network and disks in memory, under a clock that only moves when all wait.

mod cluster;
mod host;
mod stories;
mod trouble;

use std::sync::Arc;

use openraft::alias::CommittedLeaderIdOf;
use openraft::entry::RaftEntry as _;
use openraft::storage::{IOFlushed, RaftLogReader as _, RaftLogStorage as _, RaftStateMachine as _};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{RaftSnapshotBuilder as _, StorageError};

use tokio::task::JoinSet;

use self::cluster::{CLUSTER, Nobody, Seeded, TokioClock};
use self::host::Tally;
use super::log::Log;
use super::machine::Machine;
use super::types::{Entry, LogId, SnapshotMeta, Types, Vote};
use super::{Raft, RaftOptions};
use crate::agreed::Agreed as _;
use crate::authority::{Authority, Command};
use crate::id::{ClusterId, Identity, NodeId, SessionId};
use crate::outside::{FileFolder, Folder};
use crate::store::Store;
use crate::store::twin::MemoryFolder;
use crate::wire;

/// Makes an empty store for each case of openraft's own suite.
struct Fresh {
    on_disk: bool,
}

impl StoreBuilder<Types, Log, Machine, Option<tempfile::TempDir>> for Fresh {
    async fn build(&self) -> Result<(Option<tempfile::TempDir>, Log, Machine), StorageError<Types>> {
        let (guard, folder): (_, Box<dyn Folder>) = if self.on_disk {
            let guard = tempfile::tempdir().unwrap();
            let folder = FileFolder(guard.path().into());
            (Some(guard), Box::new(folder))
        } else {
            (None, Box::new(MemoryFolder::new("suite")))
        };
        let store = Store::open(&*folder).unwrap();
        let machine = Machine::open(
            NodeId(0),
            ClusterId(1),
            store.clone(),
            Arc::new(TokioClock::new().await),
            Tally::fresh(),
        );
        Ok((guard, Log { store }, machine.unwrap()))
    }
}

#[tokio::test]
async fn the_library_s_own_suite_passes_in_memory() {
    Suite::test_all(Fresh { on_disk: false }).await.unwrap();
}

#[tokio::test]
async fn the_library_s_own_suite_passes_on_a_disk() {
    Suite::test_all(Fresh { on_disk: true }).await.unwrap();
}

#[tokio::test]
async fn a_vote_that_was_given_is_there_after_a_crash() {
    let folder = MemoryFolder::new("voter");
    let mut log = Log { store: Store::open(&folder).unwrap() };
    for term in 1..20 {
        log.save_vote(&Vote::new(term, 7)).await.unwrap();
        folder.crash(&Seeded::new(term));
        log = Log { store: Store::open(&folder).unwrap() };
        assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new(term, 7)));
    }
}

fn at(term: u64, index: u64) -> LogId {
    LogId::new(CommittedLeaderIdOf::<Types> { term, node_id: 7 }, index)
}

fn meta(at: LogId) -> SnapshotMeta {
    SnapshotMeta { last_log_id: Some(at), ..SnapshotMeta::default() }
}

/// The snapshot of a cluster in which nothing has happened.
fn empty() -> Arc<[u8]> {
    [&[2][..], &wire::encode(&(Authority::new(CLUSTER), Tally::default().written()))].concat().into()
}

/// The same, as it was written when there was nothing of a host in it.
fn of_before_hosts() -> Arc<[u8]> {
    [&[1][..], &wire::encode(&Authority::new(CLUSTER))].concat().into()
}

async fn follower(folder: &MemoryFolder) -> (Log, Machine) {
    let store = Store::open(folder).unwrap();
    let machine =
        Machine::open(NodeId(1), CLUSTER, store.clone(), Arc::new(TokioClock::new().await), Tally::fresh());
    (Log { store }, machine.unwrap())
}

#[tokio::test]
async fn a_snapshot_is_installed_with_the_cut_of_the_log_or_not_at_all() {
    for cut in 0.. {
        let folder = MemoryFolder::new("installs");
        let (mut log, mut machine) = follower(&folder).await;
        let entries: Vec<Entry> = (0..10).map(|index| Entry::new_blank(at(1, index))).collect();
        log.append(entries, IOFlushed::noop()).await.unwrap();
        folder.cut_after(cut);
        let installed = machine.install_snapshot(&meta(at(2, 30)), empty()).await;
        folder.crash(&Seeded::new(cut));
        let (mut log, mut machine) = follower(&folder).await;
        let (found, state) = (machine.applied_state().await.unwrap().0, log.get_log_state().await.unwrap());
        match found {
            None => assert_eq!((state.last_purged_log_id, state.last_log_id), (None, Some(at(1, 9)))),
            found => {
                assert_eq!((found, state.last_purged_log_id), (Some(at(2, 30)), found));
                assert_eq!(state.last_log_id, found);
                assert!(machine.get_current_snapshot().await.unwrap().is_some());
            }
        }
        if installed.is_ok() {
            assert!(found.is_some() && cut > 1);
            return;
        }
    }
}

#[tokio::test]
async fn a_snapshot_of_another_log_of_another_cluster_or_of_a_later_version_is_refused() {
    let (_, mut machine) = follower(&MemoryFolder::new("refuses")).await;
    machine.install_snapshot(&meta(at(2, 30)), of_before_hosts()).await.unwrap();
    machine.install_snapshot(&meta(at(2, 30)), empty()).await.unwrap();
    machine.install_snapshot(&meta(at(1, 20)), empty()).await.unwrap();
    assert_eq!(machine.applied_state().await.unwrap().0, Some(at(2, 30)), "an older one changes nothing");

    let other =
        [&[2][..], &wire::encode(&(Authority::new(ClusterId(5)), Tally::default().written()))].concat();
    for (meta, bytes, why) in [
        (meta(at(3, 30)), empty(), "two logs claim to be one"),
        (meta(at(3, 40)), other.into(), "a snapshot of cluster 0000"),
        (meta(at(3, 40)), [200, 1].into(), "format 200, this version reads 2: upgrade this node"),
        (meta(at(3, 40)), [2, 255].into(), "malformed"),
        (meta(at(3, 40)), [1, 255].into(), "malformed"),
        (meta(at(3, 40)), [].into(), "an empty snapshot"),
    ] {
        let error = machine.install_snapshot(&meta, bytes).await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(machine.applied_state().await.unwrap().0, Some(at(2, 30)));
    assert_eq!(machine.build_snapshot().await.unwrap().snapshot, empty());
}

#[tokio::test]
async fn a_log_that_ends_before_what_was_committed_is_not_used() {
    let (mut log, _) = follower(&MemoryFolder::new("short")).await;
    log.append([Entry::new_blank(at(1, 0))], IOFlushed::noop()).await.unwrap();
    for (committed, usable) in [(at(1, 0), true), (at(1, 1), false)] {
        log.save_committed(Some(committed)).await.unwrap();
        assert_eq!(log.check().is_ok(), usable);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_on_a_real_disk_has_after_a_restart_what_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let folder = FileFolder(folder.path().into());
    let clock = Arc::new(TokioClock::new().await);
    let open = async || {
        let store = Store::open(&folder).unwrap();
        let options = RaftOptions::default();
        let raft = Raft::open(
            NodeId(0),
            CLUSTER,
            store.clone(),
            clock.clone(),
            Arc::new(Nobody),
            Tally::fresh(),
            options,
        );
        (store, raft.await.unwrap())
    };
    let (store, raft) = open().await;
    raft.found("here:1").await.unwrap();
    raft.leadership().wait_for(|now| now.leading.is_some()).await.unwrap();
    let found = Command::Found { identity: Identity(1), address: "here:1".into() };
    raft.propose(vec![found]).await.unwrap()[0].as_ref().unwrap();
    let mut callers = JoinSet::new();
    for session in 0..200 {
        let (raft, session) = (raft.clone(), SessionId(session));
        callers
            .spawn(async move { raft.propose(vec![Command::Register { node: NodeId(0), session }]).await });
    }
    while let Some(outcomes) = callers.join_next().await {
        assert!(outcomes.unwrap().unwrap()[0].is_ok());
    }
    let before = Arc::clone(&raft.applied().borrow().authority);
    raft.shut_down().await;
    store.close().await;

    let (store, raft) = open().await;
    raft.leadership().wait_for(|now| now.leading.is_some()).await.unwrap();
    assert_eq!(raft.applied().borrow().authority, before);
    raft.shut_down().await;
    store.close().await;
}
