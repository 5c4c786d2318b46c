//! What breaks the cluster: each nemesis is one fault for a while, and its end.
//!
//! A fault is over when all is as before, as far as the harness can do that: a process that was ended is started again, a cut is mended. How
//! long the cluster takes from there is for the checkers.

mod clocks;
mod disk;
mod membership;
mod network;
mod policy;
mod process;

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;

use crate::cluster::Cluster;
use crate::history::{Limits, Window};
use crate::network::Host;
use crate::random::Random;
use crate::sys;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Nemesis {
    /// One node hears none of the others, nor they it; packets are dropped.
    Partition,
    /// The same with resets, as a firewall that rejects: everything fails at once instead of late.
    PartitionReset,
    /// One node hears the others, and they do not hear it.
    PartitionOneWay,
    /// Two halves hear each other only through one node between them.
    PartitionBridge,
    /// Five nodes in a ring, each of which hears a majority, and no two the same one.
    PartitionRing,
    /// A fifth of all packets between nodes is lost.
    Loss,
    /// Packets between nodes take 30 to 90 ms and overtake each other.
    Jitter,
    /// A third of all packets between nodes arrives twice.
    Duplicate,
    /// Loss, jitter and doubles at once.
    Mess,
    /// Gossip (UDP) of one node is cut, its connections are not.
    GossipOnly,
    /// Connections (TCP) of one node to the others are cut, its gossip is not.
    TcpOnly,
    /// Callers cannot reach one node; the others can.
    ClientsOnly,
    /// SIGKILL, and a new process with the folder.
    Kill,
    /// SIGKILL for all nodes at once.
    KillAll,
    /// An owner is cut off while its lease is fresh, and the leader that granted it is killed: who leads next knows of no lease.
    Succession,
    /// SIGTERM, and a new process with the folder.
    Restart,
    /// SIGSTOP, and SIGCONT.
    Pause,
    /// One node gets a twentieth of a processor.
    Starve,
    /// One node may open no more files or connections.
    Descriptors,
    /// The wall clock of one node jumps, and back.
    WallJump,
    /// NTP slews one node's clocks by 8 %: all but the raw one.
    Slew,
    /// The crystal of one node is 0.4 % off: within what is promised.
    Drift,
    /// One node's machine sleeps: its clocks but the boot clock and the wall clock stand still.
    Suspend,
    /// A hypervisor pauses one node and hides it: no clock of it notices. Bounded, not exact.
    Frozen,
    /// Every fsync of one node fails with EIO.
    DiskEio,
    /// Every write of one node fails with ENOSPC.
    DiskFull,
    /// Every fsync of one node takes 400 ms longer.
    DiskSlow,
    /// No fsync of one node returns.
    DiskHung,
    /// The next write of one node is torn, and the process with it.
    Torn,
    /// One node loses its disk; the old member is removed, and it joins anew.
    Wipe,
    /// One node loses its disk and claims the place it had: it must be refused until the old member is removed.
    SameIdWipe,
    /// All nodes are restarted, one after another.
    Rolling,
    /// Another node joins, and leaves again.
    JoinLeave,
    /// The limits are loosened, tightened and put back.
    PolicyEdit,
}

/// What is noted of a node that lost its disk and got its place back.
pub const TOOK_ITS_PLACE: &str = "with an empty folder it has taken the place that it had";

/// Whom a fault strikes, where it is one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Role {
    /// The leader.
    Leader,
    /// The owner of some tenant.
    Owner,
    /// Any.
    Any,
}

impl Nemesis {
    /// Its name on the command line.
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self)
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether it is the switch that makes it.
    const fn is_of_the_network(self) -> bool {
        use Nemesis as N;
        matches!(
            self,
            N::Partition
                | N::PartitionReset
                | N::PartitionOneWay
                | N::PartitionBridge
                | N::PartitionRing
                | N::Loss
                | N::Jitter
                | N::Duplicate
                | N::Mess
                | N::GossipOnly
                | N::TcpOnly
                | N::ClientsOnly
                | N::Succession
        )
    }

    /// Whether it takes five nodes.
    pub const fn needs_five(self) -> bool {
        matches!(self, Self::PartitionRing)
    }
}

/// Where faults are made.
pub struct Stage {
    /// The cluster.
    pub cluster: Cluster,
    /// Chance.
    pub chance: Random,
    /// Tenants, any of whose owners may be struck.
    pub tenants: Vec<String>,
    /// The node that may join.
    pub spare: Host,
    /// Whom to strike; by chance, if nobody is named.
    pub role: Option<Role>,
    /// The nodes that callers know of.
    pub known: watch::Sender<Vec<Host>>,
    /// The limits of all tenants.
    pub limits: BTreeMap<String, Limits>,
}

/// What was done.
struct Struck {
    what: String,
    victims: Vec<Host>,
    bounded: bool,
    percent: Option<u64>,
    note: String,
}

impl Struck {
    fn new(what: impl Into<String>, victims: &[Host]) -> Self {
        Self {
            what: what.into(),
            victims: victims.to_vec(),
            bounded: false,
            percent: None,
            note: String::new(),
        }
    }
}

/// A fault's length: one of those that end before, about, and after a lease does.
pub fn length(chance: &mut Random, lease: Duration) -> Duration {
    let tenths = *chance.pick(&[3, 9, 11, 20, 50]);
    lease * tenths / 10
}

impl Stage {
    /// Breaks something for `length`, and mends it.
    ///
    /// # Errors
    /// The harness could not do it, or the cluster did not bear what it has to.
    pub async fn strike(&mut self, nemesis: Nemesis, length: Duration) -> Result<Window, String> {
        // At any phase of the renewal of a lease.
        let phase = self.chance.below(self.cluster.lease.as_millis() as u64 / 4 + 1);
        tokio::time::sleep(Duration::from_millis(phase)).await;
        let begin = sys::now();
        let met = self.cluster.wires.met();
        let struck = self.make(nemesis, length).await;
        self.cluster.wires.apply(Vec::new());
        let mut struck = struck.map_err(|why| format!("{}: {why}", nemesis.name()))?;
        if nemesis.is_of_the_network() {
            struck.what += &format!(", met {} times", self.cluster.wires.met() - met);
        }
        Ok(Window {
            nemesis: nemesis.name(),
            what: format!("{}, {} ms", struck.what, length.as_millis()),
            victims: struck.victims,
            begin,
            healed: sys::now(),
            living: self.cluster.running(),
            bounded: struck.bounded,
            percent: struck.percent,
            note: struck.note,
        })
    }

    async fn make(&mut self, nemesis: Nemesis, length: Duration) -> Result<Struck, String> {
        use Nemesis as N;
        match nemesis {
            N::Partition | N::PartitionReset | N::PartitionOneWay | N::PartitionBridge | N::PartitionRing => {
                network::partition(self, nemesis, length).await
            }
            N::Loss | N::Jitter | N::Duplicate | N::Mess => network::trouble(self, nemesis, length).await,
            N::GossipOnly | N::TcpOnly | N::ClientsOnly => network::plane(self, nemesis, length).await,
            N::Kill => process::kill(self, length).await,
            N::KillAll => process::kill_all(self, length).await,
            N::Succession => process::succession(self, length).await,
            N::Restart => process::restart(self, length).await,
            N::Pause => process::pause(self, length).await,
            N::Starve => process::starve(self, length).await,
            N::Descriptors => process::descriptors(self, length).await,
            N::WallJump | N::Slew | N::Drift => clocks::bend(self, nemesis, length).await,
            N::Suspend | N::Frozen => clocks::sleep_or_freeze(self, nemesis, length).await,
            N::DiskEio | N::DiskFull | N::DiskSlow | N::DiskHung | N::Torn => {
                disk::fail(self, nemesis, length).await
            }
            N::Wipe => membership::wipe(self, length).await,
            N::SameIdWipe => membership::same_id_wipe(self, length).await,
            N::Rolling => membership::rolling(self).await,
            N::JoinLeave => membership::join_and_leave(self, length).await,
            N::PolicyEdit => policy::edit(self, length).await,
        }
    }

    /// Somebody to strike, and who that is in words.
    async fn victim(&mut self) -> Result<(Host, String), String> {
        let role = self.role.unwrap_or_else(|| *self.chance.pick(&[Role::Leader, Role::Owner, Role::Any]));
        let running = self.cluster.running();
        if running.is_empty() {
            return Err("no node runs".to_owned());
        }
        let any = *self.chance.pick(&running);
        let tenant = self.chance.pick(&self.tenants).clone();
        let (host, role) = match role {
            Role::Leader => (self.cluster.leader().await.unwrap_or(any), "the leader".to_owned()),
            Role::Owner => {
                (self.cluster.owner_of(&tenant).await.unwrap_or(any), format!("the owner of {tenant}"))
            }
            Role::Any => (any, "any node".to_owned()),
        };
        Ok((host, format!("n{host}, {role}")))
    }

    fn others(&self, host: Host) -> Vec<Host> {
        self.cluster.running().into_iter().filter(|other| *other != host).collect()
    }
}
