//! fjall: a log-structured merge tree.

use std::path::Path;

use anyhow::Result;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{Engine, Key};

pub(super) struct Fjall {
    database: Database,
    keyspace: Keyspace,
}

impl Engine for Fjall {
    const NAME: &'static str = "fjall 3";

    fn open(folder: &Path) -> Result<Self> {
        let database =
            Database::builder(folder).cache_size(CACHE_BYTES).max_journaling_size(MAX_JOURNAL_BYTES).open()?;
        // As the edge does: what a kill leaves is replayed from the journal, which is as long as what
        // is in memory.
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
        let keyspace = database.keyspace("kv", options)?;
        Ok(Self { database, keyspace })
    }

    fn contains(&self, key: &Key) -> Result<bool> {
        Ok(self.keyspace.get(key)?.is_some())
    }

    fn commit(&self, keys: &[Key], value: &[u8]) -> Result<()> {
        let mut batch = self.database.batch().durability(Some(PersistMode::SyncData));
        for key in keys {
            batch.insert(&self.keyspace, key, value);
        }
        Ok(batch.commit()?)
    }
}

const MEMTABLE_BYTES: u64 = 16 * 1024 * 1024;
const MAX_JOURNAL_BYTES: u64 = 64 * 1024 * 1024;
const CACHE_BYTES: u64 = 64 * 1024 * 1024;
