//! The log applied: the one place where entries become the state that everybody here sees.
//!
//! Laws:
//! - what is published is whole: readers see the state after an entry or before it, and who proposed an entry is answered after
//!   readers can see it;
//! - a leadership begins here with the first entry of its own term that is applied: only then log time has an anchor;
//! - a snapshot is of one entry; it is on disk together with the cut of the log, or not at all.
//!
//! Never here: what a command does.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{Stream, StreamExt as _};
use openraft::alias::SnapshotOf;
use openraft::entry::RaftEntry as _;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder, Snapshot};
use tokio::sync::watch;

use super::log::read;
use super::types::{Entry, LogId, Membership, SnapshotMeta, Types, term_of};
use super::{State, types};
use crate::agreed::{self, Agreed};
use crate::authority::{Authority, Command, Outcome, Position};
use crate::id::{ClusterId, LogIndex, NodeId, Term};
use crate::log_time::LogClock;
use crate::outside::Clock;
use crate::store::{Change, Store};
use crate::time::{Moment, RHO};
use crate::wire;

/// The version of a snapshot's bytes.
const FORMAT: u8 = 2;

/// The version before there was a host's state in it.
const WITHOUT_HOST: u8 = 1;

/// A snapshot's bytes.
pub(super) type SnapshotData = Arc<[u8]>;

/// The state machine. Clones are the same one.
#[derive(Clone)]
pub(super) struct Machine {
    shared: Arc<Shared>,
}

struct Shared {
    me: NodeId,
    store: Store,
    clock: Arc<dyn Clock>,
    /// The host's state before the first entry.
    initial: Arc<dyn Agreed>,
    applied: Mutex<Applied>,
    published: watch::Sender<Arc<State>>,
    own: watch::Sender<Option<Own>>,
    entries: AtomicU64,
}

/// What the log means so far.
#[derive(Clone)]
struct Applied {
    authority: Arc<Authority>,
    agreed: Arc<dyn Agreed>,
    last: Option<LogId>,
    membership: Membership,
    own: Option<Own>,
}

/// The newest leadership of this node that has an entry applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) term: Term,
    /// When that was.
    pub(super) since: Moment,
    /// Log time in it.
    pub(super) clock: LogClock,
}

impl Machine {
    /// The state of the store's snapshot, or that before the first entry.
    pub(super) fn open(
        me: NodeId,
        cluster: ClusterId,
        store: Store,
        clock: Arc<dyn Clock>,
        initial: Arc<dyn Agreed>,
    ) -> io::Result<Self> {
        let kept = store.look(|contents| contents.snapshot.clone());
        let applied = match kept {
            None => Applied {
                authority: Arc::new(Authority::new(cluster)),
                agreed: Arc::clone(&initial),
                last: None,
                membership: Membership::default(),
                own: None,
            },
            Some(kept) => {
                let meta: SnapshotMeta = read(Some(kept.meta))?.unwrap_or_default();
                let (authority, agreed) = restored(cluster, &initial, &kept.state)?;
                Applied {
                    authority: Arc::new(authority),
                    agreed,
                    last: meta.last_log_id,
                    membership: meta.last_membership,
                    own: None,
                }
            }
        };
        let published = watch::Sender::new(Arc::new(applied.state()));
        let own = watch::Sender::new(None);
        let applied = Mutex::new(applied);
        let entries = AtomicU64::new(0);
        Ok(Self { shared: Arc::new(Shared { me, store, clock, initial, applied, published, own, entries }) })
    }

    pub(super) fn published(&self) -> watch::Receiver<Arc<State>> {
        self.shared.published.subscribe()
    }

    pub(super) fn own(&self) -> watch::Receiver<Option<Own>> {
        self.shared.own.subscribe()
    }

    /// How many entries with commands were applied in this life.
    pub(super) fn entries(&self) -> u64 {
        self.shared.entries.load(Ordering::Relaxed)
    }

    fn applied(&self) -> MutexGuard<'_, Applied> {
        // Nothing under this lock panics half-way: an entry is applied whole.
        self.shared.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, entry: Entry) -> Vec<Outcome> {
        let mut applied = self.applied();
        let id = entry.log_id();
        let term = term_of(&id.leader_id);
        if term.leader == self.shared.me && applied.own.is_none_or(|own| own.term != term) {
            let since = self.shared.clock.now();
            let clock = LogClock::new(term, applied.authority.log_time(), since, RHO);
            applied.own = Some(Own { term, since, clock });
        }
        applied.last = Some(id);
        match entry.payload {
            EntryPayload::Blank => Vec::new(),
            EntryPayload::Membership(membership) => {
                applied.membership = Membership::new(Some(id), membership);
                Vec::new()
            }
            EntryPayload::Normal(types::Batch { stamp, commands }) => {
                self.shared.entries.fetch_add(1, Ordering::Relaxed);
                let position = Position { index: LogIndex(id.index), term };
                let Applied { authority, agreed, .. } = &mut *applied;
                let authority = Arc::make_mut(authority);
                if commands.iter().any(concerns_host) {
                    authority.apply_all(position, stamp, commands, agreed::make_mut(agreed))
                } else {
                    // It need not be forked for what it does not hear of.
                    authority.apply_all(position, stamp, commands, &mut agreed::Nothing)
                }
            }
        }
    }

    fn publish(&self) {
        let (state, own) = {
            let applied = self.applied();
            (Arc::new(applied.state()), applied.own)
        };
        self.shared.published.send_replace(state);
        self.shared.own.send_if_modified(|known| std::mem::replace(known, own) != own);
    }
}

impl Applied {
    fn state(&self) -> State {
        State {
            authority: Arc::clone(&self.authority),
            agreed: Arc::clone(&self.agreed),
            applied: self.last.map(|last| LogIndex(last.index)),
        }
    }

    fn meta(&self) -> SnapshotMeta {
        SnapshotMeta { last_log_id: self.last, last_membership: self.membership.clone() }
    }
}

/// Whether the host's state hears of it, should it be obeyed.
const fn concerns_host(command: &Command) -> bool {
    matches!(command, Command::Host(_) | Command::Fence { .. } | Command::Remove { .. })
}

/// The bytes of both, to be read by this version or a later one.
fn written(authority: &Authority, agreed: &dyn Agreed) -> SnapshotData {
    let mut bytes = vec![FORMAT];
    bytes.extend(wire::encode(&(authority, agreed.written())));
    bytes.into()
}

fn restored(
    cluster: ClusterId,
    initial: &Arc<dyn Agreed>,
    bytes: &[u8],
) -> io::Result<(Authority, Arc<dyn Agreed>)> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let (authority, agreed): (Authority, Option<Vec<u8>>) = match bytes {
        [FORMAT, state @ ..] => {
            let read = wire::decode::<(Authority, Vec<u8>)>(state);
            let (authority, agreed) = read.map_err(|malformed| wrong(malformed.to_string()))?;
            (authority, Some(agreed))
        }
        [WITHOUT_HOST, state @ ..] => {
            (wire::decode(state).map_err(|malformed| wrong(malformed.to_string()))?, None)
        }
        [format, ..] => {
            return Err(wrong(format!(
                "a snapshot of format {format}, this version reads {FORMAT}: upgrade this node"
            )));
        }
        [] => return Err(wrong("an empty snapshot".into())),
    };
    if authority.cluster() != cluster {
        return Err(wrong(format!(
            "a snapshot of cluster {}, this node is of {cluster}",
            authority.cluster()
        )));
    }
    let agreed = match agreed {
        Some(bytes) => initial.restored(&bytes).map_err(wrong)?,
        // By then nothing of the host's was agreed on.
        None => Arc::clone(initial),
    };
    Ok((authority, agreed))
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, Membership)> {
        let applied = self.applied();
        Ok((applied.last, applied.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        let mut answers = Vec::new();
        let mut failed = Ok(());
        while let Some(next) = entries.next().await {
            match next {
                Ok((entry, responder)) => {
                    let outcomes = self.take(entry);
                    answers.extend(responder.map(|responder| (responder, outcomes)));
                }
                Err(error) => {
                    failed = Err(error);
                    break;
                }
            }
        }
        self.publish();
        for (responder, outcomes) in answers {
            responder.send(outcomes);
        }
        failed
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        // It builds what is applied now, or a little later: a snapshot is of whatever entry its meta names.
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, data: SnapshotData) -> io::Result<()> {
        let cluster = self.applied().authority.cluster();
        let (authority, agreed) = restored(cluster, &self.shared.initial, &data)?;
        let last = self.applied().last;
        if let (Some(ours), Some(theirs)) = (last, meta.last_log_id) {
            if ours.index == theirs.index && ours != theirs {
                let why =
                    format!("a snapshot of entry {theirs} where {ours} is applied: two logs claim to be one");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            if ours > theirs {
                return Ok(());
            }
        }
        let mut changes = vec![snapshot(meta, data)];
        if let Some(through) = meta.last_log_id {
            changes.push(Change::Purge { through: through.index, mark: wire::encode(&through).into() });
        }
        self.shared.store.write(changes).await?;
        {
            let mut applied = self.applied();
            applied.authority = Arc::new(authority);
            applied.agreed = agreed;
            applied.last = meta.last_log_id;
            applied.membership = meta.last_membership.clone();
        }
        self.publish();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, SnapshotData>>> {
        let Some(kept) = self.shared.store.look(|contents| contents.snapshot.clone()) else {
            return Ok(None);
        };
        let meta: Option<SnapshotMeta> = read(Some(kept.meta))?;
        Ok(meta.map(|meta| Snapshot { meta, snapshot: kept.state }))
    }
}

impl RaftSnapshotBuilder<Types> for Machine {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, SnapshotData>> {
        let applied = self.applied().clone();
        let meta = applied.meta();
        let data = written(&applied.authority, &*applied.agreed);
        let change = snapshot(&meta, Arc::clone(&data));
        // One that was installed meanwhile may be newer.
        let newest = read::<SnapshotMeta>(
            self.shared.store.look(|at| at.snapshot.as_ref().map(|kept| kept.meta.clone())),
        )?;
        if newest.is_none_or(|newest| newest.last_log_id <= meta.last_log_id) {
            self.shared.store.write(vec![change]).await?;
        }
        Ok(Snapshot { meta, snapshot: data })
    }
}

fn snapshot(meta: &SnapshotMeta, state: SnapshotData) -> Change {
    Change::Snapshot(crate::store::Snapshot { meta: wire::encode(meta).into(), state })
}
