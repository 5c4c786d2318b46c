//! Whose is what a provider keeps: files, batches and responses that were made through this cluster.
//!
//! Laws:
//! - an id belongs to the tenant that made it, and to nobody else; an id that is not known is nobody's;
//! - a tenant that makes many forgets its own oldest, never another's;
//! - what was made through one node is found through every other, also after a restart: each tells the others (`told`), asks them for what it
//!   does not know, and keeps what it knows on its disk (`disk`).
//!
//! Never here: what is kept. It lies with the provider, under the account of all.

mod codec;
mod disk;
mod told;

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};
use tollgate_cluster::id::NodeId;

use crate::limit::{Amount, Name};
use crate::meter::Usage;
use disk::{Disk, Write};
pub use told::{Answer, Question, Unasked};

/// Ids in all, and ids of one tenant: some 200 bytes each.
const MOST: usize = 200_000;
const MOST_OF_ONE: usize = 20_000;

/// What other nodes have not been told yet, at most. What finds no room they ask for.
const MOST_UNTOLD: usize = 65_536;

/// Something that a tenant owns, as nodes tell each other and keep it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Possession {
    /// The provider that keeps it.
    pub provider: Box<str>,
    /// Tokens that a request reads besides its own when it takes it up again.
    pub context: u64,
    /// What it would cost to run it as a batch, or why it cannot be.
    pub batch: Option<Result<(Name, Amount), Box<str>>>,
    /// The node that holds a reservation for it until its end is seen.
    pub held_by: Option<NodeId>,
}

impl Possession {
    /// Something of a provider's.
    #[must_use]
    pub fn at(provider: &str) -> Self {
        Self { provider: provider.into(), context: 0, batch: None, held_by: None }
    }
}

/// Tells whoever holds a reservation what came of it; nothing is known of the amount if none.
pub type Ending = oneshot::Sender<Option<Usage>>;

/// What was made or has gone, as other nodes are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
    /// `tenant` has made `id`.
    Made {
        /// Who.
        tenant: Name,
        /// Its name at the provider.
        id: Box<str>,
        /// What it is.
        what: Possession,
    },
    /// `tenant` has deleted `id`.
    Gone {
        /// Who.
        tenant: Name,
        /// Its name at the provider.
        id: Box<str>,
    },
}

/// Owners by id.
#[derive(Debug, Default)]
pub struct Possessions {
    inner: Mutex<Inner>,
    /// Told when there is news for other nodes.
    wake: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    owned: HashMap<Box<str>, Entry>,
    /// Of each tenant, its ids from the oldest on; some may be gone.
    by_tenant: HashMap<Name, VecDeque<Box<str>>>,
    /// Counts what was put in, for the disk.
    next: u64,
    disk: Option<Disk>,
    /// Whether there are other nodes.
    has_others: bool,
    untold: VecDeque<News>,
}

#[derive(Debug)]
struct Entry {
    tenant: Name,
    number: u64,
    what: Possession,
    ending: Option<Ending>,
}

impl Possessions {
    /// Takes in what earlier lives have kept in `folder`, and keeps there whatever is known from now on.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub fn keep_in(&self, folder: &Path) -> io::Result<()> {
        let (disk, kept) = Disk::open(folder)?;
        let mut inner = self.lock();
        for (number, (tenant, id, what)) in kept {
            inner.next = inner.next.max(number + 1);
            // Its reservation ended with the life that held it.
            let what = Possession { held_by: None, ..what };
            inner.put(&tenant, &id, Entry { tenant: tenant.clone(), number, what, ending: None });
        }
        inner.disk = Some(disk);
        Ok(())
    }

    /// From now on other nodes are to be told, by [`crate::node::Node::tell_possessions`].
    pub fn tell_others(&self) {
        self.lock().has_others = true;
    }

    /// Gives `id` to `tenant`, and has the other nodes told. One that belongs to another stays there: a provider does not mint an id twice.
    pub fn give(&self, tenant: &Name, id: &str, what: Possession, ending: Option<Ending>) {
        let mut inner = self.lock();
        if inner.take_in(tenant, id, what.clone(), ending) {
            inner.tell(News::Made { tenant: tenant.clone(), id: id.into(), what });
            drop(inner);
            self.wake.notify_one();
        }
    }

    /// What another node has told.
    pub fn hear(&self, news: News) {
        let mut inner = self.lock();
        match news {
            News::Made { tenant, id, what } => {
                if !inner.owned.contains_key(&id) {
                    inner.take_in(&tenant, &id, what, None);
                }
            }
            News::Gone { tenant, id } => _ = inner.remove(&tenant, &id),
        }
    }

    /// Whose `id` is, and what it is.
    #[must_use]
    pub fn whose(&self, id: &str) -> Option<(Name, Possession)> {
        self.lock().owned.get(id).map(|entry| (entry.tenant.clone(), entry.what.clone()))
    }

    /// Looks at what `tenant` owns under `id`; `None` when it is another's or nobody's.
    pub fn of<T>(&self, tenant: &str, id: &str, look: impl FnOnce(&Possession) -> T) -> Option<T> {
        let inner = self.lock();
        let entry = inner.owned.get(id).filter(|entry| *entry.tenant == *tenant)?;
        Some(look(&entry.what))
    }

    /// Takes what tells the end of `id`, which is seen now: here, or the node that does.
    pub fn end(&self, tenant: &str, id: &str) -> (Option<Ending>, Option<NodeId>) {
        let mut inner = self.lock();
        let entry = inner.owned.get_mut(id).filter(|entry| *entry.tenant == *tenant);
        entry.map_or((None, None), |entry| (entry.ending.take(), entry.what.held_by.take()))
    }

    /// Whether `id` belongs to another tenant than this.
    #[must_use]
    pub fn is_anothers(&self, tenant: &str, id: &str) -> bool {
        self.lock().owned.get(id).is_some_and(|entry| *entry.tenant != *tenant)
    }

    /// It is gone, and the other nodes are told.
    pub fn forget(&self, tenant: &Name, id: &str) {
        let mut inner = self.lock();
        if inner.remove(tenant, id) {
            inner.tell(News::Gone { tenant: tenant.clone(), id: id.into() });
            drop(inner);
            self.wake.notify_one();
        }
    }

    /// How many ids are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().owned.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many of them the other nodes have not been told of yet.
    #[must_use]
    pub fn untold(&self) -> usize {
        self.lock().untold.len()
    }

    /// Takes out up to `most` of what the others are to be told.
    fn take_untold(&self, most: usize) -> Vec<News> {
        let mut inner = self.lock();
        let count = inner.untold.len().min(most);
        inner.untold.drain(..count).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Whether it is the tenant's now.
    fn take_in(&mut self, tenant: &Name, id: &str, what: Possession, ending: Option<Ending>) -> bool {
        if id.is_empty() {
            return false;
        }
        let number = self.next;
        self.next += 1;
        let kept = (tenant.clone(), Box::from(id), what.clone());
        let is_in = self.put(tenant, id, Entry { tenant: tenant.clone(), number, what, ending });
        if is_in {
            self.write(Write::Put(number, kept));
        }
        is_in
    }

    fn put(&mut self, tenant: &Name, id: &str, entry: Entry) -> bool {
        if self.owned.get(id).is_some_and(|known| known.tenant != *tenant) {
            return false;
        }
        loop {
            let ids = self.by_tenant.entry(tenant.clone()).or_default();
            if ids.len() < MOST_OF_ONE && self.owned.len() < MOST {
                break;
            }
            let Some(oldest) = ids.pop_front() else { return false };
            if let Some(gone) = self.owned.remove(&oldest) {
                self.write(Write::Remove(gone.number));
            }
        }
        match self.owned.insert(id.into(), entry) {
            Some(before) => self.write(Write::Remove(before.number)),
            None => self.by_tenant.entry(tenant.clone()).or_default().push_back(id.into()),
        }
        true
    }

    fn remove(&mut self, tenant: &Name, id: &str) -> bool {
        if self.owned.get(id).is_none_or(|entry| entry.tenant != *tenant) {
            return false;
        }
        if let Some(gone) = self.owned.remove(id) {
            self.write(Write::Remove(gone.number));
        }
        if let Some(ids) = self.by_tenant.get_mut(tenant) {
            ids.retain(|known| **known != *id);
        }
        true
    }

    fn tell(&mut self, news: News) {
        if self.has_others && self.untold.len() < MOST_UNTOLD {
            self.untold.push_back(news);
        }
    }

    fn write(&self, write: Write) {
        if let Some(disk) = &self.disk {
            disk.write(write);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_belongs_to_whoever_made_it() {
        let possessions = Possessions::default();
        let (ours, theirs) = (Name::from("northwind"), Name::from("contoso"));
        possessions.give(&ours, "file-1", Possession::at("openai"), None);
        possessions.give(&theirs, "file-1", Possession::at("another"), None);
        assert_eq!(
            possessions.of("northwind", "file-1", |what| what.provider.to_string()).as_deref(),
            Some("openai")
        );
        assert!(possessions.of("contoso", "file-1", |_| ()).is_none());
        assert!(possessions.of("northwind", "file-2", |_| ()).is_none());
        assert!(
            possessions.is_anothers("contoso", "file-1") && !possessions.is_anothers("northwind", "file-1")
        );
        assert!(!possessions.is_anothers("contoso", "file-2"), "nobody's");
        possessions.forget(&theirs, "file-1");
        assert_eq!(possessions.len(), 1);
        possessions.forget(&ours, "file-1");
        assert!(possessions.is_empty());
    }

    #[test]
    fn who_makes_many_forgets_its_own() {
        let possessions = Possessions::default();
        let (ours, theirs) = (Name::from("northwind"), Name::from("contoso"));
        possessions.give(&theirs, "theirs", Possession::at("openai"), None);
        for number in 0..=MOST_OF_ONE {
            possessions.give(&ours, &format!("file-{number}"), Possession::at("openai"), None);
        }
        assert!(possessions.of("northwind", "file-0", |_| ()).is_none());
        assert!(possessions.of("northwind", "file-1", |_| ()).is_some());
        assert!(possessions.of("contoso", "theirs", |_| ()).is_some());
    }

    #[test]
    fn another_life_knows_what_was_kept_in_its_order_and_not_what_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = (Name::from("northwind"), Name::from("contoso"));
        let what = Possession {
            provider: "openai".into(),
            context: 40,
            batch: Some(Ok(("gpt-5".into(), Amount::new(10, 20)))),
            held_by: Some(NodeId(7)),
        };
        {
            let possessions = Possessions::default();
            possessions.keep_in(folder.path()).unwrap();
            possessions.give(&ours, "z", what.clone(), None);
            possessions.give(&ours, "a", Possession::at("openai"), None);
            possessions.hear(News::Made { tenant: theirs.clone(), id: "told".into(), what: what.clone() });
            possessions.forget(&ours, "a");
            possessions.give(&ours, "b", Possession::at("openai"), None);
        }
        let possessions = Possessions::default();
        possessions.tell_others();
        possessions.keep_in(folder.path()).unwrap();
        let kept = Possession { held_by: None, ..what };
        assert_eq!(possessions.whose("z"), Some((ours.clone(), kept.clone())));
        assert_eq!(possessions.whose("told"), Some((theirs, kept)));
        assert_eq!(possessions.whose("a"), None, "it was deleted");
        assert_eq!(possessions.lock().by_tenant[&ours], ["z".into(), "b".into()], "the oldest goes first");
        assert_eq!(possessions.untold(), 0, "who was told before is not told again");
    }

    #[test]
    fn only_who_has_others_keeps_news_for_them() {
        let possessions = Possessions::default();
        possessions.give(&"northwind".into(), "file-1", Possession::at("openai"), None);
        assert_eq!(possessions.untold(), 0, "a node alone tells nobody");
        possessions.tell_others();
        possessions.give(&"northwind".into(), "file-2", Possession::at("openai"), None);
        possessions.forget(&"northwind".into(), "file-1");
        assert_eq!(possessions.untold(), 2);
    }

    #[test]
    fn what_is_told_takes_nothing_from_anybody() {
        let possessions = Possessions::default();
        let (ours, theirs) = (Name::from("northwind"), Name::from("contoso"));
        possessions.give(&ours, "file-1", Possession { context: 5, ..Possession::at("openai") }, None);
        let told = |tenant: &Name| News::Made {
            tenant: tenant.clone(),
            id: "file-1".into(),
            what: Possession::at("another"),
        };
        possessions.hear(told(&theirs));
        possessions.hear(told(&ours));
        possessions.hear(News::Gone { tenant: theirs, id: "file-1".into() });
        assert_eq!(possessions.of("northwind", "file-1", |what| what.context), Some(5));
        possessions.hear(News::Gone { tenant: ours, id: "file-1".into() });
        assert!(possessions.is_empty());
    }
}
