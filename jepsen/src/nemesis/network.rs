//! Faults of the network: rules for the switch, for a while.

use std::time::Duration;

use tokio::time::sleep;

use super::{Nemesis, Stage, Struck};
use crate::history::MILLI;
use crate::network::packet::Carrier;
use crate::network::switch::{Effect, Hosts, Rule};
use crate::network::{Host, Plane};

/// Nodes that do not hear some others.
pub async fn partition(stage: &mut Stage, nemesis: Nemesis, length: Duration) -> Result<Struck, String> {
    let (victim, whom) = stage.victim().await?;
    let others = stage.others(victim);
    let both = |one: &[Host], other: &[Host]| vec![Rule::cut(one, other), Rule::cut(other, one)];
    let (rules, what) = match nemesis {
        Nemesis::Partition => (both(&[victim], &others), format!("{whom}, alone")),
        Nemesis::PartitionReset => {
            let reset = |rule: Rule| Rule { effect: Effect::Reset, ..rule };
            (both(&[victim], &others).into_iter().map(reset).collect(), format!("{whom}, rejected"))
        }
        Nemesis::PartitionOneWay => (vec![Rule::cut(&[victim], &others)], format!("{whom}, unheard")),
        Nemesis::PartitionBridge => {
            let (left, right) = others.split_at(others.len() / 2);
            (both(left, right), format!("{left:?} and {right:?} only through {whom}"))
        }
        Nemesis::PartitionRing => {
            let all = stage.cluster.running();
            if all.len() < 5 {
                return Err("a ring of majorities takes five nodes: --nodes 5".to_owned());
            }
            let rules = (0..all.len()).map(|place| {
                let far: Vec<Host> =
                    (2..=all.len() - 2).map(|step| all[(place + step) % all.len()]).collect();
                Rule::cut(&[all[place]], &far)
            });
            (rules.collect(), "each hears its two neighbours".to_owned())
        }
        _ => return Err("no partition".to_owned()),
    };
    stage.cluster.wires.apply(rules);
    sleep(length).await;
    let all_but_a_majority = matches!(nemesis, Nemesis::PartitionBridge | Nemesis::PartitionRing);
    let victims = if all_but_a_majority { stage.cluster.running() } else { vec![victim] };
    Ok(Struck::new(what, &victims))
}

/// A bad network for everybody.
pub async fn trouble(stage: &mut Stage, nemesis: Nemesis, length: Duration) -> Result<Struck, String> {
    let late = Effect::Delay(30 * MILLI, 60 * MILLI);
    let effects = match nemesis {
        Nemesis::Loss => vec![Effect::Lose(200)],
        Nemesis::Jitter => vec![late],
        Nemesis::Duplicate => vec![Effect::Duplicate(330)],
        _ => vec![Effect::Lose(50), Effect::Duplicate(100), Effect::Delay(5 * MILLI, 40 * MILLI)],
    };
    stage.cluster.wires.apply(effects.into_iter().map(Rule::everywhere).collect());
    sleep(length).await;
    Ok(Struck::new("between all nodes", &stage.cluster.running()))
}

/// A part of a node's network.
pub async fn plane(stage: &mut Stage, nemesis: Nemesis, length: Duration) -> Result<Struck, String> {
    let (victim, whom) = stage.victim().await?;
    let carrier = match nemesis {
        Nemesis::GossipOnly => Some(Carrier::Udp),
        Nemesis::TcpOnly => Some(Carrier::Tcp),
        _ => None,
    };
    let plane = if carrier.is_some() { Plane::Peers } else { Plane::Callers };
    let (one, all) = (Hosts::of(&[victim]), Hosts::ALL);
    let rule = |from, to| Rule { from, to, plane, carrier, effect: Effect::Drop };
    stage.cluster.wires.apply(vec![rule(one, all), rule(all, one)]);
    sleep(length).await;
    Ok(Struck::new(whom, &[victim]))
}
