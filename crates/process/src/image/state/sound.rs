//! Whether a decoded state is one that a capture can have made. Processes that must not fail compute with its numbers and use them as
//! indices. What the kernel checks itself is left to the kernel.

use sys::remote::{PAGE, Range};

use base::limits;

use super::ProgramState;
use crate::image::{
    Backing, Connection, FileKind, Kin, Mapping, Member, OwnTerminal, ProgramImage, Terminal, Tree, attachments,
    memory_files, places, system_v_is_sound, xstate,
};

const SIGNALS: usize = 64;
/// End of the largest address space (five levels of page tables).
const ADDRESS_END: u64 = 1 << 56;

/// The first thing that cannot be.
pub(super) fn check(state: &ProgramState) -> Result<(), &'static str> {
    let tree = &state.tree;
    tree.images().try_for_each(check_image)?;
    // Each of these takes the one before for granted.
    if !kin_is_sound(tree) {
        return Err("its processes are in no order");
    }
    if !places_are_sound(tree) {
        return Err("the memory of its processes lies in one place");
    }
    let objects = &tree.first().system_v;
    if !tree.images().flat_map(attachments).all(|attachment| attachment.is_whole(objects)) {
        return Err("a System V segment is attached in part");
    }
    if !handed_down_is_sound(tree) {
        return Err("its processes hand down what none can have");
    }
    let mut runs = state.file_pages.iter().map(|pages| (pages.start, pages.bytes.len() as u64));
    if !runs.all(|(start, bytes)| start.checked_add(bytes).is_some()) {
        return Err("pages of files beyond all addresses");
    }
    match ascend(state.file_pages.iter().map(super::Pages::range)) {
        true => Ok(()),
        false => Err("pages of files overlap, or are not whole pages in order"),
    }
}

fn check_image(image: &ProgramImage) -> Result<(), &'static str> {
    let mappings = || image.mappings.iter().map(|mapping| mapping.range);
    let rules = [
        (!image.threads.is_empty(), "it has no thread"),
        (ascend(mappings()), "its mappings overlap, or are not whole pages in order"),
        (image.mappings.iter().all(offset_is_sound), "a mapping is beyond the end of all files"),
        (image.dont_fork.iter().all(|range| is_whole(*range)), "memory that is not forked is not whole pages"),
        (ascend(image.guards.iter().copied()), "its guard pages overlap, or are not whole pages in order"),
        (image.attributes.locked.iter().all(|locked| is_whole(locked.range)), "locked memory is not whole pages"),
        (vdso_is_sound(image), "its vDSO is in no order"),
        (indices_are_sound(image), "it refers to what it does not have"),
        (image.arguments.iter().all(is_in_pages), "its arguments are not whole pages"),
        (memory_files::are_sound(&image.memory_files), "a file in memory has the name of none"),
        (image.privileges.is_sound(), "it has capabilities that no program of a sandbox has"),
        (xstate::is_sound(image), "its extended registers are not those that its format has"),
        (numbers_are_sound(image), "a descriptor has a number that none can have"),
        (image.connections.iter().all(Connection::is_sound), "a connection has addresses that none can have"),
        (image.terminal.as_ref().is_none_or(Terminal::is_sound), "its terminal has attributes that none has"),
        (image.own_terminals.iter().all(OwnTerminal::is_sound), "a terminal has attributes that none has"),
        (system_v_is_sound(&image.system_v), "it has System V objects that no kernel has"),
        (image.keys.is_sound(), "memory has a protection key that it does not have"),
        (keys_are_of_mappings(image), "memory with a protection key is not its own"),
        (image.actions.len() == SIGNALS, "it has not as many actions as there are signals"),
        (image.job.is_none_or(|job| job.is_sound(image)), "it stops itself by a signal that does not stop"),
    ];
    rules.iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, broken)| Err(*broken))
}

/// All that has a key is mapped, with the same protection.
fn keys_are_of_mappings(image: &ProgramImage) -> bool {
    image.keys.mappings.iter().all(|with_key| {
        let Range { start, end } = with_key.range;
        let same = image.mappings.iter().filter(|mapping| mapping.protection == with_key.protection);
        let of_each = same.map(|mapping| mapping.range.end.min(end).saturating_sub(mapping.range.start.max(start)));
        is_whole(with_key.range) && of_each.sum::<u64>() == end - start
    })
}

/// Parents come before their children, and nothing but what it hands down is known of the first one.
fn kin_is_sound(tree: &Tree) -> bool {
    const SIGNAL: i32 = 0x7f;
    let parents = tree.members.iter().map(|member| member.kin.parent).enumerate();
    let first = &tree.members[0].kin;
    tree.members[0].image.job.is_none()
        && *first == Kin { hands_down: first.hands_down.clone(), command: first.command.clone(), ..Kin::default() }
        && tree.members.len() + tree.zombies.len() <= limits::PROCESSES_MAX
        && parents.skip(1).all(|(at, parent)| parent < at)
        && commands_are_sound(tree)
        && tree.zombies.iter().all(|zombie| zombie.parent < tree.members.len() && zombie.status & SIGNAL <= 64)
}

/// Each has a place of its own, and a copy of them is given no more streams than one message takes.
fn commands_are_sound(tree: &Tree) -> bool {
    let mut places: Vec<u32> = tree.commands().map(|(command, _)| command.place).collect();
    places.sort_unstable();
    let is_beside = |kin: &Kin| kin.command.is_none() || kin.parent == 0 && kin.orphan.is_none();
    places.is_sorted_by(|a, b| a < b)
        && tree.members.iter().all(|member| is_beside(&member.kin))
        && tree.streams() <= 3 * (limits::FORKED_COMMANDS_MAX + 1)
}

/// No two processes have memory at one place of the zygote, nor one where a process above it has some.
fn places_are_sound(tree: &Tree) -> bool {
    let holds = |member: &Member| {
        member.kin.displaced.is_multiple_of(PAGE)
            && member.image.mappings.iter().all(|mapping| member.kin.holds(mapping.range))
    };
    let mut parked: Vec<Range> = tree.parked().map(|(_, range)| range).collect();
    parked.sort_unstable_by_key(|range| range.start);
    let apart = |at: usize| {
        let above = places::joined(tree.lineage(tree.members[at].kin.parent).flat_map(Member::mapped));
        tree.members[at].parked().all(|range| places::is_free(&above, range))
    };
    tree.members[0].kin.displaced == 0
        && tree.members.iter().all(holds)
        && ascend(parked.into_iter())
        && (1..tree.members.len()).all(apart)
}

/// What a process inherits, one above it hands down. Numbers for that lie above all others.
fn handed_down_is_sound(tree: &Tree) -> bool {
    let from = tree.handed_from;
    let handed = |member: &Member| -> Vec<i32> {
        let files = member.image.files.iter().flat_map(|file| &file.numbers).map(|(number, _)| *number);
        let objects = member.kin.hands_down.iter().map(|(_, number)| *number);
        files.chain(objects).filter(|number| from > 0 && *number >= from).collect()
    };
    let by_member: Vec<Vec<i32>> = tree.members.iter().map(handed).collect();
    let is_sound = |(at, Member { image, kin }): (usize, &Member)| {
        let is_handed = |number: i32| {
            let above = (0..at).filter(|above| tree.descends(at, *above));
            above.into_iter().any(|above| by_member[above].contains(&number))
        };
        let mapped = image.mappings.iter().filter_map(|mapping| match mapping.backing {
            Backing::Handed { number, .. } => Some(number),
            _ => None,
        });
        let mut own = kin.inherited.iter().flat_map(|(_, own)| own).map(|(number, _)| *number);
        let objects = |(object, number): &(usize, i32)| *object < image.objects.len() && *number >= from.max(1);
        kin.hands_down.iter().all(objects)
            && mapped.chain(kin.inherited.iter().map(|(number, _)| *number)).all(is_handed)
            && own.all(|number| (0..from).contains(&number))
    };
    let numbers = by_member.iter().flatten().all(|number| is_number(*number));
    // One alone has such numbers for what is on its way.
    (tree.members.len() == 1 || from > 0) && numbers && tree.members.iter().enumerate().all(is_sound)
}

fn is_whole(range: Range) -> bool {
    let whole = |address: u64| address.is_multiple_of(PAGE);
    whole(range.start) && whole(range.end) && range.start < range.end && range.end <= ADDRESS_END
}

fn is_in_pages((address, bytes): &(u64, Vec<u8>)) -> bool {
    address.checked_add(bytes.len() as u64).is_some_and(|end| is_whole(Range { start: *address, end }))
}

fn ascend(mut ranges: impl Iterator<Item = Range>) -> bool {
    let mut end = 0;
    ranges.all(|range| {
        let follows = is_whole(range) && range.start >= end;
        end = range.end;
        follows
    })
}

fn offset_is_sound(mapping: &Mapping) -> bool {
    let length = mapping.range.end.saturating_sub(mapping.range.start);
    match mapping.backing {
        Backing::Anonymous => true,
        Backing::File { offset, .. }
        | Backing::SharedFile { offset, .. }
        | Backing::Object { offset, .. }
        | Backing::Handed { offset, .. }
        | Backing::Segment { offset, .. } => {
            offset.is_multiple_of(PAGE) && offset.checked_add(length).is_some_and(|end| i64::try_from(end).is_ok())
        }
    }
}

fn vdso_is_sound(image: &ProgramImage) -> bool {
    let first = image.vdso.first().map_or(0, |(_, range)| range.start);
    image.vdso.iter().all(|(_, range)| range.start >= first && range.start <= range.end)
}

fn is_number(number: i32) -> bool {
    /// Far above what a kernel allows (`fs.nr_open`).
    const END: i32 = 1 << 30;
    (0..END).contains(&number)
}

/// Numbers of descriptors, and those by which epoll sets know them.
fn numbers_are_sound(image: &ProgramImage) -> bool {
    image.files.iter().all(|file| {
        let registered = match &file.kind {
            FileKind::Epoll { entries } => entries.as_slice(),
            _ => &[],
        };
        let numbers = file.numbers.iter().map(|(number, _)| *number).chain(registered.iter().map(|entry| entry.fd));
        numbers.into_iter().all(is_number)
    })
}

fn indices_are_sound(image: &ProgramImage) -> bool {
    let object = |object: usize| object < image.objects.len();
    let mapped = image.mappings.iter().all(|mapping| match mapping.backing {
        Backing::Object { object: index, .. } => object(index),
        Backing::Anonymous
        | Backing::File { .. }
        | Backing::SharedFile { .. }
        | Backing::Handed { .. }
        | Backing::Segment { .. } => true,
    });
    mapped
        && image.files.iter().all(|file| match file.kind {
            FileKind::Pipe { pipe, .. } => pipe < image.pipes.len(),
            FileKind::UnixPair { pair, .. } => pair < image.pairs.len(),
            FileKind::Memfd { object: index, .. } => object(index),
            FileKind::Connection { connection, .. } => connection < image.connections.len(),
            FileKind::Stream(_)
            | FileKind::Path { .. }
            | FileKind::Fifo { .. }
            | FileKind::Eventfd { .. }
            | FileKind::Timerfd { .. }
            | FileKind::Signalfd { .. }
            | FileKind::Epoll { .. }
            | FileKind::Inotify { .. }
            | FileKind::Socket(_)
            | FileKind::ResetConnection { .. }
            | FileKind::GoneDirectory { .. }
            | FileKind::Pidfd { .. } => true,
        })
        && image.added.is_sound(image)
}

#[cfg(test)]
mod tests {
    use super::super::{Pages, ProgramState, StateError};
    use sys::remote::Range;

    use crate::image::{
        Added, AddedSocket, Attributes, Backing, End, FileKind, Locked, MemoryFile, MemoryFileKind, Message,
        ObjectStatus, Part, Passed, ProcessAttributes, Reused, SignalOwner, SocketName, SocketPath, ThreadAttributes,
    };

    /// Made of the state of version 1 by giving it one of each attribute ([`with_attributes`]), and never again.
    const GOLDEN_3: &[u8] = include_bytes!("../../../tests/golden/program-state-v3-attributes.bin");
    const GOLDEN: &[u8] = include_bytes!("../../../tests/golden/program-state-v1.bin");

    fn golden() -> ProgramState {
        ProgramState::decode(GOLDEN).unwrap()
    }

    /// Made by a program of the engine's tests (`descriptors`), and never again.
    #[test]
    fn a_state_of_version_1_stays_readable() {
        let state = golden();
        assert_eq!((state.tree.members[0].image.threads.len(), state.tree.members[0].image.pairs.len()), (1, 4));
        let again = ProgramState::decode(&state.encode().unwrap()).unwrap();
        assert_eq!(format!("{again:?}"), format!("{state:?}"));
    }

    fn name_of(of: usize) -> MemoryFile {
        let kind = MemoryFileKind::Name { of };
        MemoryFile { path: b"/dev/shm/b".to_vec(), kind, mode: 0o600, times: [(1, 2), (3, 4)], attributes: Vec::new() }
    }

    /// One of each kind.
    fn memory_files() -> Vec<MemoryFile> {
        let file = |path: &[u8], kind| MemoryFile { path: path.to_vec(), kind, ..name_of(0) };
        let content = vec![Part { offset: 4096, bytes: b"x".to_vec() }];
        let attributes = vec![(b"user.a".to_vec(), b"1".to_vec())];
        vec![
            MemoryFile { attributes, ..file(b"/dev/shm/a", MemoryFileKind::Regular { size: 1 << 20, content }) },
            name_of(0),
            file(b"/dev/shm/folder", MemoryFileKind::Directory),
            file(b"/dev/shm/folder/link", MemoryFileKind::Link { to: b"../a".to_vec() }),
            file(b"/dev/shm/fifo", MemoryFileKind::Special { kind: libc::S_IFIFO }),
        ]
    }

    /// Made of the state of version 1 by giving it [`memory_files`], and never again.
    #[test]
    fn files_in_memory_stay_readable() {
        const GOLDEN: &[u8] = include_bytes!("../../../tests/golden/program-state-v3-memory-files.bin");
        let state = ProgramState::decode(GOLDEN).unwrap();
        assert_eq!(state.tree.members[0].image.memory_files, memory_files());
        assert_eq!(
            ProgramState::decode(&state.encode().unwrap()).unwrap().tree.members[0].image.memory_files,
            memory_files()
        );
        assert!(golden().tree.members[0].image.memory_files.is_empty());
    }

    /// The state of version 1 with every attribute that there is.
    fn with_attributes() -> ProgramState {
        let mut state = golden();
        let mapping = state.tree.members[0]
            .image
            .mappings
            .iter_mut()
            .find(|mapping| mapping.backing == Backing::Anonymous)
            .unwrap();
        (mapping.flags.droppable, mapping.name) = (true, b"heap of mine".to_vec());
        state.tree.members[0].image.attributes = ProcessAttributes {
            locked: vec![Locked { range: Range { start: 0x1000, end: 0x3000 }, on_fault: true }],
            lock_future: 6,
            oom_score_adj: Some(-17),
            coredump_filter: Some(0x7f),
            autogroup_nice: 5,
            child_subreaper: true,
            deny_write_exec: 3,
            merges_memory: true,
            chooses_timer_ids: true,
        };
        state.tree.members[0].image.threads[0].attributes = ThreadAttributes {
            death_signal: 12,
            machine_check: 1,
            secure_bits: 0x110,
            time_stamp_traps: true,
            cpuid_traps: true,
            speculation: [4, 8, 2],
            scheduling_flags: 1,
            slice_ns: 5_000_000,
            utilization: Some((1, 512)),
        };
        state
    }

    #[test]
    fn what_programs_set_of_themselves_stays_readable() {
        let read = ProgramState::decode(GOLDEN_3).unwrap();
        assert_eq!(format!("{read:?}"), format!("{:?}", with_attributes()));
        let again = ProgramState::decode(&read.encode().unwrap()).unwrap();
        assert_eq!(format!("{again:?}"), format!("{read:?}"));
    }

    #[test]
    fn attributes_of_what_a_program_does_not_have_are_refused() {
        let apply = |change: fn(&mut ProgramState)| {
            let mut other = with_attributes();
            change(&mut other);
            Attributes::of(&other.tree.members[0].image).apply(&mut golden().tree.members[0].image)
        };
        assert!(apply(|_| {}).is_ok());
        let one_more = |state: &mut ProgramState| {
            let image = &mut state.tree.members[0].image;
            image.threads.push(image.threads[0].clone());
        };
        assert!(apply(one_more).is_err());
        assert!(
            apply(|state| {
                let named = state.tree.members[0]
                    .image
                    .mappings
                    .iter()
                    .find(|mapping| !mapping.name.is_empty())
                    .unwrap()
                    .clone();
                state.tree.members[0].image.mappings.push(named);
            })
            .is_err()
        );
    }

    /// One of everything that a descriptor can have.
    fn descriptors() -> Added {
        let path = SocketPath { path: b"/tmp/s".to_vec(), uid: 1000, gid: 1000, mode: 0o755 };
        let socket = AddedSocket {
            options: vec![(libc::SOL_SOCKET, libc::SO_LINGER, vec![1, 0, 0, 0, 7, 0, 0, 0])],
            filter: vec![6],
            groups: vec![vec![0; 144]],
            shutdown: 2,
            name: Some(SocketName { address: b"\x01\0/tmp/s\0".to_vec(), path: Some(path) }),
            queue: vec![Message { from: b"\x01\0\0name".to_vec(), bytes: b"waits".to_vec() }],
        };
        let times = [(1_000, 5), (-2_000, 6)];
        Added {
            sockets: vec![(2, socket)],
            owners: vec![(3, SignalOwner { kind: 1, id: 2, signal: 40 })],
            objects: vec![(0, ObjectStatus { mode: 0o640, times, attributes: vec![(b"user.a".into(), b"b".into())] })],
            reused: vec![Reused { set: 1, entry: 4, fd: 7 }],
            passed: Vec::new(),
        }
    }

    /// Made of the state of version 1 by giving it [`descriptors`], and never again.
    #[test]
    fn descriptors_of_version_3_stay_readable() {
        const GOLDEN: &[u8] = include_bytes!("../../../tests/golden/program-state-v3-descriptors.bin");
        let state = ProgramState::decode(GOLDEN).unwrap();
        assert_eq!(state.tree.members[0].image.added, descriptors());
        assert_eq!(ProgramState::decode(&state.encode().unwrap()).unwrap().tree.members[0].image.added, descriptors());
    }

    #[test]
    fn files_that_come_with_messages_are_files_and_messages() {
        let with = |change: fn(&mut Passed)| {
            let mut state = golden();
            let image = &mut state.tree.members[0].image;
            image.pairs[0].queues[1] = vec![b"waits".to_vec()];
            let mut passed = Passed { pair: 0, end: End::Second, message: 0, files: vec![0] };
            change(&mut passed);
            image.added.passed = vec![passed];
            ProgramState::decode(&state.encode().unwrap()).map(|state| state.tree.members[0].image.added.passed.len())
        };
        assert_eq!(with(|_| {}).unwrap(), 1);
        assert!(with(|passed| passed.pair = 1_000).is_err());
        assert!(with(|passed| passed.message = 1).is_err());
        assert!(with(|passed| passed.files = vec![1_000]).is_err());
        assert!(with(|passed| passed.files.clear()).is_err());
    }

    #[test]
    fn every_truncation_and_every_bit_flip_is_refused() {
        for length in 0..GOLDEN.len() {
            assert!(ProgramState::decode(&GOLDEN[..length]).is_err(), "cut to {length}");
        }
        let mut flipped = GOLDEN.to_vec();
        for bit in 0..GOLDEN.len() * 8 {
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(ProgramState::decode(&flipped).is_err(), "bit {bit}");
            flipped[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_state_that_no_capture_makes_is_refused_behind_a_good_checksum() {
        let refused = |what: &str, change: fn(&mut ProgramState)| {
            let mut state = golden();
            change(&mut state);
            let decoded = ProgramState::decode(&state.encode().unwrap());
            assert!(matches!(decoded, Err(StateError::Impossible(_))), "{what}");
        };
        refused("no thread", |state| state.tree.members[0].image.threads.clear());
        refused("an end before its start", |state| {
            let range = &mut state.tree.members[0].image.mappings[3].range;
            (range.start, range.end) = (range.end, range.start);
        });
        refused("a mapping twice", |state| {
            let image = &mut state.tree.members[0].image;
            image.mappings.insert(1, image.mappings[0].clone());
        });
        refused("half a page", |state| state.tree.members[0].image.mappings[0].range.end -= 1);
        refused("half of the extended registers", |state| state.tree.members[0].image.threads[0].xsave.truncate(100));
        refused("guard pages twice", |state| {
            let range = state.tree.members[0].image.mappings[0].range;
            state.tree.members[0].image.guards = vec![range, range];
        });
        refused("the kernel's half", |state| {
            state.tree.members[0].image.mappings.last_mut().unwrap().range.end = 1 << 63
        });
        refused("an offset without end", |state| {
            let backing = Backing::File { path: Vec::new(), offset: u64::MAX - 0xfff };
            state.tree.members[0].image.mappings[0].backing = backing;
        });
        refused("an object that is not there", |state| {
            state.tree.members[0].image.mappings[0].backing = Backing::Object { object: 1 << 40, offset: 0 };
        });
        refused("a memfd of nothing", |state| {
            state.tree.members[0].image.files[0].kind = FileKind::Memfd { object: 99, offset: 0 }
        });
        refused("the end of no pipe", |state| state.tree.members[0].image.pipes.clear());
        refused("the end of no pair", |state| state.tree.members[0].image.pairs.clear());
        refused("a name of a file that is not there", |state| {
            state.tree.members[0].image.memory_files.push(name_of(1))
        });
        refused("a vDSO before its beginning", |state| {
            state.tree.members[0].image.vdso.last_mut().unwrap().1.start = 0
        });
        refused("pages beyond all addresses", |state| {
            state.file_pages.push(Pages { start: u64::MAX - 0xfff, bytes: vec![0; 0x2000] });
        });
        refused("options of no socket", |state| {
            state.tree.members[0]
                .image
                .added
                .sockets
                .push((1 << 40, AddedSocket { shutdown: 1, ..AddedSocket::default() }));
        });
        refused("a group that is cut off", |state| {
            let groups = vec![vec![0; 143]];
            state.tree.members[0].image.added.sockets.push((0, AddedSocket { groups, ..AddedSocket::default() }));
        });
        refused("an owner of nothing", |state| {
            state.tree.members[0].image.added.owners.push((99_999, SignalOwner { kind: 1, id: 2, signal: 0 }));
        });
        refused("a descriptor beyond all", |state| state.tree.members[0].image.files[0].numbers[0].0 = i32::MAX);
        refused("a registration in no set", |state| {
            state.tree.members[0].image.added.reused.push(Reused { set: 99_999, entry: 0, fd: 3 });
        });
        refused("pages before others", |state| state.file_pages.push(Pages { start: 0x1000, bytes: vec![0; 0x1000] }));
    }
}
