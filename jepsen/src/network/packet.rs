//! As much of IPv4 and TCP as the switch needs: who sends to whom on which plane, and the reset that a firewall would answer with.

use super::{Host, Plane};

/// What carries the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// Anything else.
    Other,
}

/// What the switch decides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Who sends.
    pub from: Host,
    /// To whom.
    pub to: Host,
    /// Over which plane.
    pub plane: Plane,
    /// By what.
    pub carrier: Carrier,
}

impl Header {
    /// Reads it; `None` for what is none of the run's: another version, another network.
    pub fn of(packet: &[u8]) -> Option<Self> {
        let version = packet.first()? >> 4;
        let (source, target) = (packet.get(12..16)?, packet.get(16..20)?);
        if version != 4 || source[..2] != [10, 77] || target[..3] != source[..3] {
            return None;
        }
        let carrier = match packet[9] {
            6 => Carrier::Tcp,
            17 => Carrier::Udp,
            _ => Carrier::Other,
        };
        Some(Self { from: source[3], to: target[3], plane: Plane::numbered(source[2])?, carrier })
    }
}

/// The reset that answers the TCP segment in `packet` (RFC 9293 §3.10.7.1); `None` if that is one itself.
pub fn reset(packet: &[u8]) -> Option<Vec<u8>> {
    const RST: u8 = 0x04;
    const ACK: u8 = 0x10;
    const SYN_FIN: u8 = 0x03;
    let head = usize::from(packet.first()? & 0x0F) * 4;
    let segment = packet.get(head..)?;
    let flags = *segment.get(13)?;
    if flags & RST != 0 {
        return None;
    }
    let word = |at: usize| {
        segment.get(at..at + 4).map(|bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let data = segment.len().checked_sub(usize::from(segment[12] >> 4) * 4)?;
    let length = u32::try_from(data).ok()? + (flags & SYN_FIN).count_ones();
    let (sequence, acknowledged, flags) = match flags & ACK {
        0 => (0, word(4)?.wrapping_add(length), RST | ACK),
        _ => (word(8)?, 0, RST),
    };
    let mut answer = vec![0_u8; 40];
    answer[..4].copy_from_slice(&[0x45, 0, 0, 40]);
    answer[8..10].copy_from_slice(&[64, 6]);
    answer[12..16].copy_from_slice(&packet[16..20]);
    answer[16..20].copy_from_slice(&packet[12..16]);
    answer[20..22].copy_from_slice(&segment[2..4]);
    answer[22..24].copy_from_slice(&segment[0..2]);
    answer[24..28].copy_from_slice(&sequence.to_be_bytes());
    answer[28..32].copy_from_slice(&acknowledged.to_be_bytes());
    answer[32..34].copy_from_slice(&[0x50, flags]);
    let sum = checksum(&answer[..20], 0);
    answer[10..12].copy_from_slice(&sum.to_be_bytes());
    // The pseudo-header: both addresses, the protocol, the segment's length.
    let pseudo = answer[12..20]
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum::<u32>();
    let sum = checksum(&answer[20..], pseudo + 6 + 20);
    answer[36..38].copy_from_slice(&sum.to_be_bytes());
    Some(answer)
}

/// RFC 1071, of an even number of bytes.
fn checksum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start
        + bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syn() -> Vec<u8> {
        let mut packet = vec![0_u8; 40];
        packet[..4].copy_from_slice(&[0x45, 0, 0, 40]);
        packet[9] = 6;
        packet[12..16].copy_from_slice(&[10, 77, 1, 1]);
        packet[16..20].copy_from_slice(&[10, 77, 1, 2]);
        packet[20..24].copy_from_slice(&[0x12, 0x34, 0x1E, 0x14]);
        packet[24..28].copy_from_slice(&1000_u32.to_be_bytes());
        packet[32..34].copy_from_slice(&[0x50, 0x02]);
        packet
    }

    #[test]
    fn a_packet_says_who_whom_and_where() {
        let header = Header { from: 1, to: 2, plane: Plane::Peers, carrier: Carrier::Tcp };
        assert_eq!(Header::of(&syn()), Some(header));
        let mut stranger = syn();
        stranger[12] = 192;
        assert_eq!(Header::of(&stranger), None);
        assert_eq!(Header::of(&[0x60; 40]), None);
        assert_eq!(Header::of(&[]), None);
    }

    #[test]
    fn a_reset_answers_the_connection_attempt_and_sums_up() {
        let answer = reset(&syn()).unwrap();
        assert_eq!(Header::of(&answer).map(|header| (header.from, header.to)), Some((2, 1)));
        assert_eq!(answer[28..32], 1001_u32.to_be_bytes(), "it acknowledges the SYN");
        assert_eq!(checksum(&answer[..20], 0), 0, "the sum over a header with its sum is zero");
        assert_eq!(reset(&answer), None, "a reset is not answered");
    }
}
