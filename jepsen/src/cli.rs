//! The command line: which faults, under which traffic, for how long; then the verdicts. Exit codes: 0 kept, 1 broken, 2 inconclusive or a
//! failure of the harness.

mod canary;

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::checker::Outcome;
use crate::cluster::Options;
use crate::history::History;
use crate::nemesis::{Nemesis, Role};
use crate::network::Host;
use crate::peers::{self, Place, System};
use crate::random::Random;
use crate::report;
use crate::run::{Order, run};
use crate::workload::{Workload, sdk};

/// Break a cluster of Tollgate on purpose, and check that nothing was overspent.
#[derive(Debug, Parser)]
#[command(name = "tollgate-jepsen", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Twelve faults in at most six minutes, one of each kind that matters most
    Smoke(Common),
    /// All faults and all traffic, in random order and length, for hours; with five nodes the ring of majorities too
    Soak {
        /// For how long; a fraction is allowed
        #[arg(long, value_name = "H")]
        hours: f64,
        #[command(flatten)]
        common: Common,
    },
    /// One kind of fault under one kind of traffic
    One {
        /// Which faults, separated by commas
        #[arg(long, value_delimiter = ',', required = true)]
        nemesis: Vec<Nemesis>,
        /// How often each
        #[arg(long, default_value_t = 3)]
        windows: usize,
        /// Whom they strike; by chance, if nobody is named
        #[arg(long)]
        role: Option<Role>,
        /// How long each lasts, in milliseconds; by chance, if not said
        #[arg(long, value_name = "MS")]
        length: Option<u64>,
        #[command(flatten)]
        common: Common,
    },
    /// Judge an old run again
    Recheck {
        /// The run's folder
        folder: PathBuf,
    },
    /// Other limiters under the same faults: how much too much each lets through, as a table
    Peers(Common),
    /// A host of another limiter, within a run
    #[command(hide = true)]
    Peer {
        /// Which limiter
        #[arg(long)]
        system: System,
        /// The host's number
        #[arg(long)]
        host: Host,
        /// The run's folder
        #[arg(long)]
        run: PathBuf,
    },
    /// Faults that are built into the product (`--cfg mutant`): each must be caught
    Canary {
        /// Only this one
        #[arg(long)]
        mutant: Option<String>,
        #[command(flatten)]
        common: Common,
    },
}

/// What all runs have in common.
#[derive(Clone, Debug, Args)]
struct Common {
    /// The binary under test [default: `tollgate` beside this one]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Chance begins here
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Nodes of the cluster
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=9))]
    nodes: u8,
    /// What callers do [default: all; of a soak, everything]
    #[arg(long, value_enum)]
    workload: Option<Workload>,
    /// What a saturated tenant may have, in requests a second [default: 40; of the smoke, 150]
    #[arg(long)]
    rate: Option<u64>,
    /// The length of a lease, in milliseconds
    #[arg(long, default_value_t = 1500)]
    lease: u64,
    /// The run's folder [default: target/jepsen/COMMAND-SEED]
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Without namespaces, on 127.0.0.x
    #[arg(long)]
    plain: bool,
}

/// What CI runs, in this order: the twelve that find most, at whom, and for how many tenths of a lease.
const SMOKE: [(Nemesis, Option<Role>, u32); 12] = [
    (Nemesis::Kill, Some(Role::Leader), 50),
    (Nemesis::Kill, Some(Role::Owner), 9),
    (Nemesis::Pause, Some(Role::Owner), 20),
    (Nemesis::Suspend, Some(Role::Owner), 20),
    (Nemesis::WallJump, None, 11),
    (Nemesis::PartitionOneWay, None, 20),
    (Nemesis::Partition, Some(Role::Owner), 50),
    (Nemesis::Mess, None, 50),
    (Nemesis::DiskEio, None, 11),
    (Nemesis::DiskFull, None, 20),
    (Nemesis::Rolling, None, 3),
    (Nemesis::JoinLeave, None, 20),
];

/// Those that a soak draws from: all that so many nodes can bear.
fn of_a_soak(nodes: u8) -> Vec<Nemesis> {
    Nemesis::value_variants().iter().copied().filter(|nemesis| nodes >= 5 || !nemesis.needs_five()).collect()
}

/// What a saturated tenant may have in a smoke, in requests a second: so that there are enough admissions.
const SMOKE_RATE: u64 = 150;
/// The admissions that a smoke must check. A machine of two cores that does nothing else comes to twice as many in four minutes.
const SMOKE_ADMISSIONS: usize = 100_000;
/// Nothing is broken for so long after each fault of a smoke.
const SMOKE_RECOVERY: Duration = Duration::from_secs(10);
/// How long a smoke may take to get there, without what comes before the callers and after them.
const SMOKE_PATIENCE: Duration = Duration::from_secs(5 * 60);

/// No fault of a soak is over sooner, with what comes after it: so many are drawn that time ends it.
const SOAK_WINDOW: Duration = Duration::from_secs(7);
/// A soak must come to one in so long. Two quiet cores come to one in fourteen seconds.
const SOAK_EACH: Duration = Duration::from_secs(24);

/// Reads the command line and does what it says.
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Recheck { folder } => judge(&folder),
        Command::Peer { system, host, run } => {
            peers::serve(Place { system, host, run }).map(|()| Outcome::Kept)
        }
        command => {
            let lock = alone();
            lock.and_then(|_lock| perform(command))
        }
    };
    match outcome {
        Ok(outcome) => ExitCode::from(outcome.code()),
        Err(problem) => {
            eprintln!("tollgate-jepsen: {problem}");
            ExitCode::from(2)
        }
    }
}

fn perform(command: Command) -> Result<Outcome, String> {
    match command {
        Command::Smoke(common) => {
            let mut order =
                order(&common, "smoke", SMOKE.map(|(nemesis, _, _)| nemesis).to_vec(), Vec::new())?;
            let lease = order.options.lease;
            order.each = SMOKE.map(|(_, role, tenths)| (role, lease * tenths / 10)).to_vec();
            order.rate = common.rate.unwrap_or(SMOKE_RATE);
            order.recovery = SMOKE_RECOVERY;
            (order.admissions, order.patience) = (SMOKE_ADMISSIONS, SMOKE_PATIENCE);
            conclude(order)
        }
        Command::Soak { hours, mut common } => {
            common.workload.get_or_insert(Workload::Everything);
            let lasting = Duration::try_from_secs_f64(hours * 3600.0)
                .map_err(|error| format!("--hours {hours}: {error}"))?;
            let count = lasting.as_secs().div_ceil(SOAK_WINDOW.as_secs()) as usize;
            let (mut chance, kinds) = (Random::new(common.seed).fork(7), of_a_soak(common.nodes));
            let mut bag = Vec::new();
            let faults = (0..count).map(|_| {
                // Every kind once before any comes again.
                if bag.is_empty() {
                    bag.clone_from(&kinds);
                }
                let place = chance.below(bag.len() as u64) as usize;
                bag.swap_remove(place)
            });
            let mut order = order(&common, "soak", faults.collect(), Vec::new())?;
            order.lasting = Some(lasting);
            order.windows = (lasting.as_secs() / SOAK_EACH.as_secs()).max(1) as usize;
            order.admissions = order.windows * 200;
            order.kinds = kinds;
            conclude(order)
        }
        Command::One { nemesis, windows, role, length, common } => {
            if let Some(five) = nemesis.iter().find(|nemesis| nemesis.needs_five() && common.nodes < 5) {
                return Err(format!("{} takes five nodes: --nodes 5", five.name()));
            }
            let faults: Vec<Nemesis> =
                nemesis.iter().flat_map(|nemesis| std::iter::repeat_n(*nemesis, windows)).collect();
            let name = nemesis.iter().map(|nemesis| nemesis.name()).collect::<Vec<_>>().join("+");
            let mut order = order(&common, &name, faults, Vec::new())?;
            (order.role, order.length) = (role, length.map(Duration::from_millis));
            conclude(order)
        }
        Command::Canary { mutant, common } => canary::canary(&common, mutant.as_deref()),
        Command::Peers(common) => {
            let table = peers::compare(|name, system| {
                let mut order = order(&common, name, Vec::new(), Vec::new())?;
                order.options.audit &= system == System::Tollgate;
                order.options.system = system;
                Ok(order)
            })?;
            println!("{table}");
            Ok(Outcome::Kept)
        }
        Command::Peer { .. } | Command::Recheck { .. } => Err("it is no run".to_owned()),
    }
}

fn order(
    common: &Common,
    name: &str,
    faults: Vec<Nemesis>,
    environment: Vec<(String, String)>,
) -> Result<Order, String> {
    if common.plain {
        return Err("without namespaces it cannot be done yet: a switch between sockets on 127.0.0.x is missing. Run as root \
             (CAP_SYS_ADMIN, CAP_NET_ADMIN) with /dev/net/tun and iproute2"
            .to_owned());
    }
    let binary = binary(common.binary.as_deref())?;
    let workload = common.workload.unwrap_or(Workload::All);
    let python = workload.takes_python().then(sdk::python).transpose()?;
    let folder = common.folder.clone().unwrap_or_else(|| {
        let name = format!("{name}-{}", common.seed);
        PathBuf::from("target/jepsen").join(name)
    });
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let folder = folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(Order {
        seed: common.seed,
        nodes: common.nodes,
        workload,
        rate: common.rate.unwrap_or(40),
        role: None,
        each: Vec::new(),
        length: None,
        quiet: Duration::from_secs(15),
        recovery: Duration::from_secs(7),
        admissions: (faults.len().max(1)) * 200,
        patience: Duration::ZERO,
        windows: faults.len(),
        kinds: Vec::new(),
        lasting: None,
        faults,
        python,
        options: Options {
            system: System::Tollgate,
            audit: Options::can_audit(&binary),
            binary,
            lease: Duration::from_millis(common.lease),
            environment,
            failpoint: None,
        },
        folder,
    })
}

/// Runs it and judges it. A run that did not come to its end is judged too, and passes for nothing.
fn conclude(order: Order) -> Result<Outcome, String> {
    let folder = order.folder.clone();
    let ran = run(order);
    let outcome = judge(&folder)?;
    match ran {
        Ok(()) => Ok(outcome),
        Err(problem) => {
            eprintln!("the run did not come to its end: {problem}");
            // What was seen to be broken stays broken; nothing else is believed.
            Ok(outcome.max(Outcome::Inconclusive))
        }
    }
}

fn judge(folder: &Path) -> Result<Outcome, String> {
    let history = History::read(folder)?;
    let (outcome, text) = report::write(folder, &history)?;
    println!("{text}");
    Ok(outcome)
}

/// The binary under test: the one that was named, else the one beside this one.
fn binary(named: Option<&Path>) -> Result<PathBuf, String> {
    let beside = || Some(std::env::current_exe().ok()?.parent()?.join("tollgate"));
    let binary = named.map(Path::to_owned).or_else(beside).unwrap_or_default();
    binary.canonicalize().map_err(|error| {
        format!("no binary to test at {}: {error}. Build it (`cargo build --bin tollgate`) or name it with --binary", binary.display())
    })
}

/// Two runs at once would starve each other, and both would say so of the cluster.
fn alone() -> Result<File, String> {
    let path = std::env::temp_dir().join("tollgate-jepsen.lock");
    let file = File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err("another run is under way on this machine".to_owned()),
        Err(TryLockError::Error(error)) => Err(format!("{}: {error}", path.display())),
    }
}
