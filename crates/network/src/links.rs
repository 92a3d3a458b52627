//! Which sandbox has which number, and what it may reach: what is asked of often, and never held while the kernel works.

use std::collections::{BTreeMap, BTreeSet};

use base::id::SandboxId;
use tokio::sync::watch;

use crate::{
    error::Error,
    link::Link,
    policy::Reach,
    settings::{LINK_PREFIX, numbers},
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Links {
    numbers: BTreeMap<SandboxId, u32>,
    ids: BTreeMap<u32, SandboxId>,
    /// Also of links that could not be removed.
    taken: BTreeSet<u32>,
    /// Numbers with rules of their own.
    ruled: BTreeSet<u32>,
    /// What those reach that have, or had, another policy than all. It ends with the link.
    reach: BTreeMap<u32, watch::Sender<Reach>>,
    /// What all others reach.
    usual: Reach,
    /// Where the search for a free one goes on: what comes late for one that was given back does not meet another sandbox soon.
    next: u32,
}

impl Links {
    /// Of links that are there.
    pub(crate) fn of(found: Vec<Link>, ruled: Vec<u32>, usual: Reach) -> Self {
        let mut bytes = [0; 4];
        base::id::fill_random(&mut bytes);
        let mut links = Self {
            numbers: BTreeMap::new(),
            ids: BTreeMap::new(),
            taken: BTreeSet::new(),
            ruled: ruled.into_iter().collect(),
            reach: BTreeMap::new(),
            usual,
            next: u32::from_ne_bytes(bytes),
        };
        for Link { name, alias, .. } in found {
            let Some(number) = name.strip_prefix(LINK_PREFIX).and_then(|number| number.parse().ok()) else { continue };
            links.taken.insert(number);
            if let Ok(id) = alias.parse::<SandboxId>() {
                links.numbers.insert(id.clone(), number);
                links.ids.insert(number, id);
            }
        }
        links
    }

    /// A free number for a sandbox that has none.
    pub(crate) fn take(&mut self, id: &SandboxId, range: ipnet::Ipv4Net) -> Result<u32, Error> {
        let numbers = numbers(range);
        let begin = numbers.start + self.next % (numbers.end - numbers.start);
        let mut all = (begin..numbers.end).chain(numbers.start..begin);
        let number = all.find(|number| !self.taken.contains(number)).ok_or(Error::Full(range))?;
        self.taken.insert(number);
        self.numbers.insert(id.clone(), number);
        self.ids.insert(number, id.clone());
        self.next = number + 1 - numbers.start;
        Ok(number)
    }

    /// A link cannot be had, or not be removed: its number is not given away.
    pub(crate) fn forget(&mut self, id: &SandboxId) {
        if let Some(number) = self.numbers.remove(id) {
            self.ids.remove(&number);
            self.reach.remove(&number);
        }
    }

    /// Its link is gone.
    pub(crate) fn give_back(&mut self, id: &SandboxId, number: u32) {
        self.forget(id);
        self.taken.remove(&number);
    }

    pub(crate) fn number(&self, id: &SandboxId) -> Option<u32> {
        self.numbers.get(id).copied()
    }

    pub(crate) fn ids(&self) -> Vec<SandboxId> {
        self.numbers.keys().cloned().collect()
    }

    pub(crate) fn is_ruled(&self, number: u32) -> bool {
        self.ruled.contains(&number)
    }

    /// Whether it has rules of its own now, and what it reaches.
    pub(crate) fn set(&mut self, number: u32, is_ruled: bool, reach: Reach) {
        if is_ruled {
            self.ruled.insert(number);
        } else {
            self.ruled.remove(&number);
        }
        match self.reach.get(&number) {
            Some(sender) => drop(sender.send_replace(reach)),
            None => drop(self.reach.insert(number, watch::Sender::new(reach))),
        }
    }

    /// Who has a number, and what it reaches.
    pub(crate) fn at(&self, number: u32) -> Option<(&SandboxId, Reach)> {
        let reach = match self.reach.get(&number) {
            Some(sender) => sender.borrow().clone(),
            // Its policy could not be taken over: its packets are stopped, and names would be a way out.
            None if self.ruled.contains(&number) => self.usual.nothing(),
            None => self.usual.clone(),
        };
        Some((self.ids.get(&number)?, reach))
    }

    /// The same, of one that has, or had, a policy, with each change of it.
    pub(crate) fn watched(&self, number: u32) -> Option<(&SandboxId, watch::Receiver<Reach>)> {
        Some((self.ids.get(&number)?, self.reach.get(&number)?.subscribe()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_once_and_not_again_at_once() {
        let range = "198.18.0.0/24".parse().unwrap();
        let link = |name: &str, alias: &str| Link { name: name.into(), alias: alias.into(), ..Link::default() };
        let known = SandboxId::random();
        let mut links =
            Links::of(vec![link("s4", known.as_str()), link("s5", ""), link("up", "")], vec![4], Reach::default());
        assert_eq!((links.number(&known), links.is_ruled(4), links.ids()), (Some(4), true, vec![known.clone()]));
        let mut taken = BTreeSet::from([4, 5]);
        let ids: Vec<SandboxId> = (0..249).map(|_| SandboxId::random()).collect();
        for id in &ids {
            assert!(taken.insert(links.take(id, range).unwrap()));
        }
        assert_eq!(taken, numbers(range).collect());
        assert!(matches!(links.take(&SandboxId::random(), range), Err(Error::Full(_))));
        let number = links.number(&ids[0]).unwrap();
        links.give_back(&ids[0], number);
        assert_eq!(links.take(&ids[0], range).unwrap(), number);
        // A link that stays keeps its number.
        links.forget(&ids[0]);
        assert!(links.at(number).is_none() && links.take(&ids[0], range).is_err());
    }
}
