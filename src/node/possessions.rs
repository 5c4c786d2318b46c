//! Whose is what a provider keeps: files, batches and responses that were made through this node.
//!
//! Laws: an id belongs to the tenant that made it, and to nobody else; an id that is not known here is nobody's; a tenant that makes
//! many forgets its own oldest, never another's.
//!
//! Never here: what is kept. It lies with the provider, under the account of all.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use hashbrown::HashMap;
use tokio::sync::oneshot;

use crate::limit::{Amount, Name};
use crate::meter::Usage;

/// Ids in all, and ids of one tenant: some 200 bytes each.
const MOST: usize = 200_000;
const MOST_OF_ONE: usize = 20_000;

/// Something that a tenant owns.
#[derive(Debug)]
pub struct Owned {
    /// The provider that keeps it.
    pub provider: String,
    /// Tokens that a request reads besides its own when it takes it up again.
    pub context: u64,
    /// What it would cost to run it as a batch, and why it cannot be.
    pub batch: Option<Result<(Name, Amount), String>>,
    /// Tells whoever holds its reservation what came of it; nothing is known of the amount if none.
    pub ending: Option<oneshot::Sender<Option<Usage>>>,
}

impl Owned {
    /// Something of a provider's.
    #[must_use]
    pub fn at(provider: &str) -> Self {
        Self { provider: provider.to_owned(), context: 0, batch: None, ending: None }
    }
}

/// Owners by id.
#[derive(Debug, Default)]
pub struct Possessions(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    owned: HashMap<Box<str>, (Name, Owned)>,
    /// Of each tenant, its ids from the oldest on; some may be gone.
    by_tenant: HashMap<Name, VecDeque<Box<str>>>,
}

impl Possessions {
    /// Gives `id` to `tenant`. One that belongs to another stays there: a provider does not mint an id twice.
    pub fn give(&self, tenant: &Name, id: &str, owned: Owned) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let inner = &mut *inner;
        if id.is_empty() || inner.owned.get(id).is_some_and(|(owner, _)| owner != tenant) {
            return;
        }
        let ids = inner.by_tenant.entry(tenant.clone()).or_default();
        while ids.len() >= MOST_OF_ONE || inner.owned.len() >= MOST {
            let Some(oldest) = ids.pop_front() else { return };
            inner.owned.remove(&oldest);
        }
        if inner.owned.insert(id.into(), (tenant.clone(), owned)).is_none() {
            ids.push_back(id.into());
        }
    }

    /// Looks at what `tenant` owns under `id`; `None` when it is another's or nobody's.
    pub fn of<T>(&self, tenant: &str, id: &str, look: impl FnOnce(&mut Owned) -> T) -> Option<T> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (owner, owned) = inner.owned.get_mut(id)?;
        (**owner == *tenant).then(|| look(owned))
    }

    /// Whether `id` belongs to another tenant than this.
    #[must_use]
    pub fn is_anothers(&self, tenant: &str, id: &str) -> bool {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.owned.get(id).is_some_and(|(owner, _)| **owner != *tenant)
    }

    /// It is gone.
    pub fn forget(&self, tenant: &str, id: &str) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.owned.get(id).is_some_and(|(owner, _)| **owner == *tenant) {
            inner.owned.remove(id);
            if let Some(ids) = inner.by_tenant.get_mut(tenant) {
                ids.retain(|known| **known != *id);
            }
        }
    }

    /// How many ids are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).owned.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_belongs_to_whoever_made_it() {
        let possessions = Possessions::default();
        let (ours, theirs) = (Name::from("northwind"), Name::from("contoso"));
        possessions.give(&ours, "file-1", Owned::at("openai"));
        possessions.give(&theirs, "file-1", Owned::at("another"));
        assert_eq!(
            possessions.of("northwind", "file-1", |owned| owned.provider.clone()).as_deref(),
            Some("openai")
        );
        assert!(possessions.of("contoso", "file-1", |_| ()).is_none());
        assert!(possessions.of("northwind", "file-2", |_| ()).is_none());
        assert!(
            possessions.is_anothers("contoso", "file-1") && !possessions.is_anothers("northwind", "file-1")
        );
        assert!(!possessions.is_anothers("contoso", "file-2"), "nobody's");
        possessions.forget("contoso", "file-1");
        assert_eq!(possessions.len(), 1);
        possessions.forget("northwind", "file-1");
        assert!(possessions.is_empty());
    }

    #[test]
    fn who_makes_many_forgets_its_own() {
        let possessions = Possessions::default();
        let (ours, theirs) = (Name::from("northwind"), Name::from("contoso"));
        possessions.give(&theirs, "theirs", Owned::at("openai"));
        for number in 0..=MOST_OF_ONE {
            possessions.give(&ours, &format!("file-{number}"), Owned::at("openai"));
        }
        assert!(possessions.of("northwind", "file-0", |_| ()).is_none());
        assert!(possessions.of("northwind", "file-1", |_| ()).is_some());
        assert!(possessions.of("contoso", "theirs", |_| ()).is_some());
    }
}
