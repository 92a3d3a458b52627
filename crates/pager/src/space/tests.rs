use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const P: u64 = PAGE_BYTES;

/// Page by page: address (in pages) to number, and whether the content is still missing.
#[derive(Debug, Clone, Default)]
struct Model(BTreeMap<u64, (u64, bool)>);

#[derive(Debug, Clone)]
enum Step {
    Remove(u64, u64),
    Unmap(u64, u64),
    /// As `mremap` does it: unmaps the target, moves, unmaps the source.
    Move(u64, u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = 0u64..60;
    let len = 1u64..12;
    let step = prop_oneof![
        (place.clone(), len.clone()).prop_map(|(at, len)| Step::Remove(at, len)),
        (place.clone(), len.clone()).prop_map(|(at, len)| Step::Unmap(at, len)),
        (place.clone(), place, len).prop_map(|(from, to, len)| Step::Move(from, to, len)),
    ];
    proptest::collection::vec(step, 0..40)
}

impl Model {
    fn take(&mut self, at: u64, len: u64) -> Vec<(u64, (u64, bool))> {
        let places: Vec<u64> = self.0.range(at..at + len).map(|(place, _)| *place).collect();
        places.into_iter().map(|place| (place, self.0.remove(&place).unwrap())).collect()
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Remove(at, len) => self.0.range_mut(at..at + len).for_each(|(_, page)| page.1 = false),
            Step::Unmap(at, len) => drop(self.take(at, len)),
            Step::Move(from, to, len) => {
                self.take(to, len);
                for (place, page) in self.take(from, len) {
                    self.0.insert(place - from + to, page);
                }
            }
        }
    }
}

fn bytes(at: u64, len: u64) -> Range<u64> {
    at * P..(at + len) * P
}

/// Applies a step as the kernel reports it; returns the numbers that lose their content.
fn apply(space: &mut Space, step: &Step) -> Vec<Range<u64>> {
    match *step {
        Step::Remove(at, len) => space.remove(&bytes(at, len)),
        Step::Unmap(at, len) => space.unmap(&bytes(at, len)).unwrap(),
        Step::Move(from, to, len) => {
            let lost = space.unmap(&bytes(to, len)).unwrap();
            space.remap(from * P, to * P, len * P).unwrap();
            assert_eq!(space.unmap(&bytes(from, len)).unwrap(), [], "the echo");
            lost
        }
    }
}

proptest! {
    #[test]
    fn spans_say_what_a_map_of_pages_says(steps in steps()) {
        let layout = Layout::new(&[bytes(3, 10), bytes(20, 15), bytes(40, 1)]).unwrap();
        let mut space = Space::new(&layout);
        let mut missing = [true; 26];
        let mut model = Model::default();
        for (at, first, len) in [(3, 0, 10), (20, 10, 15), (40, 25, 1)] {
            model.0.extend((0..len).map(|i| (at + i, (first + i, true))));
        }
        for step in steps {
            // The kernel refuses to move onto an overlapping place.
            if let Step::Move(from, to, len) = step && from < to + len && to < from + len {
                continue;
            }
            model.apply(&step);
            apply(&mut space, &step).into_iter().flatten().for_each(|number| missing[number as usize] = false);
            for place in 0..80 {
                let expected = model.0.get(&place);
                prop_assert_eq!(space.number(place * P + 5), expected.map(|page| page.0));
                prop_assert_eq!(expected.is_some_and(|page| page.1), expected.is_some_and(|page| missing[page.0 as usize]));
            }
            let mut there: Vec<_> = space.places(&(0..26)).iter().flat_map(|s| (0..s.pages).map(|i| (s.at / P + i, s.first + i))).collect();
            there.sort_unstable();
            prop_assert_eq!(there, model.0.iter().map(|(place, page)| (*place, page.0)).collect::<Vec<_>>());
            let again = Space::from_parts(space.spans().to_vec(), space.echoes().cloned().collect());
            prop_assert_eq!(&again, &space);
        }
    }
}

#[test]
fn another_thread_may_move_to_the_old_place_before_the_echo() {
    let mut space = Space::new(&Layout::new(&[bytes(10, 2), bytes(20, 2)]).unwrap());
    space.remap(10 * P, 30 * P, 2 * P).unwrap();
    space.remap(20 * P, 10 * P, 2 * P).unwrap();
    assert_eq!(space.unmap(&bytes(10, 2)).unwrap(), [], "the first move's echo");
    assert_eq!(space.unmap(&bytes(20, 2)).unwrap(), [], "the second one's");
    assert_eq!((space.number(30 * P), space.number(10 * P), space.number(20 * P)), (Some(0), Some(2), None));
}

#[test]
fn a_move_onto_a_taken_place_is_confusion() {
    let mut space = Space::new(&Layout::new(&[bytes(10, 2), bytes(20, 2)]).unwrap());
    assert_eq!(space.remap(20 * P, 11 * P, 2 * P), Err(Confused::Overtaken));
}

#[test]
fn dividing_without_end_is_refused() {
    // As many spans as there may be, of three pages each, apart.
    let spans = (0..SPANS_MAX as u64).map(|i| Span { at: 4 * i * PAGE_BYTES, first: 3 * i, pages: 3 });
    let mut space = Space::from_parts(spans.collect(), VecDeque::new());
    let gone = space.unmap(&bytes(0, 1)).unwrap();
    assert!(gone.len() == 1 && gone[0] == (0..1), "one that gets smaller is no more: {gone:?}");
    assert_eq!(space.unmap(&bytes(5, 1)), Err(Confused::TooManySpans));
}
