//! How a connection begins: each side proves that it holds the cluster's secret, then says who it is.
//!
//! ```text
//! dialler                                                     the other
//! "TGP" │ wire from, to: u16, u16 │ key u128 │ Noise 1 (48) ─▶
//!                          ◀─ 0 │ wire from, to: u16, u16 │ Noise 2 (48), or 1..: a reason, and the end
//! length u16 │ sealed greeting ─▶              ◀─ length u16 │ sealed greeting
//! ```
//! Noise is `NNpsk0`: the secret is the proof of both sides, and a fresh key of each keeps what was said secret even from who
//! learns the secret later. What precedes it in clear is in its prologue, so that nobody between the two can change it unseen. The
//! reason is only for words: it is not believed for anything else.
//!
//! Which node it is, the other says; that it is one of the cluster's is all that a secret shared by all can prove.
//!
//! The layout of all of this is the same in every wire version. Never here: which of two connections stays.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState, TransportState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::keyring::KeyId;
use crate::outside::{Entropy, Stream};
use crate::peer::error::ConnectError;
use crate::peer::frame::Bad;
use crate::peer::{ADDRESS_MAX, Hello};
use crate::secret::{Key, Secret, Secrets};
use crate::wire;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
const MAGIC: &[u8; 3] = b"TGP";
const CLEAR: usize = 3 + 2 + 2 + 16;
const RANGE: usize = 2 + 2;
/// An ephemeral key and the seal of an empty payload.
const NOISE: usize = 32 + SEAL;
/// What sealing adds.
pub(super) const SEAL: usize = 16;
/// A greeting with the longest address has about 400 bytes.
const GREETING_MAX: usize = 1024;
/// The layout of a greeting.
const GREETING_FORMAT: u8 = 1;

/// How long a connection may take to begin: two round trips and a few seconds of a stalled machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// The first byte of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Verdict {
    GoOn = 0,
    UnknownKey = 1,
    BadProof = 2,
    Wire = 3,
}

/// What each side says of itself once it is believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Greeting {
    /// Random for each start of a process: a restarted peer's older connections are dead.
    pub(super) start: u128,
    pub(super) hello: Hello,
}

/// A connection on which both sides are believed.
pub(super) struct Begun {
    pub(super) stream: Box<dyn Stream>,
    pub(super) noise: TransportState,
    pub(super) greeting: Greeting,
    pub(super) key: KeyId,
}

/// What a side needs to begin.
pub(super) struct Beginner<'a> {
    pub(super) entropy: &'a Arc<dyn Entropy>,
    pub(super) secrets: &'a Secrets,
    pub(super) greeting: &'a Greeting,
    /// The peer's address, for errors.
    pub(super) at: &'a str,
}

impl Beginner<'_> {
    /// Begins on a connection that this node opened, with `secret`.
    pub(super) async fn dial(
        &self,
        mut stream: Box<dyn Stream>,
        secret: &Secret,
    ) -> Result<Begun, ConnectError> {
        let key = secret.id();
        let ours = self.greeting.hello.wire;
        let mut hail = [0; CLEAR + NOISE];
        hail[..3].copy_from_slice(MAGIC);
        hail[3..7].copy_from_slice(&range_bytes(ours));
        hail[7..CLEAR].copy_from_slice(&key.0.to_le_bytes());
        let mut noise = noise(self.entropy, secret.connections(), &hail[..CLEAR], true);
        if noise.write_message(&[], &mut hail[CLEAR..]).is_err() {
            return Err(self.bad_proof(key));
        }
        stream.write_all(&hail).await.map_err(|error| self.lost(&error))?;

        let verdict = stream.read_u8().await.map_err(|error| self.lost(&error))?;
        match verdict {
            code if code == Verdict::GoOn as u8 => {}
            code if code == Verdict::UnknownKey as u8 => {
                return Err(ConnectError::UnknownKey { at: self.at.to_owned(), key });
            }
            code if code == Verdict::BadProof as u8 => return Err(self.bad_proof(key)),
            code if code == Verdict::Wire as u8 => return Err(self.no_wire()),
            _ => return Err(ConnectError::NotAPeer { at: self.at.to_owned() }),
        }
        let mut answer = [0; RANGE + NOISE];
        stream.read_exact(&mut answer).await.map_err(|error| self.lost(&error))?;
        let (range, proof) = answer.split_at(RANGE);
        if noise.read_message(proof, &mut []).is_err() {
            return Err(self.bad_proof(key));
        }
        self.greet(stream, noise, key, range).await
    }

    /// Begins on a connection that the peer opened.
    pub(super) async fn accept(&self, mut stream: Box<dyn Stream>) -> Result<Begun, ConnectError> {
        let mut hail = [0; CLEAR + NOISE];
        // All of it before any answer: what is closed with something unread may take the answer down with it.
        stream.read_exact(&mut hail).await.map_err(|error| self.lost(&error))?;
        let (clear, proof) = hail.split_at(CLEAR);
        if clear[..3] != MAGIC[..] {
            return Err(ConnectError::NotAPeer { at: self.at.to_owned() });
        }
        let ours = self.greeting.hello.wire;
        if common(ours, range_of(&clear[3..7])).is_none() {
            return Err(self.refuse(stream, Verdict::Wire, self.no_wire()).await);
        }
        let mut key = [0; 16];
        key.copy_from_slice(&clear[7..]);
        let key = KeyId(u128::from_le_bytes(key));
        let Some(secret) = self.secrets.get(key) else {
            let error = ConnectError::ForeignKey { at: self.at.to_owned(), key };
            return Err(self.refuse(stream, Verdict::UnknownKey, error).await);
        };
        let mut noise = noise(self.entropy, secret.connections(), clear, false);
        if noise.read_message(proof, &mut []).is_err() {
            return Err(self.refuse(stream, Verdict::BadProof, self.bad_proof(key)).await);
        }
        let mut answer = [0; 1 + RANGE + NOISE];
        answer[0] = Verdict::GoOn as u8;
        answer[1..=RANGE].copy_from_slice(&range_bytes(ours));
        if noise.write_message(&[], &mut answer[1 + RANGE..]).is_err() {
            return Err(self.bad_proof(key));
        }
        stream.write_all(&answer).await.map_err(|error| self.lost(&error))?;
        self.greet(stream, noise, key, &clear[3..7]).await
    }

    /// Says who this node is and hears who the other is, which said before that it speaks `range`.
    async fn greet(
        &self,
        mut stream: Box<dyn Stream>,
        noise: HandshakeState,
        key: KeyId,
        range: &[u8],
    ) -> Result<Begun, ConnectError> {
        let mut noise = noise.into_transport_mode().map_err(|_| self.bad_proof(key))?;
        let mut plain = vec![GREETING_FORMAT];
        plain.extend_from_slice(&wire::encode(self.greeting));
        let mut sealed = vec![0; 2 + plain.len() + SEAL];
        // An address is bounded when it is taken, so a greeting is too.
        let length = (plain.len() + SEAL) as u16;
        sealed[..2].copy_from_slice(&length.to_be_bytes());
        noise.write_message(&plain, &mut sealed[2..]).map_err(|_| self.malformed(Bad::Large))?;
        stream.write_all(&sealed).await.map_err(|error| self.lost(&error))?;

        let length = usize::from(stream.read_u16().await.map_err(|error| self.lost(&error))?);
        if !(SEAL..=GREETING_MAX).contains(&length) {
            return Err(self.malformed(Bad::Hello));
        }
        let mut sealed = vec![0; length];
        stream.read_exact(&mut sealed).await.map_err(|error| self.lost(&error))?;
        let mut plain = vec![0; length];
        let opened = noise.read_message(&sealed, &mut plain).map_err(|_| self.bad_proof(key))?;
        let greeting: Greeting = match plain[..opened].split_first() {
            Some((&GREETING_FORMAT, bytes)) => wire::decode(bytes).map_err(|_| self.malformed(Bad::Hello))?,
            _ => return Err(self.malformed(Bad::Hello)),
        };
        // Said twice: in clear, so that old and new can tell each other, and sealed, so that nobody else can have said it.
        if greeting.hello.wire != range_of(range) {
            return Err(self.bad_proof(key));
        }
        if common(self.greeting.hello.wire, greeting.hello.wire).is_none() {
            return Err(self.no_wire());
        }
        self.check(&greeting)?;
        Ok(Begun { stream, noise, greeting, key })
    }

    fn check(&self, theirs: &Greeting) -> Result<(), ConnectError> {
        let at = || self.at.to_owned();
        if theirs.start == self.greeting.start {
            return Err(ConnectError::Itself { at: at() });
        }
        if theirs.hello.identity == self.greeting.hello.identity {
            return Err(ConnectError::Twin { at: at(), identity: theirs.hello.identity });
        }
        if theirs.hello.address.len() > ADDRESS_MAX {
            return Err(self.malformed(Bad::Hello));
        }
        compatible(&self.greeting.hello, &theirs.hello, self.at)
    }

    async fn refuse(
        &self,
        mut stream: Box<dyn Stream>,
        verdict: Verdict,
        error: ConnectError,
    ) -> ConnectError {
        // Only for the other's words: if they do not arrive, it says that the connection was lost.
        let _ = stream.write_all(&[verdict as u8]).await;
        let _ = stream.shutdown().await;
        error
    }

    fn lost(&self, error: &std::io::Error) -> ConnectError {
        ConnectError::Lost { at: self.at.to_owned(), why: error.to_string() }
    }

    fn bad_proof(&self, key: KeyId) -> ConnectError {
        ConnectError::BadProof { at: self.at.to_owned(), key }
    }

    fn no_wire(&self) -> ConnectError {
        ConnectError::Wire { at: self.at.to_owned(), ours: self.greeting.hello.wire }
    }

    fn malformed(&self, why: Bad) -> ConnectError {
        ConnectError::Malformed { at: self.at.to_owned(), why }
    }
}

/// Whether two nodes can be of one cluster: one that has none yet goes with every other.
pub(super) fn compatible(ours: &Hello, theirs: &Hello, at: &str) -> Result<(), ConnectError> {
    match (ours.cluster, theirs.cluster) {
        (Some(ours), Some(theirs)) if ours != theirs => {
            Err(ConnectError::OtherCluster { at: at.to_owned(), theirs, ours })
        }
        _ => Ok(()),
    }
}

/// The newest wire version that both speak.
pub(super) fn common(ours: (u16, u16), theirs: (u16, u16)) -> Option<u16> {
    let newest = ours.1.min(theirs.1);
    (newest >= ours.0.max(theirs.0)).then_some(newest)
}

fn range_bytes((from, to): (u16, u16)) -> [u8; RANGE] {
    let ([f0, f1], [t0, t1]) = (from.to_le_bytes(), to.to_le_bytes());
    [f0, f1, t0, t1]
}

fn range_of(bytes: &[u8]) -> (u16, u16) {
    match bytes {
        &[f0, f1, t0, t1] => (u16::from_le_bytes([f0, f1]), u16::from_le_bytes([t0, t1])),
        // A range that has nothing in common with any.
        _ => (u16::MAX, 0),
    }
}

fn noise(entropy: &Arc<dyn Entropy>, psk: &Key, prologue: &[u8], dials: bool) -> HandshakeState {
    let built = PATTERN.parse().and_then(|params| {
        let builder = Builder::with_resolver(params, Box::new(Resolver(Arc::clone(entropy))));
        let builder = builder.psk(0, psk)?.prologue(prologue)?;
        if dials { builder.build_initiator() } else { builder.build_responder() }
    });
    match built {
        Ok(state) => state,
        Err(error) => unreachable!("the pattern and its parts are constants: {error}"),
    }
}

/// The library's ciphers with this node's chance, so that a simulation replays.
struct Resolver(Arc<dyn Entropy>);

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Chance(Arc::clone(&self.0))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

struct Chance(Arc<dyn Entropy>);

impl Random for Chance {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), snow::Error> {
        self.0.fill(bytes);
        Ok(())
    }
}
