//! What is under way in this instance: codes, so that none is exchanged twice, and exchanges per
//! app, so that garbage codes cannot use up the platform's quota. Nobody waits for anybody here.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

use crate::config::AppTag;

/// The work under way.
pub(super) struct Flights {
    codes: RefCell<BTreeSet<[u8; 32]>>,
    exchanges: RefCell<BTreeMap<[u8; 8], u32>>,
    most_exchanges: u32,
}

impl Flights {
    pub(super) fn new(most_exchanges: u32) -> Self {
        Self { codes: RefCell::default(), exchanges: RefCell::default(), most_exchanges }
    }

    /// Notes a code until the guard drops; `None` when it is noted already.
    pub(super) fn code(&self, mac: [u8; 32]) -> Option<impl Drop> {
        // Made only when it is ours: dropping a guard takes the note away.
        self.codes.borrow_mut().insert(mac).then(|| CodeGuard { codes: &self.codes, mac })
    }

    /// Counts an exchange of `app` until the guard drops; `None` above the limit.
    pub(super) fn exchange(&self, app: AppTag) -> Option<impl Drop> {
        let mut exchanges = self.exchanges.borrow_mut();
        let count = exchanges.entry(app.0).or_default();
        if *count >= self.most_exchanges {
            return None;
        }
        *count += 1;
        Some(ExchangeGuard { exchanges: &self.exchanges, app })
    }
}

struct CodeGuard<'f> {
    codes: &'f RefCell<BTreeSet<[u8; 32]>>,
    mac: [u8; 32],
}

impl Drop for CodeGuard<'_> {
    fn drop(&mut self) {
        self.codes.borrow_mut().remove(&self.mac);
    }
}

struct ExchangeGuard<'f> {
    exchanges: &'f RefCell<BTreeMap<[u8; 8], u32>>,
    app: AppTag,
}

impl Drop for ExchangeGuard<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.exchanges.borrow_mut().get_mut(&self.app.0) {
            *count = count.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_under_way_once_at_a_time() {
        let flights = Flights::new(1);
        let first = flights.code([1; 32]);
        assert!(first.is_some() && flights.code([1; 32]).is_none() && flights.code([2; 32]).is_some());
        drop(first);
        assert!(flights.code([1; 32]).is_some());
    }

    #[test]
    fn exchanges_are_capped_for_each_app_alone() {
        let flights = Flights::new(2);
        let (one, two) = (AppTag([1; 8]), AppTag([2; 8]));
        let (first, second) = (flights.exchange(one), flights.exchange(one));
        assert!(
            first.is_some() && second.is_some() && flights.exchange(one).is_none() && flights.exchange(two).is_some()
        );
        drop(first);
        assert!(flights.exchange(one).is_some());
    }
}
