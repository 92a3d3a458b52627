//! Places for connections: bounded for each sandbox and in all, so that those of one cannot take all.

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
};

/// Connections of one sandbox at a time: each takes two descriptors of the node's, 64 KiB of buffers, and those of TLS.
const ONE_MAX: usize = 256;
/// Of all together.
const ALL_MAX: usize = 4_096;
/// Of what is free, the part that one sandbox may have. Its first connection has a place in any case.
const PART: usize = 4;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    by_sandbox: HashMap<Ipv4Addr, usize>,
    all: usize,
}

/// One place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    of: Ipv4Addr,
}

impl Places {
    /// None: the sandbox has as many as it may have now.
    pub(crate) fn take(self: &Arc<Self>, of: Ipv4Addr) -> Option<Place> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let most = ONE_MAX.min(ALL_MAX.saturating_sub(taken.all).div_ceil(PART)).max(1);
        if taken.by_sandbox.get(&of).copied().unwrap_or_default() >= most {
            return None;
        }
        taken.all += 1;
        *taken.by_sandbox.entry(of).or_default() += 1;
        Some(Place { places: Arc::clone(self), of })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= 1;
        if let Some(count) = taken.by_sandbox.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                taken.by_sandbox.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_that_want_all_leave_places_for_others() {
        let places = Arc::new(Places::default());
        let address = |number: u32| Ipv4Addr::from(0xc612_0000 + number);
        let mut kept = Vec::new();
        for number in 0..100 {
            let mut got = 0;
            while let Some(place) = places.take(address(number)) {
                kept.push(place);
                got += 1;
            }
            assert!((1..=ONE_MAX).contains(&got), "sandbox {number} got {got}");
        }
        assert!(kept.len() <= ALL_MAX + 100);
        drop(kept);
        assert_eq!((0..ONE_MAX + 1).map_while(|_| places.take(address(1))).collect::<Vec<_>>().len(), ONE_MAX);
        let taken = places.0.lock().unwrap();
        assert!(taken.by_sandbox.is_empty() && taken.all == 0);
    }
}
