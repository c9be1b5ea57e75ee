//! The interfaces of Spin that `wasi:http` components find here: key-value and variables.

use wasmtime::component::{Access, Accessor, FutureReader, Resource, StreamReader};

use crate::{
    bindings::spin::spin::{
        key_value::key_value::{self, Error as StoreError},
        variables::variables::{self, Error as VariableError},
    },
    kv::{Change, Entry, Failure, SharedBackend},
    wasi_http::HttpHost,
};

/// A key-value store the guest has opened.
#[expect(unreachable_pub, reason = "the generated bindings re-export it")]
pub struct OpenStore {
    backend: SharedBackend,
    /// Put before every key, so that stores of different labels share one backend.
    prefix: String,
}

impl OpenStore {
    fn new(backend: SharedBackend, label: &str) -> Self {
        // `default` has none: both doors see the same keys there.
        let prefix = if label == crate::revision::DEFAULT_STORE { String::new() } else { format!("\u{1}{label}/") };
        Self { backend, prefix }
    }
}

impl key_value::Host for HttpHost {}

impl key_value::HostStore for HttpHost {
    fn drop(&mut self, store: Resource<OpenStore>) -> wasmtime::Result<()> {
        self.table.delete(store)?;
        Ok(())
    }
}

/// The backend behind `store`, and `key` as it is called there.
fn opened<T>(
    accessor: &Accessor<T, HttpHost>,
    store: &Resource<OpenStore>,
    key: &str,
) -> wasmtime::Result<(SharedBackend, String)> {
    accessor.with(|mut access| {
        let store = access.get().table.get(store)?;
        Ok((store.backend.clone(), format!("{}{key}", store.prefix)))
    })
}

impl<T> key_value::HostStoreWithStore<T> for HttpHost {
    async fn open(
        accessor: &Accessor<T, Self>,
        label: String,
    ) -> wasmtime::Result<Result<Resource<OpenStore>, StoreError>> {
        accessor.with(|mut access| {
            let host = access.get();
            if !host.world.store_labels.contains(&label) {
                return Ok(Err(StoreError::AccessDenied));
            }
            let store = OpenStore::new(host.world.store.clone(), &label);
            Ok(host.table.push(store).map_err(|_| StoreError::StoreTableFull))
        })
    }

    async fn get(
        accessor: &Accessor<T, Self>,
        store: Resource<OpenStore>,
        key: String,
    ) -> wasmtime::Result<Result<Option<Vec<u8>>, StoreError>> {
        let (backend, key) = opened(accessor, &store, &key)?;
        let values = backend.get(vec![key]).await;
        Ok(values.map(|values| values.into_iter().next().flatten().map(Vec::from)).map_err(StoreError::from))
    }

    async fn set(
        accessor: &Accessor<T, Self>,
        store: Resource<OpenStore>,
        key: String,
        value: Vec<u8>,
    ) -> wasmtime::Result<Result<(), StoreError>> {
        let (backend, key) = opened(accessor, &store, &key)?;
        let entry = Entry { key, value: value.into(), expires: 0 };
        Ok(backend.apply(vec![Change::Put(entry)]).await.map(drop).map_err(StoreError::from))
    }

    async fn delete(
        accessor: &Accessor<T, Self>,
        store: Resource<OpenStore>,
        key: String,
    ) -> wasmtime::Result<Result<(), StoreError>> {
        let (backend, key) = opened(accessor, &store, &key)?;
        Ok(backend.apply(vec![Change::Delete(key)]).await.map(drop).map_err(StoreError::from))
    }

    async fn exists(
        accessor: &Accessor<T, Self>,
        store: Resource<OpenStore>,
        key: String,
    ) -> wasmtime::Result<Result<bool, StoreError>> {
        let (backend, key) = opened(accessor, &store, &key)?;
        let values = backend.get(vec![key]).await;
        Ok(values.map(|values| values.iter().any(Option::is_some)).map_err(StoreError::from))
    }

    async fn get_keys(
        accessor: &Accessor<T, Self>,
        store: Resource<OpenStore>,
    ) -> wasmtime::Result<(StreamReader<String>, FutureReader<Result<(), StoreError>>)> {
        let (backend, prefix) = opened(accessor, &store, "")?;
        let (keys, end) = match all_keys(&backend, &prefix).await {
            Ok(keys) => (keys, Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        };
        accessor.with(|mut access: Access<'_, T, Self>| {
            let stream = StreamReader::new(&mut access, keys)?;
            let end = FutureReader::new(&mut access, async move { wasmtime::error::Ok(end) })?;
            Ok((stream, end))
        })
    }
}

/// Collected before the first is handed over: no lock is held while the guest thinks.
async fn all_keys(backend: &SharedBackend, prefix: &str) -> Result<Vec<String>, StoreError> {
    let mut keys: Vec<String> = Vec::new();
    let mut after = None;
    loop {
        let page = backend.scan(prefix.to_owned(), after, PAGE).await?;
        let last = page.len() < PAGE;
        after = page.last().cloned();
        // Keys of other labels begin with a control character and are not `default`'s.
        keys.extend(page.into_iter().filter(|key| !prefix.is_empty() || !key.starts_with('\u{1}')));
        if keys.len() > MAX_KEYS {
            return Err(StoreError::Other(format!("more than {MAX_KEYS} keys")));
        }
        if last {
            return Ok(keys.into_iter().map(|key| key[prefix.len()..].to_owned()).collect());
        }
    }
}

const PAGE: usize = 1000;
/// Most keys listed at once: about 20 MiB of host memory.
const MAX_KEYS: usize = 200_000;

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Denied => Self::AccessDenied,
            other => Self::Other(other.to_string()),
        }
    }
}

impl variables::Host for HttpHost {}

impl<T> variables::HostWithStore<T> for HttpHost {
    async fn get(accessor: &Accessor<T, Self>, name: String) -> wasmtime::Result<Result<String, VariableError>> {
        accessor.with(|mut access| {
            let value = access.get().world.variables.get(&name).map(str::to_owned);
            Ok(value.ok_or(VariableError::Undefined(name)))
        })
    }
}
