//! Where a zygote has the memory of each process. The first one's lies where it belongs, and so does that of others for which that place is free. The
//! memory of processes that were forked without executing another program lies elsewhere, all of it by the same distance: a copy moves it.

use sys::remote::Range;

use super::Tree;

/// Distances are multiples of this, so that page tables move whole.
const STEP: u64 = 64 << 30;
/// Up to all addresses.
const TRIES: u64 = 1 << 11;
/// End of user addresses with four-level page tables.
pub(crate) const USER_END: u64 = 0x7fff_ffff_f000;
/// Below is what no program may map (`vm.mmap_min_addr`).
const LOWEST: u64 = 1 << 16;

/// Chooses the distances. False if there is no room.
///
/// A copy has the memory of its descendants until it has cloned them: that must not lie where the copy's own belongs.
pub(crate) fn choose(tree: &mut Tree) -> bool {
    let mut taken: Vec<Range> = tree.members[0].mapped().collect();
    for at in 1..tree.members.len() {
        let above = tree.lineage(tree.members[at].kin.parent).flat_map(|member| member.mapped());
        let elsewhere = joined(taken.iter().copied().chain(above));
        let own: Vec<Range> = tree.members[at].mapped().collect();
        let moved = joined(elsewhere.iter().chain(&own).copied());
        let member = &mut tree.members[at];
        let found = (0..TRIES).any(|n| {
            member.kin.displaced = n * STEP;
            let forbidden = if n == 0 { &elsewhere } else { &moved };
            let private = member.image.mappings.iter().filter(|mapping| mapping.is_private());
            let mut places = private.map(|mapping| (mapping.range, member.kin.place(mapping.range)));
            places.all(|(range, place)| member.kin.holds(range) && place.start >= LOWEST && is_free(forbidden, place))
        });
        if !found {
            return false;
        }
        taken.extend(tree.members[at].parked());
    }
    true
}

/// The same addresses as ranges in order that do not touch.
pub(crate) fn joined(ranges: impl Iterator<Item = Range>) -> Vec<Range> {
    let mut sorted: Vec<Range> = ranges.collect();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// So many free addresses, from a multiple of their number on that is `first` or above, or else above the lowest that programs get. None of `taken`,
/// which are in order, has one of them.
pub(crate) fn find_free(taken: &[Range], first: u64, bytes: u64) -> Option<Range> {
    let unit = bytes.next_power_of_two();
    let from = |lowest: u64, end: u64| {
        let mut start = lowest.next_multiple_of(unit);
        let mut next = taken.partition_point(|range| range.end <= start);
        while start.checked_add(bytes).is_some_and(|room| room <= end) {
            match taken.get(next).filter(|range| range.start < start + bytes) {
                None => return Some(Range { start, end: start + bytes }),
                Some(range) => (start, next) = (range.end.max(start).next_multiple_of(unit), next + 1),
            }
        }
        None
    };
    from(first, USER_END).or_else(|| from(LOWEST, USER_END))
}

/// Whether none of these ranges, which are in order, has an address of `range`.
pub(crate) fn is_free(taken: &[Range], range: Range) -> bool {
    let at = taken.partition_point(|taken| taken.end <= range.start);
    taken.get(at).is_none_or(|taken| range.end <= taken.start)
}

/// What lies between these ranges, which are in order and do not touch, up to `end`.
pub(crate) fn between(ranges: &[Range], end: u64) -> Vec<Range> {
    let starts = std::iter::once(0).chain(ranges.iter().map(|range| range.end));
    let ends = ranges.iter().map(|range| range.start).chain(std::iter::once(end));
    starts.zip(ends).map(|(start, end)| Range { start, end }).filter(|range| range.start < range.end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    #[test]
    fn ranges_are_joined_and_what_lies_between_them_is_found() {
        let ranges = joined([range(40, 50), range(10, 20), range(20, 25), range(15, 18)].into_iter());
        assert_eq!(ranges, [range(10, 25), range(40, 50)]);
        assert_eq!(between(&ranges, 60), [range(0, 10), range(25, 40), range(50, 60)]);
        assert!(
            is_free(&ranges, range(25, 40)) && !is_free(&ranges, range(24, 26)) && !is_free(&ranges, range(49, 60))
        );
    }

    #[test]
    fn free_addresses_are_found_behind_what_is_taken_and_then_below() {
        const ROOM: u64 = 1 << 32;
        let found = |taken: &[Range], first| find_free(taken, first, ROOM).map(|range| range.start);
        assert_eq!(found(&[], 8 * ROOM), Some(8 * ROOM));
        assert_eq!(found(&[range(8 * ROOM + 1, 8 * ROOM + 2)], 8 * ROOM), Some(9 * ROOM));
        assert_eq!(found(&[range(ROOM, 8 * ROOM + 1), range(9 * ROOM, 12 * ROOM)], 8 * ROOM), Some(12 * ROOM));
        assert_eq!(found(&[range(8 * ROOM, USER_END)], 8 * ROOM), Some(ROOM));
        assert_eq!(found(&[range(0, USER_END)], 8 * ROOM), None);
    }
}
