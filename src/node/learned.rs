//! What was learned of each model on each route. Bounded by the policy: only its models are learned of.

use std::sync::{Mutex, PoisonError};

use hashbrown::HashMap;

use crate::estimate::LearnedOutput;
use crate::limit::Name;
use crate::route::Endpoint;

/// Output lengths by endpoint and resolved model.
#[derive(Default)]
pub struct Learned {
    outputs: Mutex<HashMap<(Endpoint, Name), LearnedOutput>>,
}

impl Learned {
    /// Learns from an answer with `tokens` output tokens for each choice.
    pub fn observe(&self, endpoint: Endpoint, model: &Name, tokens: u64) {
        let mut outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        outputs.entry((endpoint, model.clone())).or_default().observe(tokens);
    }

    /// See [`LearnedOutput::quantile`].
    #[must_use]
    pub fn quantile(&self, endpoint: Endpoint, model: &Name, percentile: u64) -> Option<u64> {
        let outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        outputs.get(&(endpoint, model.clone()))?.quantile(percentile)
    }

    /// How many models on how many routes were learned of.
    #[must_use]
    pub fn len(&self) -> usize {
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether nothing was.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
