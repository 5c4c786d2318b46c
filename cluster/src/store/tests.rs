//! Stories of the disk: what a crash at any write leaves, what a failing disk stops, what a person is told.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::twin::MemoryFolder;
use super::*;
use crate::outside::{Entropy, FileFolder};

/// Chance that repeats: splitmix64.
pub(crate) struct Seeded(AtomicU64);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl Entropy for Seeded {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..chunk.len()]);
        }
    }
}

fn record(text: &str) -> Arc<[u8]> {
    text.as_bytes().into()
}

fn append(indexes: std::ops::Range<u64>) -> Change {
    Change::Append(indexes.map(|index| (index, record(&"entry ".repeat(index as usize + 1)))).collect())
}

/// What a life of the store wants to do; each step is acknowledged before the next.
fn script() -> Vec<Vec<Change>> {
    let mut steps = vec![vec![Change::Vote(record("vote 1"))]];
    steps.extend((0..8).map(|at| vec![append(at * 3..at * 3 + 3)]));
    steps.push(vec![Change::Truncate { from: 20 }]);
    steps.push(vec![append(20..40), Change::Vote(record("vote 2"))]);
    let snapshot = Snapshot { meta: record("of 30"), state: vec![7; 20_000].into() };
    steps.push(vec![Change::Snapshot(snapshot), Change::Purge { through: 30, mark: record("30") }]);
    steps.push(vec![Change::Note { name: "node".into(), bytes: Some(record("3")) }]);
    steps.push(vec![shelve(1, Some("an end")), shelve(2, Some("another"))]);
    steps.push(vec![append(40..60), shelve(1, None)]);
    steps
}

fn shelve(number: u64, piece: Option<&str>) -> Change {
    Change::Shelve { number, bytes: piece.map(record) }
}

fn contents(store: &Store) -> Vec<String> {
    store.look(|at| {
        let text = |bytes: &Option<Arc<[u8]>>| format!("{:?}", bytes.as_deref().map(String::from_utf8_lossy));
        let mut lines: Vec<String> =
            at.log.iter().map(|(index, entry)| format!("{index}: {}", entry.len())).collect();
        lines.extend([text(&at.vote), text(&at.purged), format!("{:?}", at.notes.get("node"))]);
        lines.push(format!("{:?} of {}", at.shelf, at.shelved));
        lines.push(format!("{:?}", at.snapshot.as_ref().map(|held| (held.meta.clone(), held.state.len()))));
        lines
    })
}

async fn run(store: &Store, steps: &[Vec<Change>]) -> usize {
    for (done, step) in steps.iter().enumerate() {
        if store.write(step.clone()).await.is_err() {
            return done;
        }
    }
    steps.len()
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_wherever_the_power_goes() {
    let steps = script();
    // What the content is after each number of steps.
    let mut after = Vec::new();
    for count in 0..=steps.len() {
        let store = Store::open(&MemoryFolder::new("model")).unwrap();
        assert_eq!(run(&store, &steps[..count]).await, count);
        after.push(contents(&store));
    }
    let whole = MemoryFolder::new("whole");
    let store = Store::open(&whole).unwrap();
    let begun = whole.writes();
    run(&store, &steps).await;
    let writes = whole.writes() - begun;

    for cut in 0..=writes {
        for chance in 0..3 {
            let folder = MemoryFolder::new("cut");
            let store = Store::open(&folder).unwrap();
            folder.cut_after(cut);
            let acknowledged = run(&store, &steps).await;
            folder.crash(&Seeded::new(cut * 16 + chance));
            drop(store);
            let found = contents(&Store::open(&folder).unwrap());
            // The step under way is there whole or not at all.
            let next = (acknowledged + 1).min(steps.len());
            assert!(
                found == after[acknowledged] || found == after[next],
                "cut {cut}, chance {chance}, acknowledged {acknowledged}: {found:#?}"
            );
        }
    }
}

#[tokio::test]
async fn a_power_cut_while_the_file_is_made_leaves_one_that_opens() {
    let whole = MemoryFolder::new("whole");
    drop(Store::open(&whole).unwrap());
    for cut in 0..whole.writes() {
        let folder = MemoryFolder::new("cut");
        folder.cut_after(cut);
        let _ = Store::open(&folder);
        folder.crash(&Seeded::new(cut));
        Store::open(&folder).unwrap_or_else(|error| panic!("cut {cut}: {error}"));
    }
}

#[tokio::test]
async fn a_commit_mark_rides_with_the_next_write() {
    let folder = MemoryFolder::new("rides");
    let store = Store::open(&folder).unwrap();
    let before = folder.syncs();
    store.ride(vec![Change::Committed(Some(record("5")))]);
    store.ride(vec![Change::Committed(Some(record("6")))]);
    assert_eq!(store.look(|at| at.committed.clone()), Some(record("6")));
    assert_eq!(folder.syncs(), before);
    store.heartbeat().await.unwrap();
    folder.crash(&Seeded::new(1));
    assert_eq!(Store::open(&folder).unwrap().look(|at| at.committed.clone()), Some(record("6")));
}

#[tokio::test]
async fn after_a_failure_nothing_is_acknowledged_and_everybody_knows() {
    let folder = MemoryFolder::new("failing");
    let store = Store::open(&folder).unwrap();
    let mut broken = store.broken();
    folder.fail(Some(io::ErrorKind::StorageFull));
    let error = store.keep("node", &1u64).await.unwrap_err();
    assert!(error.to_string().contains("Make room on that disk, then restart this node"), "{error}");
    broken.changed().await.unwrap();
    assert!(broken.borrow().is_some());
    // The disk is well again; what the store holds may not be what is on it.
    folder.fail(None);
    assert!(store.heartbeat().await.is_err());
    folder.crash(&Seeded::new(1));
    drop(store);
    let store = Store::open(&folder).unwrap();
    assert_eq!(store.note::<u64>("node"), Ok(None));
    store.heartbeat().await.unwrap();
}

#[tokio::test]
async fn notes_are_kept_together_within_their_bounds_and_starts_are_counted() {
    let folder = MemoryFolder::new("notes");
    let store = Store::open(&folder).unwrap();
    let both = [(note::NODE, Some(wire::encode(&7u64))), (note::CLUSTER, Some(wire::encode(&8u128)))];
    store.keep_all(both).await.unwrap();
    assert_eq!(store.note(note::NODE), Ok(Some(7u64)));
    assert!(store.note::<String>(note::CLUSTER).is_err());
    let long = store.keep(note::PROPOSAL, &vec![0u8; NOTE_MAX + 1]).await;
    assert!(matches!(long, Err(NoteError::TooMuch { .. })));
    for at in 0..NOTES_MAX as u64 - 2 {
        store.keep(&format!("note {at}"), &at).await.unwrap();
    }
    assert!(matches!(store.keep("one more", &0u64).await, Err(NoteError::TooMuch { .. })));
    store.keep_all([(note::CLUSTER, None)]).await.unwrap();
    assert_eq!(store.count_start().await, Ok(1));
    store.close().await;
    assert!(store.heartbeat().await.is_err());
    let store = Store::open(&folder).unwrap();
    assert_eq!(store.count_start().await, Ok(2));
}

#[tokio::test]
async fn what_is_put_on_the_shelf_is_there_after_a_crash_and_a_full_one_takes_no_more() {
    let folder = MemoryFolder::new("shelf");
    let shelf = Shelf::of(Store::open(&folder).unwrap());
    shelf.put(7, b"seven".to_vec()).await.unwrap();
    shelf.put(9, b"nine".to_vec()).await.unwrap();
    shelf.put(7, b"7".to_vec()).await.unwrap();
    assert_eq!(shelf.held(), 5);
    shelf.take_down([9]);
    folder.crash(&Seeded::new(1));
    let shelf = Shelf::of(Store::open(&folder).unwrap());
    let pieces = [(7, record("7")), (9, record("nine"))];
    assert_eq!(shelf.pieces(), pieces, "what was taken down had no write to go with");
    shelf.take_down([9]);
    for number in 0..SHELF_MAX as u64 / PIECE_MAX as u64 - 1 {
        shelf.put(100 + number, vec![0; PIECE_MAX]).await.unwrap();
    }
    let refused = shelf.put(10, vec![0; PIECE_MAX]).await.unwrap_err();
    assert!(matches!(refused, ShelfError::Full { .. }), "{refused}");
    assert!(shelf.put(10, vec![0; PIECE_MAX + 1]).await.is_err());
    folder.crash(&Seeded::new(2));
    let shelf = Shelf::of(Store::open(&folder).unwrap());
    assert_eq!(shelf.pieces()[0], (7, record("7")));
    assert_eq!(shelf.pieces()[1].0, 100);
    folder.fail(Some(io::ErrorKind::StorageFull));
    let failed = shelf.put(11, vec![1]).await.unwrap_err();
    assert!(failed.to_string().contains("Make room on that disk"), "{failed}");
}

#[tokio::test]
async fn a_real_folder_is_locked_written_in_groups_and_let_go() {
    let path = tempfile::tempdir().unwrap();
    let folder = FileFolder(path.path().join("data"));
    let store = Store::open(&folder).unwrap();
    let second = Store::open(&folder).unwrap_err();
    assert!(second.to_string().contains("in use by another process"), "{second}");

    let (told, mut order) = tokio::sync::mpsc::unbounded_channel();
    for index in 0..500u64 {
        let told = told.clone();
        let done = Box::new(move |outcome: Result<(), Broken>| told.send((index, outcome)).unwrap());
        store.submit(vec![append(index..index + 1)], done).await;
        assert!(store.look(|at| at.log.contains_key(&index)), "readable at once");
    }
    for index in 0..500 {
        assert_eq!(order.recv().await, Some((index, Ok(()))));
    }
    assert_eq!(store.heartbeat().await, Ok(1));
    let before = contents(&store);
    store.close().await;
    assert_eq!(contents(&Store::open(&folder).unwrap()), before);
}

#[test]
fn a_person_is_told_what_is_wrong_where_and_what_to_do() {
    let path = tempfile::tempdir().unwrap();
    let file = path.path().join("file");
    std::fs::write(&file, "not a folder").unwrap();
    let error = Store::open(&FileFolder(file.clone())).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{} is not a folder: name a folder for the data, it is made if it does not exist",
            file.display()
        )
    );
    std::fs::write(path.path().join(FileFolder::FILE), "no database at all, but long enough to be looked at")
        .unwrap();
    let error = Store::open(&FileFolder(path.path().into())).unwrap_err();
    assert!(matches!(error, OpenError::Corrupted { .. }), "{error}");
    assert!(error.to_string().contains("is damaged ("), "{error}");

    for (kind, sentence) in [
        (io::ErrorKind::StorageFull, "is full: make room, then start again"),
        (io::ErrorKind::PermissionDenied, "give it to the user that runs this process"),
        (io::ErrorKind::BrokenPipe, "cannot be opened"),
    ] {
        let folder = MemoryFolder::new("somewhere");
        folder.fail(Some(kind));
        let error = Store::open(&folder).unwrap_err().to_string();
        assert!(error.contains(sentence) && error.contains("somewhere"), "{error}");
    }
}

#[tokio::test]
async fn a_file_of_version_200_is_refused_and_so_is_a_record_of_it() {
    use redb::TableDefinition;
    let folder = MemoryFolder::new("of tomorrow");
    drop(Store::open(&folder).unwrap());
    let change = |with: &dyn Fn(&redb::WriteTransaction)| {
        let database =
            redb::Builder::new().create_with_backend(super::disk::Backend(folder.open().unwrap())).unwrap();
        let write = database.begin_write().unwrap();
        with(&write);
        write.commit().unwrap();
    };
    change(&|write| {
        let notes: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("notes");
        write.open_table(notes).unwrap().insert("node", &[200u8, 1][..]).unwrap();
    });
    assert!(matches!(Store::open(&folder), Err(OpenError::Later { theirs: 200, .. })));
    change(&|write| {
        let format: TableDefinition<'_, &str, u32> = TableDefinition::new("format");
        write.open_table(format).unwrap().insert("format", 200).unwrap();
    });
    let error = Store::open(&folder).unwrap_err().to_string();
    assert_eq!(
        error,
        "the data folder of tomorrow was written by a later version (its format is 200, this version reads up to 1): \
         start that version again"
    );
}
