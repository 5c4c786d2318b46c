//! `one_cluster`: whoever says which cluster it is in names the same one, from the first look to the last, and a node that lost its disk does
//! not take the place it had.

use std::collections::BTreeMap;

use super::Verdict;
use crate::history::{History, View};
use crate::nemesis::TOOK_ITS_PLACE;

/// See the page of this file.
pub fn check(history: &History) -> Verdict {
    let mut clusters: BTreeMap<&str, &View> = BTreeMap::new();
    for view in history.views.iter().filter(|view| !view.cluster.is_empty()) {
        clusters.entry(&view.cluster).or_insert(view);
    }
    if let Some(window) = history.windows.iter().find(|window| window.note == TOOK_ITS_PLACE) {
        return Verdict::Invalid(format!("{} ({}): {}", window.nemesis, window.what, window.note));
    }
    match clusters.len() {
        0 => Verdict::Unknown("no node said which cluster it is in".to_owned()),
        1 => Verdict::Valid(format!("{} looks at one cluster", history.views.len())),
        _ => {
            let named = clusters.iter().map(|(id, view)| format!("n{} at {} says {id}", view.node, view.at));
            Verdict::Invalid(named.collect::<Vec<_>>().join(", "))
        }
    }
}
