//! The network under test: a namespace per host and a switch in user space between them.
//!
//! Every host has one TUN device with an address on each **plane** (`10.77.PLANE.HOST`): peers, callers, operators, provider. So the peers
//! of a node can be cut off while its callers are not. All packets of all hosts pass [`switch::Switch`], which decides by seeded chance
//! what becomes of each. Nothing of it exists in the machine's own network, and nothing has a name that could outlive the harness: a
//! namespace lives as long as a thread of the harness or a process in it.

pub mod namespace;
pub mod packet;
pub mod switch;
pub mod wires;

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// A host's number, the last part of its addresses: nodes from 1 on.
pub type Host = u8;

/// Where callers and operators are: the harness itself.
pub const CALLERS: Host = 200;
/// Where the provider is.
pub const PROVIDER: Host = 201;

/// A network that can be broken without the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Plane {
    /// Between nodes.
    Peers = 1,
    /// From callers to nodes.
    Callers = 2,
    /// From operators to nodes: how the harness looks at a node. Never broken.
    Operators = 3,
    /// From nodes to the provider. Never broken: what it saw is the truth.
    Provider = 4,
}

impl Plane {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Peers, Self::Callers, Self::Operators, Self::Provider];

    /// The plane numbered so.
    pub fn numbered(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|plane| *plane as u8 == number)
    }

    /// The address of `host` on it.
    pub fn of(self, host: Host) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self as u8, host)
    }

    /// The same with a port.
    pub fn socket(self, host: Host, port: u16) -> SocketAddr {
        SocketAddr::from((self.of(host), port))
    }
}
