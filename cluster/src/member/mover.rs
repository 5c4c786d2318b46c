//! Moves: seals what must go, sends what is sealed, claims what is due here, announces what is open.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::message::{Announce, Exported, Heard, Leave, Leaving, Taken, kind};
use super::session::due;
use super::{CALL, Joined, Shared, sealed};
use crate::handoff::Announcement;
use crate::id::{NodeId, SessionId, ShardId};
use crate::shards::Host;
use crate::time::{Moment, Span};
use crate::wire;

/// How many shards may be sealed here at once. Sealed is refused, so that few at a time keep each refusal short: 64 take
/// two commits and a transfer, some ten milliseconds, and 1,024 go through in a fraction of a second.
const SEALED_AT_ONCE: usize = 64;

/// After how long what was sent and led to nothing is sent again.
const AGAIN: Span = Span::from_millis(500);

/// The most commands in one proposal.
const COMMANDS_AT_ONCE: usize = 1024;

/// The most shards in one announcement.
const ANNOUNCED_AT_ONCE: usize = 256;

/// From so many bytes on, what is open is announced in another message: with the largest announcement of one shard on top it stays
/// well below what a message may have, or it would never arrive.
const ANNOUNCED_BYTES: usize = 16 * 1024 * 1024;

pub(super) fn turn<H: Host>(shared: &Arc<Shared<H>>, joined: &Joined, now: Moment, news: bool) {
    let Some(facts) = shared.shards.facts() else { return };
    // What the shards want follows from the log and from what has come beside it. Where neither has changed they want what they wanted
    // before: what of that is not done yet is asked for again, and all else is left alone, for each look is one at every shard.
    let (news, proposing, owing, exporting) = {
        let mut core = shared.core();
        let news = std::mem::take(&mut core.stirred) || news;
        let inherits = !core.inherited.is_empty();
        (
            news,
            news || core.proposing.is_some() || inherits,
            news || core.owing,
            news || !core.exported.is_empty() || inherits,
        )
    };
    if news {
        sealed::follow(shared, &facts.authority);
        seal(shared);
    }
    if proposing {
        propose(shared, now);
    }
    if exporting {
        export(shared, joined, now);
    }
    if owing {
        announce(shared, joined, now);
    }
}

fn seal<H: Host>(shared: &Arc<Shared<H>>) {
    let leaving = shared.shards.leaving();
    if leaving.is_empty() {
        return;
    }
    let sealed = shared.shards.count().sealed;
    for shard in leaving.into_iter().take(SEALED_AT_ONCE.saturating_sub(sealed)) {
        shared.shards.seal(shard);
    }
}

fn propose<H: Host>(shared: &Arc<Shared<H>>, now: Moment) {
    if !due(shared.core().proposing, now, AGAIN) {
        return;
    }
    let Some(authority) = shared.authority() else { return };
    let mut commands = shared.shards.proposals();
    let mut core = shared.core();
    if core.kept {
        return;
    }
    commands.extend(sealed::proposals(&core.inherited, &authority));
    commands.truncate(COMMANDS_AT_ONCE);
    core.proposing = (!commands.is_empty()).then_some(now);
    drop(core);
    if commands.is_empty() {
        return;
    }
    let shared = shared.clone();
    shared.clone().spawn(async move {
        let proposed = shared.propose(commands).await;
        if let super::message::Proposed::Committed(outcomes) = &proposed {
            for problem in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
                tracing::debug!(problem, "a shard's proposal was rejected");
            }
        }
        // One that was committed shows in the log; whether more is to be proposed is seen at the turn it wakes.
        let committed = matches!(proposed, super::message::Proposed::Committed(_));
        let mut core = shared.core();
        if committed && core.proposing == Some(now) {
            core.proposing = None;
            core.stirred = true;
        }
        drop(core);
        shared.wake.notify_one();
    });
}

fn export<H: Host>(shared: &Arc<Shared<H>>, joined: &Joined, now: Moment) {
    let Some(authority) = shared.authority() else { return };
    let mut exports = shared.shards.exports();
    let mut core = shared.core();
    exports.extend(sealed::exports(&core.inherited, &authority));
    let ready: BTreeSet<ShardId> = exports.iter().map(|export| export.shard).collect();
    core.exported.retain(|shard, _| ready.contains(shard));
    for export in exports {
        let sent = core.exported.get(&export.shard).filter(|(importer, _)| *importer == export.importer);
        if !due(sent.map(|(_, at)| *at), now, AGAIN) {
            continue;
        }
        let Some(importer) = authority.session(export.importer) else { continue };
        core.exported.insert(export.shard, (export.importer, now));
        if importer.node == joined.node {
            // Of an earlier life of this node. What is not taken now is offered again.
            if shared.shards.import(export).is_ok() {
                core.counters.exports += 1;
                core.stirred = true;
                shared.wake.notify_one();
            }
            continue;
        }
        let shared = shared.clone();
        shared.clone().spawn(async move { send(&shared, importer.node, export).await });
    }
}

async fn send<H: Host>(shared: &Arc<Shared<H>>, to: NodeId, export: Exported) {
    let shard = export.shard;
    match shared.ask(to, kind::EXPORT, wire::encode(&export), CALL).await {
        Ok(answer) if wire::decode::<Taken>(&answer).is_ok_and(|taken| taken.0) => {
            shared.core().counters.exports += 1;
        }
        Ok(_) => tracing::debug!(%shard, "an export was not taken; it is sent again"),
        Err(problem) => tracing::debug!(%shard, %problem, "an export did not arrive; it is sent again"),
    }
    shared.wake.notify_one();
}

/// Tells holders that started cold what this node holds open.
fn announce<H: Host>(shared: &Arc<Shared<H>>, joined: &Joined, now: Moment) {
    let Some(facts) = shared.shards.facts() else { return };
    let session = facts.holder.session();
    if facts.authority.standing(session).is_none() {
        return;
    }
    let mut core = shared.core();
    if !due(core.announcing, now, AGAIN) {
        return;
    }
    core.announced.retain(|shard, told| facts.authority.cold_tenure(*shard) == Some(*told));
    let mut owed: BTreeMap<NodeId, Vec<(Announcement, SessionId)>> = BTreeMap::new();
    for (shard, holder, epoch) in facts.authority.cold_tenures() {
        if core.announced.get(&shard) == Some(&(holder, epoch)) {
            continue;
        }
        let Some(node) = facts.authority.session(holder).map(|known| known.node) else { continue };
        let announcement = Announcement { shard, holder, epoch, from: session };
        let to = owed.entry(node).or_default();
        if to.len() < ANNOUNCED_AT_ONCE {
            to.push((announcement, holder));
        }
    }
    core.owing = !owed.is_empty();
    core.announcing = core.owing.then_some(now);
    drop(core);
    for (node, announcements) in owed {
        // Read after the facts were published: what a former holder answers from now on is not taken any more.
        let mut room = ANNOUNCED_BYTES;
        let open = |shard| -> Option<crate::shards::Payload> {
            let fits = room > 0;
            let open = fits.then(|| shared.shards.host().holds_open(shard))?;
            room = room.saturating_sub(open.len());
            Some(open)
        };
        let open = announcements.iter().map(|(announcement, _)| announcement.shard).map_while(open);
        let shards: Vec<_> = announcements.iter().map(|(announcement, _)| *announcement).zip(open).collect();
        let here = node == joined.node;
        let shared = shared.clone();
        shared.clone().spawn(async move {
            let said = shards.len();
            let announce = Announce { to: node, shards };
            let taken = if here { take(&shared, &announce) } else { tell(&shared, &announce).await };
            let mut core = shared.core();
            if core.holder.session() == session {
                // What was not taken is announced again: the claim may not be applied there yet.
                let taken = announcements.iter().zip(&taken.0).filter(|(_, taken)| **taken);
                let told = taken.map(|((said, _), _)| (said.shard, (said.holder, said.epoch)));
                core.announced.extend(told);
            }
            let again = taken.0.contains(&false) || taken.0.len() < said;
            // What was not taken waits for [`AGAIN`], the rest of a long list does not.
            if !again {
                core.announcing = None;
            }
            drop(core);
            shared.wake.notify_one();
        });
    }
}

/// Tells the holder's node, or where that cannot be reached any other member in turn, which passes it on: a holder
/// that waits for a gateway on the far side of a broken link would wait until one of the two is fenced, and neither has to be.
async fn tell<H: Host>(shared: &Arc<Shared<H>>, announce: &Announce) -> Heard {
    let message = wire::encode(announce);
    let heard = |answer: Vec<u8>| wire::decode::<Heard>(&answer).unwrap_or_default();
    if let Ok(answer) = shared.ask(announce.to, kind::ANNOUNCE, message.clone(), CALL).await {
        return heard(answer);
    }
    let Some(by) = detour(shared, announce.to) else { return Heard::default() };
    tracing::debug!(to = %announce.to, %by, "what is open here is announced by way of another member");
    shared.ask(by, kind::ANNOUNCE, message, CALL).await.map(heard).unwrap_or_default()
}

/// A member other than this one and `to`: each time the next.
fn detour<H: Host>(shared: &Shared<H>, to: NodeId) -> Option<NodeId> {
    let (joined, authority) = (shared.joined.get()?, shared.authority()?);
    let others: Vec<NodeId> =
        authority.nodes().keys().copied().filter(|node| *node != joined.node && *node != to).collect();
    let mut core = shared.core();
    core.detours = core.detours.wrapping_add(1);
    others.get(core.detours % others.len().max(1)).copied()
}

/// Takes announcements for shards that are served here.
pub(super) fn take<H: Host>(shared: &Shared<H>, announce: &Announce) -> Heard {
    let announced = announce.shards.iter();
    let heard: Vec<bool> =
        announced.map(|(announcement, open)| shared.shards.announced(announcement, open)).collect();
    if heard.contains(&true) {
        // One that is complete now may be wanted elsewhere.
        shared.core().stirred = true;
        shared.wake.notify_one();
    }
    Heard(heard)
}

/// Asks the leader to take this node out of the ring, until nothing is left here. `false` when there is no heir.
pub(super) async fn hand_over<H: Host>(shared: &Arc<Shared<H>>, for_good: bool) -> bool {
    let Some(joined) = shared.joined.get() else { return true };
    shared.core().departing |= for_good;
    let mut leased = shared.outside.clock.now();
    loop {
        let Some(authority) = shared.authority() else { return true };
        if for_good {
            // A successor can take this node out of the voters.
            super::steward::give_up_leadership(shared, joined).await;
        }
        let count = shared.shards.count();
        // A log in which its own admission is yet to come does not name it either.
        let gone = authority.is_removed(joined.node);
        let handed = !authority.ring().members().contains(&joined.node) && count.serving + count.sealed == 0;
        if gone {
            return true;
        }
        if handed && !for_good {
            let shared = shared.clone();
            shared.clone().spawn(async move { stay_out(&shared).await });
            return true;
        }
        match ask_to_leave(shared, joined, for_good).await {
            Some(Leaving::NoHeir) => return false,
            Some(Leaving::Forgotten) => return true,
            Some(Leaving::Noted | Leaving::NotLeader) | None => {}
        }
        // Without a lease for so long there is no majority that could agree to a move, and nothing is answered for here any more.
        let now = shared.outside.clock.now();
        if shared.core().holder.left(now) > Span::default() {
            leased = now;
        } else if !for_good && now.since(leased) > shared.options.timing.renewal() {
            return false;
        }
        shared.wake.notify_one();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn ask_to_leave<H: Host>(shared: &Arc<Shared<H>>, joined: &Joined, for_good: bool) -> Option<Leaving> {
    let leave = Leave { session: shared.core().holder.session(), for_good };
    let leader = joined.raft.leadership().borrow().leader?;
    if leader == joined.node {
        return Some(super::steward::leave(shared, shared.identity, leave));
    }
    let answer = shared.ask(leader, kind::LEAVE, wire::encode(&leave), CALL).await.ok()?;
    wire::decode(&answer).ok()
}

/// Says to whoever leads that this node is on its way out, until it has stopped: a new leader knows nothing of it, and would give
/// a node that still gets leases its shards back.
async fn stay_out<H: Host>(shared: &Arc<Shared<H>>) {
    let Some(joined) = shared.joined.get() else { return };
    loop {
        ask_to_leave(shared, joined, false).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
