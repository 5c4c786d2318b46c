//! All the connections of a node: which one a call takes, which of two stays, and when one goes.
//!
//! Laws:
//! - one connection per pair of nodes takes new calls. Of two, a dead one's successor stays; else the later one of the same dialler;
//!   else, since both dialled at once, the one dialled by the lower identity. The other finishes what it began;
//! - a secret that is not in use any more takes no new calls, and one that is not held any more has no connection;
//! - what is told of this node ([`Peers::introduce`]) reaches every open connection.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::id::Identity;
use crate::outside::{Listener, Outside, Stream};
use crate::peer::dial::{Dials, Outcome, Step, duration};
use crate::peer::driver::{Driver, End, SUSPECT};
use crate::peer::handshake::{Beginner, Begun, Greeting, PATIENCE, compatible};
use crate::peer::link::{Link, NotBegun, Serials};
use crate::peer::stats::{Counters, PeerStats};
use crate::peer::{ADDRESS_MAX, Busy, CallError, Caller, ConnectError, Hello, PEERS_MAX, Peer, Serve};
use crate::secret::{Secret, Secrets};
use crate::time::Span;
use crate::wire::MESSAGE_MAX;

/// How many connections a node has at once, those included that only finish.
const LINKS_MAX: usize = 2 * PEERS_MAX;

/// How many connections may be beginning at the peers' wish.
const BEGINNING_MAX: usize = 128;

/// How long connections may take to finish at a shutdown.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long the next address behind a name waits for the one before.
const CONNECT: Duration = Duration::from_secs(1);

/// How long a call waits for a connection where the last attempt failed. A peer that is back answers sooner; one that is not must
/// not hold up, attempt after attempt, whoever could do without it.
const DOUBT: Duration = Duration::from_millis(100);

/// What can be chosen.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many calls may wait on one connection; the next is refused.
    pub in_flight: usize,
}

impl Default for Options {
    fn default() -> Self {
        // Some 400,000 calls a second at 10 ms each: what waits beyond is late already.
        Self { in_flight: 4096 }
    }
}

/// The connections of a node.
pub struct Peers {
    inner: Arc<Inner>,
    local_addr: SocketAddr,
}

struct Inner {
    outside: Outside,
    secrets: Arc<Secrets>,
    greeting: Arc<ArcSwap<Greeting>>,
    serve: Arc<dyn Serve>,
    options: Options,
    serials: Serials,
    beginning: Semaphore,
    table: Mutex<Table>,
    /// How many connections there are.
    open: watch::Sender<usize>,
    closing: watch::Sender<bool>,
}

#[derive(Default)]
struct Table {
    /// The connection that takes new calls, per peer.
    current: BTreeMap<Identity, Arc<Link>>,
    /// All of them, by serial.
    links: BTreeMap<u64, Arc<Link>>,
    dials: Dials,
    /// Who was connected, and what was measured of it.
    known: BTreeMap<Identity, (String, Arc<Counters>)>,
    refusals: BTreeMap<&'static str, u64>,
}

impl Peers {
    /// Takes the connections of peers at `at` and answers their calls with `serve`.
    ///
    /// # Errors
    /// The address cannot be had.
    pub async fn start(
        outside: Outside,
        secrets: Arc<Secrets>,
        hello: Hello,
        at: SocketAddr,
        serve: Arc<dyn Serve>,
        options: Options,
    ) -> io::Result<Arc<Self>> {
        let listener = outside.network.listen(at).await?;
        let local_addr = listener.local_addr()?;
        let greeting = Greeting { start: outside.entropy.number(), hello };
        let changes = secrets.watch();
        let inner = Arc::new(Inner {
            outside,
            secrets,
            greeting: Arc::new(ArcSwap::from_pointee(greeting)),
            serve,
            options,
            serials: Serials::default(),
            beginning: Semaphore::new(BEGINNING_MAX),
            table: Mutex::default(),
            open: watch::Sender::new(0),
            closing: watch::Sender::new(false),
        });
        tokio::spawn(Arc::clone(&inner).listen(listener));
        tokio::spawn(Arc::clone(&inner).follow_secrets(changes));
        Ok(Arc::new(Self { inner, local_addr }))
    }

    /// Where it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// This node's `Hello` is another one now: new connections say it, and open ones are told.
    pub fn introduce(&self, hello: Hello) {
        let start = self.inner.greeting.load().start;
        // All under the table's lock: a connection that begins either says the new one or is told, and is told nothing older after it.
        let table = self.inner.table();
        self.inner.greeting.store(Arc::new(Greeting { start, hello: hello.clone() }));
        for link in table.links.values() {
            match compatible(&hello, &link.caller.load().hello, "a peer") {
                Ok(()) => link.introduce(&hello),
                Err(error) => link.close(&error.to_string()),
            }
        }
    }

    /// Calls `to` and waits for the answer, both `within` that time. Giving the future up gives the call up.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call(
        &self,
        to: &Peer,
        kind: u8,
        body: Vec<u8>,
        within: Duration,
    ) -> Result<Bytes, CallError> {
        if body.len() > MESSAGE_MAX {
            let bytes = body.len();
            return Err(CallError::Unreachable(format!("{bytes} bytes are more than a message may have")));
        }
        let body = Bytes::from(body);
        if let Some(link) = self.inner.current(to)
            && let Some(end) = call_on(&link, kind, body.clone(), within)?
        {
            return end.await;
        }
        let before = self.inner.outside.clock.now();
        let left = || {
            let took = duration(self.inner.outside.clock.now().since(before));
            within.checked_sub(took).filter(|left| !left.is_zero())
        };
        // A connection may be told goodbye between its being found and its being used: once more, then.
        for _ in 0..2 {
            let Some(for_link) = left() else { break };
            let link = self.inner.reach(to, for_link).await;
            let link = link.map_err(|error| CallError::Unreachable(error.to_string()))?;
            let Some(for_call) = left() else { break };
            if let Some(end) = call_on(&link, kind, body.clone(), for_call)? {
                return end.await;
            }
        }
        Err(CallError::Unreachable(format!("no connection to {} within {within:?}", to.address)))
    }

    /// Who is at `address`, which may be a name.
    ///
    /// # Errors
    /// Nobody that this node can talk to.
    pub async fn hello(&self, address: &str, within: Duration) -> Result<Hello, ConnectError> {
        let link = self.inner.reach(&Peer::at(address), within).await?;
        Ok(link.caller.load().hello.clone())
    }

    /// What was measured.
    #[must_use]
    pub fn stats(&self) -> PeerStats {
        let table = self.inner.table();
        let mut waiting: BTreeMap<Identity, usize> = BTreeMap::new();
        for link in table.links.values() {
            *waiting.entry(link.caller.load().hello.identity).or_default() += link.in_flight();
        }
        let read = |(&identity, (address, counters)): (&Identity, &(String, Arc<Counters>))| {
            let link = table.current.get(&identity);
            let connected = link.is_some_and(|link| link.is_usable());
            let address =
                link.map_or_else(|| address.clone(), |link| link.caller.load().hello.address.clone());
            counters.read(identity, address, connected, waiting.get(&identity).copied().unwrap_or_default())
        };
        PeerStats {
            peers: table.known.iter().map(read).collect(),
            refusals: table.refusals.iter().map(|(&reason, &count)| (reason, count)).collect(),
            open: table.links.len(),
        }
    }

    /// Takes no more connections, lets the open ones finish for a second, and ends them.
    pub async fn shut_down(&self) {
        self.inner.closing.send_replace(true);
        for link in self.inner.links() {
            link.leave();
        }
        let mut open = self.inner.open.subscribe();
        // Whether they finished or not, what is left is ended.
        let _ = timeout(FAREWELL, open.wait_for(|&open| open == 0)).await;
        self.inner.close_all();
        let _ = timeout(FAREWELL, open.wait_for(|&open| open == 0)).await;
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.inner.closing.send_replace(true);
        self.inner.close_all();
    }
}

/// A call on `link`; `None` if that takes no more.
fn call_on(
    link: &Arc<Link>,
    kind: u8,
    body: Bytes,
    within: Duration,
) -> Result<Option<impl Future<Output = Result<Bytes, CallError>> + use<>>, CallError> {
    match link.call(kind, body, within) {
        Ok(end) => Ok(Some(end)),
        Err(NotBegun::Gone) => Ok(None),
        Err(NotBegun::Busy) => Err(CallError::Refused(Busy::Here)),
    }
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing that can panic runs under it but allocation.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn links(&self) -> Vec<Arc<Link>> {
        self.table().links.values().cloned().collect()
    }

    fn close_all(&self) {
        for link in self.links() {
            link.close("this node is shutting down");
        }
    }

    /// The connection to `to`, if there is one that takes calls.
    fn current(&self, to: &Peer) -> Option<Arc<Link>> {
        let table = self.table();
        let link = match to.identity {
            Some(identity) => table.current.get(&identity),
            // Only what this node dialled: what a peer says of its address is no proof that it is there.
            None => table.current.values().find(|link| link.dialled.as_deref() == Some(&*to.address)),
        };
        link.filter(|link| link.is_usable()).cloned()
    }

    /// A connection to `to`: the one there is, or a new one.
    async fn reach(self: &Arc<Self>, to: &Peer, within: Duration) -> Result<Arc<Link>, ConnectError> {
        if let Some(link) = self.current(to) {
            return Ok(link);
        }
        // Who answers there was found out already, and it is somebody else.
        if let Some(expected) = to.identity
            && let Some(link) = self.current(&Peer::at(&*to.address))
        {
            let found = link.caller.load().hello.identity;
            return Err(ConnectError::OtherIdentity { at: to.address.clone(), expected, found });
        }
        if *self.closing.borrow() {
            return Err(ConnectError::Closing);
        }
        if to.address.len() > ADDRESS_MAX {
            let why = String::from("it is too long");
            return Err(ConnectError::Name { at: to.address.chars().take(ADDRESS_MAX).collect(), why });
        }
        let step = self.table().dials.step(&to.address, self.outside.clock.now());
        let mut attempt = match step {
            Step::Pause(error) => return Err(error),
            Step::Wait(attempt) => attempt,
            Step::Begin(end, attempt) => {
                // A task of its own: who waits may give up, and others wait too.
                tokio::spawn(Arc::clone(self).attempt(to.address.clone(), end));
                attempt
            }
        };
        let within = if attempt.before.is_some() { within.min(DOUBT) } else { within };
        let outcome = match timeout(within, attempt.end.wait_for(Option::is_some)).await {
            Ok(Ok(outcome)) => outcome.clone(),
            Ok(Err(_)) => None,
            Err(_) => {
                let slow = ConnectError::Slow { at: to.address.clone(), within };
                return Err(attempt.before.unwrap_or(slow));
            }
        };
        let link = outcome.unwrap_or(Err(ConnectError::Closing))?;
        match to.identity {
            Some(expected) if link.caller.load().hello.identity != expected => {
                // It may have dialled this node meanwhile.
                self.current(to).ok_or_else(|| {
                    let found = link.caller.load().hello.identity;
                    ConnectError::OtherIdentity { at: to.address.clone(), expected, found }
                })
            }
            _ => Ok(link),
        }
    }

    async fn attempt(self: Arc<Self>, address: String, end: watch::Sender<Option<Outcome>>) {
        let mut closing = self.closing.subscribe();
        let outcome = tokio::select! {
            biased;
            _ = closing.wait_for(|&closing| closing) => Err(ConnectError::Closing),
            outcome = self.dial(&address) => outcome,
        };
        let now = self.outside.clock.now();
        let news = {
            let mut table = self.table();
            if let Err(error) = &outcome {
                table.refused(error.reason());
            }
            table.dials.ended(&address, outcome.as_ref().err(), now, &*self.outside.entropy)
        };
        match &outcome {
            Err(error) if error.may_pass() || !news => tracing::debug!(%error, "no connection"),
            Err(error) => tracing::warn!(%error, "no connection"),
            Ok(_) => {}
        }
        // Everybody may have given up.
        let _ = end.send(Some(outcome));
    }

    /// Dials each address behind `address` in turn.
    async fn dial(self: &Arc<Self>, address: &str) -> Outcome {
        let nameless = |why: String| ConnectError::Name { at: address.to_owned(), why };
        let found = timeout(PATIENCE, self.outside.network.resolve(address)).await;
        let found = found.map_err(|_| nameless(String::from("the resolver does not answer")))?;
        let mut found = found.map_err(|error| nameless(error.to_string()))?;
        found.sort_unstable();
        found.dedup();
        if found.is_empty() {
            return Err(nameless(String::from("it has no address")));
        }
        // Not everybody the same one first.
        let first = self.outside.entropy.below(found.len() as u64) as usize;
        found.rotate_left(first);
        let mut failed = None;
        for to in found {
            match self.dial_one(address, to).await {
                Ok(link) => return Ok(link),
                // A name may have many addresses, this node's too; any other error says more.
                Err(error @ ConnectError::Itself { .. }) => drop(failed.get_or_insert(error)),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or(ConnectError::Closing))
    }

    /// Dials one address, with the secret in use. To who does not hold that, with the others: one of two nodes may be behind in a
    /// rotation, and has to be reached to come to know of it.
    async fn dial_one(self: &Arc<Self>, address: &str, to: SocketAddr) -> Outcome {
        let mut refused = None;
        for secret in self.secrets.in_order() {
            match self.dial_with(address, to, &secret).await {
                Err(error @ ConnectError::UnknownKey { .. }) => drop(refused.get_or_insert(error)),
                outcome => return outcome,
            }
        }
        Err(refused.unwrap_or(ConnectError::Closing))
    }

    async fn dial_with(self: &Arc<Self>, address: &str, to: SocketAddr, secret: &Secret) -> Outcome {
        let at = || address.to_owned();
        let connected = timeout(CONNECT, self.outside.network.connect(to)).await;
        let stream = connected
            .map_err(|_| ConnectError::Absent { at: at(), why: format!("no connection within {CONNECT:?}") })?
            .map_err(|error| ConnectError::Absent { at: at(), why: error.to_string() })?;
        let greeting = self.greeting.load_full();
        let begun = timeout(PATIENCE, self.beginner(&greeting, address).dial(stream, secret)).await;
        let begun = begun.map_err(|_| ConnectError::Silent { at: at() })??;
        self.admit(begun, &greeting, Some(at()), at())
    }

    fn beginner<'a>(&'a self, greeting: &'a Greeting, at: &'a str) -> Beginner<'a> {
        Beginner { entropy: &self.outside.entropy, secrets: &self.secrets, greeting, at }
    }

    async fn listen(self: Arc<Self>, mut listener: Box<dyn Listener>) {
        let mut closing = self.closing.subscribe();
        loop {
            let accepted = tokio::select! {
                biased;
                _ = closing.wait_for(|&closing| closing) => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, from)) => {
                    tokio::spawn(Arc::clone(&self).welcome(stream, from));
                }
                Err(error) => {
                    tracing::warn!(%error, "a peer's connection could not be taken");
                    // Out of file descriptors, say: asking again at once would not help.
                    tokio::time::sleep(duration(Span::from_millis(50))).await;
                }
            }
        }
    }

    /// Begins on a connection that a peer opened.
    async fn welcome(self: Arc<Self>, stream: Box<dyn Stream>, from: SocketAddr) {
        let from = from.to_string();
        let outcome = match self.beginning.try_acquire() {
            Err(_) => Err(ConnectError::Full { at: from.clone() }),
            Ok(_permit) => {
                let greeting = self.greeting.load_full();
                let accepting = timeout(PATIENCE, self.beginner(&greeting, &from).accept(stream)).await;
                accepting
                    .unwrap_or_else(|_| Err(ConnectError::Silent { at: from.clone() }))
                    .and_then(|begun| self.admit(begun, &greeting, None, from.clone()))
            }
        };
        if let Err(error) = outcome {
            let count = self.table().refused(error.reason());
            match error {
                ConnectError::Itself { .. } => {}
                // Ever more rarely: whoever is refused may go on asking.
                error if error.may_pass() || !count.is_power_of_two() => {
                    tracing::debug!(%error, "no connection");
                }
                error => tracing::warn!(%error, "no connection"),
            }
        }
    }

    /// Takes a connection on which both sides are believed, and starts its task. `said` is what this node said of itself on it.
    fn admit(
        self: &Arc<Self>,
        begun: Begun,
        said: &Greeting,
        dialled: Option<String>,
        from: String,
    ) -> Outcome {
        let identity = begun.greeting.hello.identity;
        let address = begun.greeting.hello.address.clone();
        let caller = Caller { hello: begun.greeting.hello.clone(), from };
        let mut table = self.table();
        if *self.closing.borrow() {
            return Err(ConnectError::Closing);
        }
        let counters = table.counters(identity, address)?;
        let link = Arc::new(Link::new(
            self.serials.next(),
            dialled,
            begun.key,
            begun.greeting.start,
            caller,
            Arc::clone(&counters),
            Arc::clone(&self.outside.clock),
            self.options.in_flight,
        ));
        counters.connections.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        table.links.insert(link.serial, Arc::clone(&link));
        let ours = self.greeting.load();
        let stays = match table.current.get(&identity).filter(|existing| existing.is_usable()) {
            Some(existing) => the_new_one_stays(existing, &link, ours.hello.identity),
            None => true,
        };
        let goes =
            if stays { table.current.insert(identity, Arc::clone(&link)) } else { Some(Arc::clone(&link)) };
        self.open.send_replace(table.links.len());
        if ours.hello != said.hello {
            link.introduce(&ours.hello);
        }
        drop(table);
        if self.secrets.get(link.key).is_none() {
            link.close("its secret is not held any more");
        }
        if let Some(goes) = goes {
            match goes.start == link.start {
                true => goes.leave(),
                false => goes.close("the peer has started again"),
            }
        }
        let driver =
            Driver::new(Arc::clone(&link), Arc::clone(&self.serve), Arc::clone(&self.greeting), begun);
        tokio::spawn(Arc::clone(self).drive(Arc::clone(&link), driver));
        Ok(link)
    }

    async fn drive(self: Arc<Self>, link: Arc<Link>, driver: Driver) {
        // If the host's code panics in it, the connection is gone, and is to be forgotten as well.
        let forget = Forget(Arc::clone(&self), Arc::clone(&link));
        let end = driver.run().await;
        let caller = link.caller.load();
        let (peer, from) = (caller.hello.identity, &caller.from);
        match end {
            End::Done(reason) | End::Lost(reason) => tracing::debug!(%peer, from, reason, "connection ended"),
            End::Bad(bad) => {
                self.table().refused("malformed");
                tracing::warn!(%peer, from, %bad, "connection ended: the peer broke a rule");
            }
            End::Stranger(error) => {
                self.table().refused(error.reason());
                tracing::warn!(%peer, from, %error, "connection ended");
            }
        }
        drop(forget);
    }

    /// Leaves and closes connections as the secrets change.
    async fn follow_secrets(self: Arc<Self>, mut changes: watch::Receiver<u64>) {
        let mut closing = self.closing.subscribe();
        loop {
            tokio::select! {
                biased;
                _ = closing.wait_for(|&closing| closing) => return,
                changed = changes.changed() => if changed.is_err() { return },
            }
            let in_use = self.secrets.in_use().id();
            for link in self.links() {
                if self.secrets.get(link.key).is_none() {
                    link.close("its secret is not held any more");
                } else if link.key != in_use {
                    link.leave();
                }
            }
        }
    }
}

/// Whether of two connections with one peer the new one takes the calls from now on.
fn the_new_one_stays(existing: &Link, new: &Link, ours: Identity) -> bool {
    if existing.start != new.start || existing.silent() >= SUSPECT {
        return true;
    }
    match (&existing.dialled, &new.dialled) {
        (Some(_), None) => new.caller.load().hello.identity < ours,
        (None, Some(_)) => ours < new.caller.load().hello.identity,
        // Its dialler has reason to want another one.
        _ => true,
    }
}

impl Table {
    /// Counts a connection that did not come to be, or ended for a fault; says how many there were for this reason.
    fn refused(&mut self, reason: &'static str) -> u64 {
        let count = self.refusals.entry(reason).or_default();
        *count += 1;
        *count
    }

    fn counters(&mut self, identity: Identity, address: String) -> Result<Arc<Counters>, ConnectError> {
        if self.links.len() >= LINKS_MAX {
            return Err(ConnectError::Full { at: address });
        }
        if let Some((known, counters)) = self.known.get_mut(&identity) {
            *known = address;
            return Ok(Arc::clone(counters));
        }
        if self.known.len() >= PEERS_MAX {
            let current = &self.current;
            self.known.retain(|identity, _| current.contains_key(identity));
            if self.known.len() >= PEERS_MAX {
                return Err(ConnectError::Full { at: address });
            }
        }
        let counters = Arc::new(Counters::default());
        self.known.insert(identity, (address, Arc::clone(&counters)));
        Ok(counters)
    }
}

/// Takes a connection out of the table when its task is over, however it ended.
struct Forget(Arc<Inner>, Arc<Link>);

impl Drop for Forget {
    fn drop(&mut self) {
        let Self(inner, link) = self;
        let mut table = inner.table();
        table.links.remove(&link.serial);
        let identity = link.caller.load().hello.identity;
        if table.current.get(&identity).is_some_and(|current| current.serial == link.serial) {
            table.current.remove(&identity);
        }
        inner.open.send_replace(table.links.len());
    }
}
