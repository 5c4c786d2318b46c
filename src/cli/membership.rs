//! The flags that make a node a member of a cluster.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tollgate_cluster::lease::Timing;
use tollgate_cluster::member::MemberOptions;
use tollgate_cluster::outside::{FileFolder, OsEntropy, Outside, TokioNetwork};
use tollgate_cluster::raft::RaftOptions;
use tollgate_cluster::secret::{Secret, Secrets};
use tollgate_cluster::time::{RHO, Span};

use crate::clock::Clocks;
use crate::config::{self, FileSettings};
use crate::node::Reach;
use crate::node::membership::MembershipOptions;

/// A lease shorter than this outlasts no election, one that is longer keeps a dead owner's tenants waiting.
const LEASES: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);

/// How long a voter may be silent until another takes its vote.
const VOTER_GRACE: Span = Span::from_millis(60_000);

/// Arguments about the cluster. Without --peer a node is its own cluster.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Where other nodes connect, by TCP and UDP, as in 0.0.0.0:7700
    #[arg(long, env = "TOLLGATE_PEER", value_name = "ADDR")]
    peer: Option<SocketAddr>,
    /// Where other nodes reach this one [default: the address of --peer, or this machine's if that is 0.0.0.0]
    #[arg(long, env = "TOLLGATE_ADVERTISE", value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Nodes to begin with. A name may stand for many
    #[arg(long, env = "TOLLGATE_JOIN", value_name = "HOST:PORT[,…]", value_delimiter = ',')]
    join: Vec<String>,
    /// Found a new cluster with this node, unless a seed has one
    #[arg(long, env = "TOLLGATE_BOOTSTRAP", conflicts_with = "bootstrap_expect")]
    bootstrap: bool,
    /// Found a new cluster once so many nodes, all started with this, see each other
    #[arg(long, env = "TOLLGATE_BOOTSTRAP_EXPECT", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    bootstrap_expect: Option<u16>,
    /// A file with the cluster's secret, at least 32 bytes; TOLLGATE_SECRET beats it
    #[arg(long, env = "TOLLGATE_SECRET_FILE", value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// How long a node may answer without hearing from a majority; the same on every node [default: 3s]
    #[arg(long, env = "TOLLGATE_LEASE", value_name = "TIME", value_parser = config::duration)]
    lease: Option<Duration>,
}

impl ClusterArgs {
    /// What the node is started with, if it is to be a member of a cluster.
    ///
    /// # Errors
    /// A setting is missing or contradicts another: what to give.
    pub fn options(self, file: &FileSettings, data: &Path) -> Result<Option<MembershipOptions>, String> {
        let join = if self.join.is_empty() { file.join.clone().unwrap_or_default() } else { self.join };
        let bootstrap = self.bootstrap || file.bootstrap.unwrap_or(false);
        let expect = self.bootstrap_expect.or(file.bootstrap_expect);
        let Some(peer) = self.peer.or(file.peer) else {
            if bootstrap || expect.is_some() || !join.is_empty() {
                return Err("a member of a cluster needs an address for its peers: give --peer, as in --peer 0.0.0.0:7700".to_owned());
            }
            return Ok(None);
        };
        let founders = match (bootstrap, expect) {
            (true, None) => Some(1),
            (false, expect) => expect.map(usize::from),
            (true, Some(_)) => return Err("--bootstrap and --bootstrap-expect exclude each other: one founds alone, the other with others".to_owned()),
        };
        let secrets = secrets(self.secret_file.or_else(|| file.secret_file.clone()).as_deref())?;
        let lease = match (self.lease, &file.lease) {
            (Some(lease), _) => lease,
            (None, Some(text)) => config::duration(text)?,
            (None, None) => Duration::from_nanos(Timing::DEFAULT.lease.as_nanos()),
        };
        if !LEASES.contains(&lease) {
            return Err(format!("a lease of {lease:?} does not work (--lease): give one from 1s to 60s"));
        }
        let lease = Span::from_millis(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
        let advertise = self.advertise.or_else(|| file.advertise.clone());
        let advertise = match advertise {
            Some(address) => Some(address),
            None if peer.ip().is_unspecified() => Some(own_address(peer)?),
            None => None,
        };
        let outside = Outside {
            network: Arc::new(TokioNetwork),
            clock: Arc::new(Clocks),
            entropy: Arc::new(OsEntropy),
            folder: Arc::new(FileFolder(data.to_owned())),
        };
        let member = MemberOptions {
            peer,
            advertise,
            join,
            founders,
            timing: Timing { lease, drift: RHO },
            voter_grace: VOTER_GRACE,
            raft: RaftOptions::default(),
        };
        Ok(Some(MembershipOptions {
            member,
            secrets: Arc::new(secrets),
            outside,
            reach: Reach::default(),
            audit: None,
        }))
    }
}

/// The cluster's secret. Never a flag: whoever lists processes would read it.
fn secrets(file: Option<&Path>) -> Result<Secrets, String> {
    let secrets = match (std::env::var("TOLLGATE_SECRET"), file) {
        (Ok(text), _) => Secret::of_lines(&text).map_err(|problem| format!("TOLLGATE_SECRET: {problem}"))?,
        (Err(_), Some(file)) => Secret::of_file(file)
            .map_err(|problem| format!("{}: {problem} (--secret-file)", file.display()))?,
        (Err(_), None) => {
            return Err("no cluster secret: nodes of a cluster need the same one. Make it with `openssl rand -hex 32 > secret` and give it with --secret-file, or set TOLLGATE_SECRET".to_owned());
        }
    };
    Secrets::of(secrets).map_err(|problem| problem.to_string())
}

/// The address that this machine has towards others. Nothing is sent: the socket only looks up a route.
fn own_address(peer: SocketAddr) -> Result<String, String> {
    if peer.port() == 0 {
        return Err(
            "others cannot be told a port that the system chooses (--peer): name one, or give --advertise"
                .to_owned(),
        );
    }
    // Addresses that are for documentation only (RFC 5737, RFC 3849).
    let (any, elsewhere): (SocketAddr, SocketAddr) = match peer {
        SocketAddr::V4(_) => ((Ipv4Addr::UNSPECIFIED, 0).into(), ([192, 0, 2, 1], 9).into()),
        SocketAddr::V6(_) => {
            ((Ipv6Addr::UNSPECIFIED, 0).into(), ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 9).into())
        }
    };
    let looked_up = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(elsewhere)?;
        socket.local_addr()
    });
    match looked_up {
        Ok(own) => Ok(SocketAddr::new(own.ip(), peer.port()).to_string()),
        // Without a route there is only this machine.
        Err(_) if peer.is_ipv4() => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, peer.port())).to_string()),
        Err(_) => Ok(SocketAddr::from((Ipv6Addr::LOCALHOST, peer.port())).to_string()),
    }
}
