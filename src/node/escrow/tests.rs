//! Stories of purses on a node that is its own cluster, in virtual time, over a log that loses what it is told to lose.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tollgate_cluster::agreed::At;
use tollgate_cluster::authority::{Authority, Position};
use tollgate_cluster::id::{ClusterId, LogIndex, NodeId, SessionId, Term};
use tollgate_cluster::log_time::LogTime;
use tollgate_cluster::member::HostError;
use tollgate_cluster::outside::Clock;
use tollgate_cluster::time;

use super::drawing::{Log, draw};
use super::refusal;
use crate::control::policy::{Commit, Origin};
use crate::control::pool::PoolView;
use crate::control::{Command, Control, codec, terms};
use crate::limit::{Amount, Denial, Dimension, Lack, Options, Span, Units};
use crate::node::{Asking, Guard, Node, Principal, Reserved, Snapshot};
use crate::policy::{KeyHash, Policy};
use crate::route::Endpoint;

/// Tokio's clock, which stands still while anything can be done.
struct Still(tokio::time::Instant);

impl Clock for Still {
    fn now(&self) -> time::Moment {
        let run = crate::clock::timer_now().duration_since(self.0).as_nanos();
        time::Moment::from_nanos(1_000_000_000 + u64::try_from(run).unwrap())
    }

    fn wall_millis(&self) -> u64 {
        1_800_000_000_000 + self.now().as_nanos() / 1_000_000
    }
}

/// What happens to a command.
#[derive(Clone, Copy)]
enum Fault {
    /// It does not arrive.
    Lost,
    /// It is done, and nobody hears of it.
    Unheard,
}

/// The log of a node that is its own cluster, without a disk.
struct Alone {
    clock: Arc<Still>,
    control: Mutex<Control>,
    faults: Mutex<VecDeque<Fault>>,
    commands: AtomicU64,
    /// Every command that was said, answered or not.
    said: Mutex<Vec<Vec<u8>>>,
}

impl Alone {
    fn obey(&self, command: Command) -> crate::control::Answer {
        let authority = Authority::new(ClusterId(1));
        let index = LogIndex(self.commands.fetch_add(1, Ordering::Relaxed));
        let position = Position { index, term: Term { number: 1, leader: NodeId(0) } };
        let time = LogTime(self.clock.now().as_nanos());
        self.control.lock().unwrap().obey(&At { position, time, authority: &authority }, command)
    }

    fn view(&self) -> PoolView {
        self.control.lock().unwrap().pools().view("main").unwrap()
    }
}

#[async_trait]
impl Log for Alone {
    async fn propose(&self, command: Vec<u8>) -> Result<Arc<[u8]>, HostError> {
        let fault = self.faults.lock().unwrap().pop_front();
        self.said.lock().unwrap().push(command.clone());
        pass(Duration::from_millis(3)).await;
        if matches!(fault, Some(Fault::Lost)) {
            return Err(HostError::NotProposed("lost".to_owned()));
        }
        let answer = self.obey(codec::read_command(&command).unwrap());
        pass(Duration::from_millis(3)).await;
        match fault {
            Some(Fault::Unheard) => Err(HostError::Unknown("unheard".to_owned())),
            _ => Ok(codec::answer(&answer).into()),
        }
    }

    fn control(&self) -> Option<Control> {
        Some(self.control.lock().unwrap().clone())
    }

    fn changed(&self) -> Option<watch::Receiver<u64>> {
        None
    }
}

/// Lets so much of the paused clock go by.
async fn pass(time: Duration) {
    let _elapsed = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

struct Story {
    node: Arc<Node>,
    log: Arc<Alone>,
    principal: Arc<Principal>,
    stopping: CancellationToken,
}

fn policy(pool: &str) -> Policy {
    let hash = KeyHash::of(b"k");
    let text = format!(
        "version: 1\nproviders: {{ p: {{ dialect: openai, base_url: 'http://127.0.0.1:1' }} }}\npools: {{ main: {{ provider: p, {pool} }} }}\n\
         models: {{ m: {{ provider: p, pool: main }} }}\ntiers: {{ t: {{ tokens_per_minute: 10_000_000 }} }}\n\
         tenants: [ {{ id: acme, tier: t, keys: [ {{ label: k, hash: '{hash}' }} ] }} ]\n"
    );
    crate::policy::parse(&text, "the story's policy").unwrap_or_else(|problems| panic!("{problems}"))
}

impl Story {
    /// A node whose one model is served by this pool: the inside of a YAML flow mapping.
    fn of(pool: &str) -> Self {
        let clock = Arc::new(Still(crate::clock::timer_now()));
        let log = Arc::new(Alone {
            clock: clock.clone(),
            control: Mutex::default(),
            faults: Mutex::default(),
            commands: AtomicU64::new(0),
            said: Mutex::default(),
        });
        let node = Arc::new(Node::alone(Snapshot::nothing(), Options::default(), clock));
        let principal = Arc::new(Principal::new("acme".into(), "k".into(), None, "t".into(), Some(0)));
        let story = Self { node, log, principal, stopping: CancellationToken::new() };
        story.edit(pool);
        story.draws();
        story
    }

    /// Another pool is agreed on, and in force here at once.
    fn edit(&self, pool: &str) {
        let policy = policy(pool);
        let basis = self.log.control.lock().unwrap().version();
        self.log.obey(Command::Policy(Commit {
            basis,
            expect: None,
            document: pool.as_bytes().to_vec(),
            digest: [pool.len() as u8; 32],
            origin: Origin::Operator,
            by: "a story".to_owned(),
            wall_millis: 0,
            settings: terms::settings(&policy),
        }));
        self.node.apply(self.node.snapshot().next(policy, self.node.now()));
    }

    fn draws(&self) {
        let (node, log, stopping) = (self.node.clone(), self.log.clone(), self.stopping.clone());
        tokio::spawn(async move { draw(node, log, stopping).await });
    }

    async fn ask(&self, tokens: u64) -> Result<Guard, Denial> {
        let model = "m".into();
        let asking = Asking {
            id: self.node.new_id(),
            principal: &self.principal,
            endpoint: Endpoint::ChatCompletions,
            user: None,
            model_asked: "m",
            model: &model,
            provider: "p",
            estimate: Amount::new(tokens, 0),
            idempotency: None,
            lane: crate::limit::Lane::Regular,
        };
        match self.node.reserve(asking).await {
            Reserved::Held(guard) => Ok(guard),
            Reserved::Denied(denial, _) => Err(denial),
        }
    }

    /// Asks for `tokens` every `pause` until so much time has passed, each settled as it was estimated: how many were admitted and refused.
    async fn load(&self, tokens: u64, pause: Duration, length: Duration) -> (u64, u64) {
        let end = crate::clock::timer_now() + length;
        let (mut admitted, mut refused) = (0, 0);
        while crate::clock::timer_now() < end {
            match self.ask(tokens).await {
                Ok(mut guard) => {
                    admitted += 1;
                    guard.sending();
                    guard.settle(Amount::new(tokens, 0), "usage");
                }
                Err(Denial::Pool { lack: Lack::Later { .. }, .. }) => refused += 1,
                Err(denial) => panic!("{denial:?}"),
            }
            pass(pause).await;
        }
        (admitted, refused)
    }

    fn waits(&self) -> u64 {
        self.node.metrics.grant_waits.get()
    }
}

const MILLI: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn hardly_anybody_waits_for_a_pool_that_has_enough_and_the_log_grows_slowly() {
    let story = Story::of("ceiling: { tokens_per_minute: 600_000 }");
    // 300,000 a minute of the 510,000 that the guard lets through.
    let (admitted, refused) = story.load(50, 10 * MILLI, Duration::from_secs(60)).await;
    assert_eq!(refused, 0);
    assert!(admitted > 5_900, "{admitted}");
    // Until the purse knows how much is asked for; a thousandth of all.
    assert!(story.waits() <= 6, "{} waited", story.waits());
    let commands = story.log.commands.load(Ordering::Relaxed);
    assert!((40..=240).contains(&commands), "{commands} commands in a minute");
    let books = story.log.view().levels[0].books;
    let spent = u128::from(admitted) * 50;
    assert!(books.spent <= spent && spent - books.spent <= 20_000, "{books:?} of {spent}");
}

#[tokio::test(start_paused = true)]
async fn a_scarce_pool_is_used_up_and_refuses_at_once() {
    let story = Story::of("refund_credit: none, ceiling: { tokens_per_minute: 600_000 }");
    // One and a half times what the guard lets through.
    let began = crate::clock::timer_now();
    let (admitted, refused) = story.load(127, 10 * MILLI, Duration::from_secs(120)).await;
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    let most = 60_000.0 + 510_000.0 * minutes;
    let spent = admitted as f64 * 127.0;
    assert!(refused > 1_000, "{refused} refused");
    assert!(spent <= most, "{spent} of {most}");
    assert!(spent >= 0.97 * 510_000.0 * minutes, "{spent} of {}", 510_000.0 * minutes);
    // Who is refused does not wait for it.
    assert!(story.waits() < 20, "{} waited", story.waits());
}

#[tokio::test(start_paused = true)]
async fn what_is_not_answered_is_said_again_as_it_was_and_counts_once() {
    let story = Story::of("ceiling: { tokens_per_minute: 600_000 }");
    drop(story.ask(100).await.unwrap());
    pass(Duration::from_secs(3)).await;
    story.log.said.lock().unwrap().clear();
    story.log.faults.lock().unwrap().extend([Fault::Lost, Fault::Unheard, Fault::Unheard]);
    let mut guard = story.ask(20_000).await.unwrap();
    guard.sending();
    guard.settle(Amount::new(20_000, 0), "usage");
    {
        let said = story.log.said.lock().unwrap();
        assert!(said.len() >= 4, "{}", said.len());
        assert!(said[1..4].iter().all(|command| *command == said[0]), "something else was said");
    }
    pass(Duration::from_secs(3)).await;
    let level = story.log.view().levels[0];
    assert_eq!(level.books.spent, 20_100);
}

#[tokio::test(start_paused = true)]
async fn a_stop_gives_all_back_and_a_crash_writes_it_off() {
    let story = Story::of("ceiling: { tokens_per_minute: 600_000 }");
    let held = |story: &Story| story.log.view().levels[0].outstanding;
    story.ask(1_000).await.unwrap().close("estimated");
    pass(Duration::from_millis(500)).await;
    assert!(held(&story) > 0);
    story.node.return_purses(Duration::from_secs(1)).await;
    assert_eq!(held(&story), 0);
    assert!(story.node.escrow().is_empty());

    // The next life of the node, and one more that nobody stopped in good order.
    story.stopping.cancel();
    let lives: Vec<Story> = (0..2)
        .map(|_| {
            let clock = story.log.clock.clone();
            let node = Arc::new(Node::alone(Snapshot::nothing(), Options::default(), clock));
            let (log, principal) = (story.log.clone(), story.principal.clone());
            Story { node, log, principal, stopping: CancellationToken::new() }
        })
        .collect();
    for life in &lives {
        life.edit("ceiling: { tokens_per_minute: 600_000 }");
        life.draws();
        life.ask(2_000).await.unwrap().close("estimated");
        life.stopping.cancel();
    }
    let books = story.log.view().levels[0].books;
    assert!(books.written_off >= 2_000, "{books:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_larger_than_the_burst_is_told_so_and_one_that_waits_in_vain_what_it_waited_for() {
    let story = Story::of("ceiling: { tokens_per_minute: 600_000 }");
    let never = story.ask(60_001).await.err().unwrap();
    assert!(matches!(never, Denial::Pool { lack: Lack::Never { capacity: 60_000, .. }, .. }), "{never:?}");
    // Nobody answers for so long as a request waits.
    story.log.faults.lock().unwrap().extend([Fault::Lost; 100]);
    let began = crate::clock::timer_now();
    let late = story.ask(50_000).await.err().unwrap();
    assert!(matches!(late, Denial::Pool { lack: Lack::Later { .. }, .. }), "{late:?}");
    assert!((Duration::from_secs(2)..Duration::from_secs(3)).contains(&began.elapsed()));
    // So did the first of all, for the purse to begin.
    assert_eq!(story.waits(), 2);
}

#[tokio::test(start_paused = true)]
async fn settlement_reports_what_was_spared_and_pays_what_was_exceeded() {
    let story = Story::of("ceiling: { tokens_per_minute: 600_000, requests_per_minute: 6_000 }");
    for (used, n) in [(400, 0), (1_300, 1)] {
        let mut guard = story.ask(1_000).await.unwrap();
        guard.sending();
        guard.settle(Amount::new(used, 0), "usage");
        assert_eq!(story.node.metrics.inflight.get(), 0, "{n}");
    }
    drop(story.ask(500).await.unwrap());
    pass(Duration::from_secs(5)).await;
    let view = story.log.view();
    let books =
        |dimension: Dimension| view.levels.iter().find(|level| level.dimension == dimension).unwrap().books;
    assert_eq!(books(Dimension::Tokens).spent, 1_000 + 1_300 + 500);
    assert_eq!(books(Dimension::Requests).spent, 3);
    // 600 spared, and 500 of one that was never sent.
    assert_eq!(books(Dimension::Tokens).issued, 60_000 + 1_100 + (books(Dimension::Tokens).issued - 61_100));
    assert!(books(Dimension::Tokens).issued >= 61_100, "{:?}", books(Dimension::Tokens));
}

#[tokio::test(start_paused = true)]
async fn each_attempt_is_paid_by_the_pool_and_the_tenant_pays_once() {
    let story = Story::of("ceiling: { tokens_per_minute: 600_000 }");
    let mut guard = story.ask(1_000).await.unwrap();
    guard.sending();
    assert_eq!(guard.pay_again().await, Ok(()));
    guard.sending();
    // One that did not go out has paid for the next.
    guard.not_sent();
    assert_eq!(guard.pay_again().await, Ok(()));
    guard.sending();
    assert_eq!(guard.pay_again().await, Ok(()));
    guard.settle(Amount::new(1_000, 0), "usage");
    pass(Duration::from_secs(5)).await;
    assert_eq!(story.log.view().levels[0].books.spent, 3_000);
    let tenant = story.node.owners().tenant(&"acme".into()).unwrap();
    assert_eq!(story.node.owners().books().settled, 1_000);
    assert!(tenant.open == 0);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_refuses_closes_its_pool_for_as_long_as_it_says() {
    let story = Story::of("ceiling: { tokens_per_minute: 600_000 }");
    let guard = story.ask(1_000).await.unwrap();
    for _ in 0..10 {
        guard.heard(refusal(Span::from_secs(4)));
    }
    let commands = story.log.commands.load(Ordering::Relaxed);
    pass(Duration::from_secs(1)).await;
    let said = story.log.commands.load(Ordering::Relaxed) - commands;
    assert!(said <= 5, "{said} commands");
    let paused = story.ask(10).await.err().unwrap();
    let Denial::Pool { lack: Lack::Paused { wait }, .. } = paused else { panic!("{paused:?}") };
    assert!(wait <= Span::from_secs(4) && wait > Span::from_secs(2), "{wait:?}");
    assert!(story.log.view().brake.is_some());
    pass(Duration::from_secs(4)).await;
    drop(story.ask(10).await.unwrap());
    guard.close("estimated");
}

#[tokio::test(start_paused = true)]
async fn an_edit_binds_the_next_admission_and_another_sessions_purse_pays_nothing() {
    let story = Story::of("ceiling: { tokens_per_minute: 600_000 }");
    story.ask(20_000).await.unwrap().close("estimated");
    story.edit("burst_tokens: 5_000, ceiling: { tokens_per_minute: 60_000 }");
    let refused = story.ask(5_001).await.err().unwrap();
    assert!(matches!(refused, Denial::Pool { lack: Lack::Never { capacity: 5_000, .. }, .. }), "{refused:?}");
    story.edit("ceiling: { requests_per_minute: 6_000 }");
    story.ask(1_000_000).await.unwrap().close("estimated");

    use crate::limit::Purser as _;
    story.edit("ceiling: { tokens_per_minute: 600_000 }");
    pass(Duration::from_secs(1)).await;
    let mut other = story.node.escrow().hand(SessionId(9));
    let denied = other.pay_again(story.node.now(), &"main".into(), Units([1; 4]));
    assert!(denied.is_err_and(|denial| denial.is_granting()));
}

#[tokio::test(start_paused = true)]
async fn purses_are_forgotten_with_their_session() {
    let story = Story::of("ceiling: { tokens_per_minute: 600_000 }");
    story.ask(1_000).await.unwrap().close("estimated");
    let held = |story: &Story| story.node.escrow().purses(story.node.now())[0].held;
    assert!(held(&story)[0] > 0);
    story.stopping.cancel();
    story.node.escrow().begin(SessionId(9));
    assert_eq!(held(&story), [0; 4]);
    // What is answered to the session before is nobody's.
    let mut other = story.node.escrow().hand(SessionId(9));
    let denied = crate::limit::Purser::pay_again(&mut other, story.node.now(), &"main".into(), Units([1; 4]));
    assert!(matches!(denied, Err(Denial::Granting(inside)) if matches!(*inside, Denial::Pool { .. })));
}
