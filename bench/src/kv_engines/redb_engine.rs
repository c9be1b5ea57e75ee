//! redb: a copy-on-write B-tree.

use std::path::Path;

use anyhow::Result;
use redb::{Database, Durability, ReadableDatabase, TableDefinition};

use super::{Engine, Key};

pub(super) struct Redb(Database);

impl Engine for Redb {
    const NAME: &'static str = "redb 4";

    fn open(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let file = folder.join("file");
        let is_new = !file.exists();
        let database = Database::builder().set_cache_size(CACHE_BYTES).create(file)?;
        if is_new {
            let transaction = database.begin_write()?;
            transaction.open_table(TABLE)?;
            transaction.commit()?;
        }
        Ok(Self(database))
    }

    fn contains(&self, key: &Key) -> Result<bool> {
        Ok(self.0.begin_read()?.open_table(TABLE)?.get(key)?.is_some())
    }

    fn commit(&self, keys: &[Key], value: &[u8]) -> Result<()> {
        let mut transaction = self.0.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        // Without it a kill costs a walk over the whole file when it is opened again.
        transaction.set_quick_repair(true);
        let mut table = transaction.open_table(TABLE)?;
        for key in keys {
            table.insert(key, value)?;
        }
        drop(table);
        Ok(transaction.commit()?)
    }
}

const TABLE: TableDefinition<'_, &Key, &[u8]> = TableDefinition::new("kv");
const CACHE_BYTES: usize = 64 * 1024 * 1024;
