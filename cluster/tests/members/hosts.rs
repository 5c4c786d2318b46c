//! Members on simulated hosts, under turmoil's clock: each outlives its processes with its folder.

#![allow(dead_code, reason = "each test takes of it what it needs")]

use std::collections::BTreeMap;
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate_cluster::lease::Timing;
use tollgate_cluster::member::{Member, MemberOptions};
use tollgate_cluster::outside::Outside;
use tollgate_cluster::raft::RaftOptions;
use tollgate_cluster::secret::{Secret, Secrets};
use tollgate_cluster::shards::Shards;
use tollgate_cluster::store::twin::MemoryFolder;
use tollgate_cluster::time::{RHO, Span};

use crate::toy::{SHORT, Toy};
use crate::turmoil_world::{SeededEntropy, simulated};

/// How long anything may take, in simulated time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Hosts `n1` to `n…`, of which the first founds a cluster and the others join it.
pub struct Hosts {
    pub sim: turmoil::Sim<'static>,
    members: Members,
    folders: BTreeMap<u64, MemoryFolder>,
    /// Where every host listens that starts from now on.
    port: Arc<AtomicU16>,
}

type Members = Arc<Mutex<BTreeMap<u64, Arc<Member<Toy>>>>>;

impl Hosts {
    pub fn of(count: u64) -> Self {
        let sim = turmoil::Builder::new()
            .rng_seed(1)
            .simulation_duration(Duration::from_secs(600))
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(5))
            .tcp_capacity(4096)
            .udp_capacity(1024)
            .build();
        let port = Arc::new(AtomicU16::new(7700));
        let mut hosts = Self { sim, members: Members::default(), folders: BTreeMap::new(), port };
        for number in 1..=count {
            hosts.add(number, count);
        }
        hosts
    }

    fn add(&mut self, number: u64, count: u64) {
        let folder = MemoryFolder::new(format!("the disk of n{number}"));
        self.folders.insert(number, folder.clone());
        let (members, port) = (self.members.clone(), self.port.clone());
        self.sim.host(format!("n{number}"), move || {
            let (members, folder) = (members.clone(), folder.clone());
            let port = port.load(Ordering::Relaxed);
            async move {
                let outside = Outside { folder: Arc::new(folder), ..simulated(number) };
                let options = MemberOptions {
                    peer: SocketAddr::new(IpAddr::from([0, 0, 0, 0]), port),
                    advertise: Some(format!("n{number}:{port}")),
                    join: (1..=count).map(|number| format!("n{number}:{port}")).collect(),
                    founders: (number == 1).then_some(1),
                    timing: Timing { lease: SHORT, drift: RHO },
                    voter_grace: Span::from_millis(10_000),
                    raft: RaftOptions::default(),
                };
                let shards = Arc::new(Shards::new(Toy::default(), outside.clock.clone()));
                let secrets = Arc::new(Secrets::new(Secret::new([7; 32])?));
                let member = Member::start(options, outside, secrets, shards).await?;
                members.lock().unwrap().insert(number, Arc::new(member));
                pending().await
            }
        });
    }

    /// The members that run.
    pub fn members(&self) -> Vec<Arc<Member<Toy>>> {
        self.members.lock().unwrap().values().cloned().collect()
    }

    pub fn member(&self, number: u64) -> Arc<Member<Toy>> {
        self.members.lock().unwrap()[&number].clone()
    }

    /// Lets simulated time pass until it is so of the members that run.
    pub fn until(&mut self, what: &str, so: impl Fn(&[Arc<Member<Toy>>]) -> bool) {
        let deadline = self.sim.elapsed() + PATIENCE;
        while !so(&self.members()) {
            assert!(self.sim.elapsed() < deadline, "never: {what}; they wait for {:?}", self.waiting());
            self.sim.step().unwrap();
        }
    }

    /// Until so many share all shards, each a good part.
    pub fn until_they_share(&mut self, count: usize) {
        self.until(&format!("{count} share"), |members| {
            let shares: Vec<usize> = members.iter().map(|member| member.shards().count().serving).collect();
            let owners = shares.iter().filter(|share| **share > 100).count();
            shares.iter().sum::<usize>() == 1024 && owners == count
        });
    }

    /// Until so many vote, as all say.
    pub fn until_they_vote(&mut self, count: usize) {
        self.until(&format!("{count} vote"), |members| {
            members.iter().all(|member| member.raft_voters().len() == count)
        });
    }

    /// The process of a host dies.
    pub fn crash(&mut self, number: u64) {
        self.folders[&number].crash(&SeededEntropy::new(number));
        self.sim.crash(format!("n{number}"));
        self.members.lock().unwrap().remove(&number);
    }

    /// And starts again with what its disk has.
    pub fn start(&mut self, number: u64) {
        self.sim.bounce(format!("n{number}"));
    }

    /// Whoever starts from now on is at another address.
    pub fn move_ports(&self) {
        self.port.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets what is asked be answered.
    pub fn answered<T: Send + 'static>(&mut self, asked: impl Future<Output = T> + Send + 'static) -> T {
        let answer = Arc::new(Mutex::new(None));
        let told = answer.clone();
        self.sim.client(format!("asker-{}", self.sim.elapsed().as_nanos()), async move {
            let told_now = asked.await;
            *told.lock().unwrap() = Some(told_now);
            Ok(())
        });
        let deadline = self.sim.elapsed() + PATIENCE;
        loop {
            if let Some(answer) = answer.lock().unwrap().take() {
                return answer;
            }
            assert!(self.sim.elapsed() < deadline, "never answered");
            self.sim.step().unwrap();
        }
    }

    fn waiting(&self) -> Vec<Option<String>> {
        self.members().iter().map(|member| member.waiting_for().borrow().clone()).collect()
    }
}
