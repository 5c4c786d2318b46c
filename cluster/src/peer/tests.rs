//! A peer that holds the secret and breaks the rules all the same: its connection ends, for a counted reason, and nothing else does.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use snow::TransportState;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::frame::{Bad, Message, Outbox, What};
use super::handshake::{Beginner, Begun, Greeting, SEAL, common};
use super::*;
use crate::outside::{Clock, Entropy, Folder, OsEntropy, Outside, Stream, TokioNetwork};
use crate::secret::{Secret, Secrets};
use crate::time::Moment;
use crate::wire;

/// Where nothing is measured and nothing kept.
struct Nothing;

impl Clock for Nothing {
    fn now(&self) -> Moment {
        Moment::default()
    }

    fn wall_millis(&self) -> u64 {
        0
    }
}

impl Folder for Nothing {
    fn open(&self) -> std::io::Result<Box<dyn redb::StorageBackend>> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    fn name(&self) -> String {
        String::new()
    }

    fn blocks(&self) -> bool {
        false
    }
}

struct Echo;

impl Serve for Echo {
    fn serve(self: Arc<Self>, _: &Caller, _: u8, body: Bytes) -> Answer {
        Answer::Now(body.to_vec())
    }
}

fn secrets() -> Arc<Secrets> {
    Arc::new(Secrets::new(Secret::new([7; 32]).unwrap()))
}

fn hello(number: u128) -> Hello {
    let address = String::from("a:1");
    Hello { wire: WIRE, cluster: None, identity: Identity(number), node: None, session: None, address }
}

async fn node() -> Arc<Peers> {
    let outside = Outside {
        network: Arc::new(TokioNetwork),
        clock: Arc::new(Nothing),
        entropy: Arc::new(OsEntropy),
        folder: Arc::new(Nothing),
    };
    let at = ([127, 0, 0, 1], 0).into();
    Peers::start(outside, secrets(), hello(1), at, Arc::new(Echo), Options::default()).await.unwrap()
}

/// A peer that follows the rules up to here.
struct Intruder {
    stream: Box<dyn Stream>,
    noise: TransportState,
}

impl Intruder {
    async fn enter(node: &Peers, number: u128) -> Self {
        let stream = tokio::net::TcpStream::connect(node.local_addr()).await.unwrap();
        let entropy: Arc<dyn Entropy> = Arc::new(OsEntropy);
        let greeting = Greeting { start: entropy.number(), hello: hello(number) };
        let beginner = Beginner { entropy: &entropy, secrets: &secrets(), greeting: &greeting, at: "node" };
        let Begun { stream, noise, .. } = beginner.dial(Box::new(stream), &secrets().in_use()).await.unwrap();
        Self { stream, noise }
    }

    async fn send(&mut self, plain: &[u8]) {
        let mut record = vec![0; 2 + plain.len() + SEAL];
        record[..2].copy_from_slice(&((plain.len() + SEAL) as u16).to_be_bytes());
        self.noise.write_message(plain, &mut record[2..]).unwrap();
        // The node may have closed it already.
        let _ = self.stream.write_all(&record).await;
    }

    /// Reads until the node closes the connection.
    async fn closed(&mut self) {
        let mut rest = Vec::new();
        timeout(Duration::from_secs(2), self.stream.read_to_end(&mut rest)).await.expect("it closes").ok();
    }
}

fn frames(messages: impl IntoIterator<Item = Message>) -> Vec<u8> {
    let (mut outbox, mut record) = (Outbox::default(), Vec::new());
    messages.into_iter().for_each(|message| outbox.push(message));
    outbox.fill(&mut record);
    record
}

#[tokio::test]
async fn who_breaks_a_rule_is_cut_off_and_counted() {
    let node = node().await;
    let other = Message { body: wire::encode(&hello(9)).into(), ..Message::bare(What::Hello, 0) };
    let twisted = Message { body: Bytes::from_static(b"?"), ..Message::bare(What::Hello, 0) };
    let bad: [Vec<u8>; 4] = [vec![1, 2, 3], vec![99; 12], frames([other]), frames([twisted])];
    for (count, plain) in (1u64..).zip(bad) {
        let mut intruder = Intruder::enter(&node, 2).await;
        intruder.send(&plain).await;
        intruder.closed().await;
        assert_eq!(node.stats().refusals, [("malformed", count)]);
    }
    let mut intruder = Intruder::enter(&node, 2).await;
    intruder.stream.write_all(&[0, 40]).await.unwrap();
    intruder.stream.write_all(&[7; 40]).await.unwrap();
    intruder.closed().await;
    assert_eq!(node.stats().refusals, [("malformed", 5)], "{}", Bad::Seal);
}

#[tokio::test]
async fn answers_that_nobody_asked_for_are_dropped() {
    let node = node().await;
    let mut intruder = Intruder::enter(&node, 2).await;
    intruder.send(&frames((0..100).map(|id| Message::bare(What::Answer, id)))).await;
    intruder.send(&frames([Message::bare(What::Busy, 5), Message::bare(What::Pong, 6)])).await;
    // The connection still serves.
    intruder.send(&frames([Message::bare(What::Call, 1)])).await;
    let mut length = [0; 2];
    intruder.stream.read_exact(&mut length).await.unwrap();
    assert_eq!(node.stats().open, 1);
}

#[test]
fn two_ranges_of_versions_meet_in_the_newest_of_both() {
    assert_eq!(common((1, 3), (2, 5)), Some(3));
    assert_eq!(common((2, 2), (1, 9)), Some(2));
    assert_eq!(common((1, 1), (2, 3)), None);
    assert_eq!(common((1, 1), (5, 0)), None, "no range at all");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_sealed_bytes_leave_the_node_serving(records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..8)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let node = node().await;
            let mut intruder = Intruder::enter(&node, 2).await;
            for record in &records {
                intruder.send(record).await;
            }
            let mut honest = Intruder::enter(&node, 3).await;
            honest.send(&frames([Message::bare(What::Call, 1)])).await;
            let mut length = [0; 2];
            honest.stream.read_exact(&mut length).await.unwrap();
        });
    }
}
