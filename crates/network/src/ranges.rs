//! Sets of IPv4 addresses as ranges that neither touch nor overlap, as the kernel's interval sets want them.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// Ranges in order: first address, and the one behind the last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    pub(crate) fn of<'a>(nets: impl IntoIterator<Item = &'a Ipv4Net>) -> Self {
        let range = |net: &Ipv4Net| (number(net.network()), number(net.broadcast()) + 1);
        Self::merged(nets.into_iter().map(range).collect())
    }

    fn merged(mut all: Vec<(u64, u64)>) -> Self {
        all.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (begin, end) in all {
            match merged.last_mut() {
                Some(last) if begin <= last.1 => last.1 = last.1.max(end),
                Some(_) | None => merged.push((begin, end)),
            }
        }
        Self(merged)
    }

    pub(crate) fn with(&self, other: &Self) -> Self {
        Self::merged([&self.0[..], &other.0].concat())
    }

    pub(crate) fn without(&self, other: &Self) -> Self {
        let cut = |left: Vec<(u64, u64)>, &(begin, end): &(u64, u64)| {
            let parts = left.into_iter().flat_map(|(first, last)| [(first, last.min(begin)), (first.max(end), last)]);
            parts.filter(|(first, last)| first < last).collect()
        };
        Self(other.0.iter().fold(self.0.clone(), cut))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, address: Ipv4Addr) -> bool {
        self.0.iter().any(|(begin, end)| (*begin..*end).contains(&number(address)))
    }

    /// First and last addresses.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (Ipv4Addr, Ipv4Addr)> + '_ {
        let address = |number: u64| Ipv4Addr::from(number as u32);
        self.0.iter().map(move |&(begin, end)| (address(begin), address(end - 1)))
    }

    /// As elements of a set of the kernel's: beginnings, and ends that are no part. A range that goes to the very end has none.
    pub(crate) fn elements(&self) -> impl Iterator<Item = (Ipv4Addr, bool)> + '_ {
        let address = |number: u64| u32::try_from(number).ok().map(Ipv4Addr::from);
        self.0.iter().flat_map(move |&(begin, end)| {
            let ends = [address(begin).map(|begin| (begin, false)), address(end).map(|end| (end, true))];
            ends.into_iter().flatten()
        })
    }
}

fn number(address: Ipv4Addr) -> u64 {
    u32::from(address).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(nets: &[&str]) -> Ranges {
        Ranges::of(&nets.iter().map(|net| net.parse().unwrap()).collect::<Vec<Ipv4Net>>())
    }

    fn shown(ranges: &Ranges) -> Vec<String> {
        ranges.elements().map(|(address, end)| format!("{address}{}", if end { "-" } else { "+" })).collect()
    }

    #[test]
    fn what_touches_is_one_range() {
        let merged = ranges(&["10.0.1.0/24", "10.0.0.0/24", "10.0.0.128/25", "192.168.0.1/32"]);
        assert_eq!(shown(&merged), ["10.0.0.0+", "10.0.2.0-", "192.168.0.1+", "192.168.0.2-"]);
        assert_eq!(shown(&ranges(&["0.0.0.0/0"])), ["0.0.0.0+"]);
        assert_eq!(shown(&ranges(&["240.0.0.0/4", "0.0.0.0/8"])), ["0.0.0.0+", "1.0.0.0-", "240.0.0.0+"]);
    }

    #[test]
    fn holes_can_be_cut() {
        let left = ranges(&["10.0.0.0/8", "172.16.0.0/12"]).without(&ranges(&["10.1.0.0/16", "172.0.0.0/8"]));
        assert_eq!(shown(&left), ["10.0.0.0+", "10.1.0.0-", "10.2.0.0+", "11.0.0.0-"]);
        let all = ranges(&["0.0.0.0/0"]);
        assert_eq!(shown(&all.without(&all)), Vec::<String>::new());
    }
}
