//! Divides what was read of all processes together among those that make it again.
//!
//! An open file is made by the nearest process that all who have it descend from, or are. The two ends of a pipe or of a socket pair exist at once,
//! so they have one maker, and so have shared memory and the open files of it. From its maker a file is handed down.

use std::{
    collections::{BTreeSet, HashMap},
    ops::RangeFrom,
};

use crate::{
    image::{
        Backing, FileKind, FileLock, LockKind, Member, OpenFile, Passed, ProgramImage, Reused, SharedObject,
        TimerValue, Tree, WallTimer, object_of, table,
    },
    observe::files::Files,
    refusal::Refusal,
};

/// What was read of all processes together.
pub(super) struct Common {
    pub(super) files: Files,
    pub(super) contents: Vec<SharedObject>,
    pub(super) wall_timers: Vec<WallTimer>,
}

/// Gives every member what it makes and what it inherits. Mappings name objects by their places among `contents`, and by those among the objects
/// of their process afterwards.
pub(super) fn divide(common: Common, tree: &mut Tree) -> Vec<Refusal> {
    let parents: Vec<usize> = tree.members.iter().map(|member| member.kin.parent).collect();
    let makers = Makers::of(&common, &tree.members, &parents);
    tree.handed_from = first_free(&common, &tree.members);
    let mut numbers = tree.handed_from..;
    let objects = divide_objects(&common, &makers.objects, &mut tree.members, &mut numbers);
    divide_files(common, &makers.files, &objects, &mut tree.members, &mut numbers);
    let orphaned = tree.members.iter().flat_map(|member| orphaned(member, tree));
    orphaned.chain((0..tree.members.len()).flat_map(|at| out_of_reach(tree, at))).collect()
}

/// Descriptors of processes that need not be there when they are made.
fn out_of_reach(tree: &Tree, at: usize) -> Vec<Refusal> {
    let member = &tree.members[at];
    let reached: BTreeSet<i32> = std::iter::once(INIT)
        .chain(tree.lineage(at).map(|above| above.image.threads[0].tid))
        .chain(tree.children(at).map(|child| tree.members[child].image.threads[0].tid))
        .chain(tree.zombies.iter().filter(|zombie| zombie.parent == at).map(|zombie| zombie.pid))
        .collect();
    let mut refusals = Vec::new();
    for file in &member.image.files {
        let FileKind::Pidfd { pid } = file.kind else { continue };
        let fd = file.numbers.first().map_or(-1, |(number, _)| *number);
        let is_shared = tree.handed_from > 0 && file.numbers.iter().any(|(number, _)| *number >= tree.handed_from);
        let what = match pid {
            _ if is_shared => "a pidfd that several processes share",
            Some(pid) if !reached.contains(&pid) => "a pidfd of a process that is neither above it nor its child",
            Some(_) | None => continue,
        };
        let refusal = Refusal::UnknownDescriptor { fd, what: what.into() };
        refusals.push(if at == 0 { refusal } else { of_member(member, refusal) });
    }
    refusals
}

/// The sandbox's first process, which is above all.
const INIT: i32 = 1;

/// Who makes what.
struct Makers {
    files: Vec<usize>,
    objects: Vec<usize>,
}

/// Things that one process has to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Group {
    Pipe(usize),
    Pair(usize),
    Object(usize),
    Connection(usize),
    /// TCP sockets that are bound to a port, and connections that were accepted there: none can be bound when there is a connection.
    Port([u8; 2]),
    /// Unix sockets that have the same name, or are connected to it: by their place among all names.
    Name(usize),
}

impl Makers {
    fn of(common: &Common, members: &[Member], parents: &[usize]) -> Self {
        let files = &common.files;
        let mut names = HashMap::new();
        let passed = on_their_way(files);
        let ways = |at| passed.iter().filter(move |(file, _)| *file == at).map(|(_, pair)| Group::Pair(*pair));
        let all = |at| groups(at, files).into_iter().chain(named(at, files, &mut names)).chain(ways(at)).collect();
        let of_file: Vec<Vec<Group>> = (0..files.files.len()).map(all).collect();
        let mut joined = Joined::default();
        of_file.iter().for_each(|groups| joined.join(groups));
        let mut makers: HashMap<Group, usize> = HashMap::new();
        let mut note = |group, user| {
            let maker = makers.entry(joined.first(group)).or_insert(user);
            *maker = Tree::common(parents, *maker, user);
        };
        for (file, groups) in files.files.iter().zip(&of_file) {
            groups.first().into_iter().for_each(|group| holders(file).for_each(|holder| note(*group, holder)));
        }
        for (at, member) in members.iter().enumerate() {
            member.image.mappings.iter().filter_map(object_of).for_each(|object| note(Group::Object(object), at));
        }
        let maker = |group: Group| makers.get(&joined.first(group)).copied();
        let maker_of_file = |(file, groups): (&OpenFile, &Vec<Group>)| {
            let alone = || holders(file).reduce(|a, b| Tree::common(parents, a, b));
            groups.first().and_then(|group| maker(*group)).or_else(alone).unwrap_or(0)
        };
        Self {
            files: files.files.iter().zip(&of_file).map(maker_of_file).collect(),
            objects: (0..common.contents.len()).map(|object| maker(Group::Object(object)).unwrap_or(0)).collect(),
        }
    }
}

/// Groups that are one, because a file is of each.
#[derive(Debug, Default)]
struct Joined(HashMap<Group, Group>);

impl Joined {
    fn first(&self, group: Group) -> Group {
        let mut group = group;
        while let Some(other) = self.0.get(&group) {
            group = *other;
        }
        group
    }

    fn join(&mut self, groups: &[Group]) {
        for pair in groups.windows(2) {
            let (one, other) = (self.first(pair[0]), self.first(pair[1]));
            if one != other {
                self.0.insert(other, one);
            }
        }
    }
}

/// Files that come with messages, and the pairs at which these wait: a message is sent again by who makes the pair.
fn on_their_way(files: &Files) -> Vec<(usize, usize)> {
    let of = |passed: &Passed| passed.files.iter().map(|file| (*file, passed.pair)).collect::<Vec<_>>();
    files.added.passed.iter().flat_map(of).collect()
}

/// The names that a unix socket has or is connected to, and those of what waits at it.
fn named<'a>(at: usize, files: &'a Files, names: &mut HashMap<&'a [u8], usize>) -> Vec<Group> {
    let own: Vec<&[u8]> = match &files.files[at].kind {
        FileKind::Socket(socket) if socket.family == libc::AF_UNIX => {
            [&socket.address, &socket.peer].into_iter().flatten().map(Vec::as_slice).collect()
        }
        FileKind::UnixPair { .. } => Vec::new(),
        _ => return Vec::new(),
    };
    let added = files.added.socket(at);
    let of_end = added.and_then(|state| state.name.as_ref()).map(|name| name.address.as_slice());
    let waiting = added.into_iter().flat_map(|state| &state.queue).map(|message| message.from.as_slice());
    let known = own.into_iter().chain(of_end).chain(waiting).filter(|address| address.len() > 2);
    let group = |address| {
        let next = names.len();
        Group::Name(*names.entry(address).or_insert(next))
    };
    known.map(group).collect()
}

fn groups(at: usize, files: &Files) -> Vec<Group> {
    match &files.files[at].kind {
        FileKind::Pipe { pipe, .. } => vec![Group::Pipe(*pipe)],
        FileKind::UnixPair { pair, .. } => vec![Group::Pair(*pair)],
        FileKind::Memfd { object, .. } => vec![Group::Object(*object)],
        FileKind::Connection { connection, .. } => {
            // A closed end, too, has its port for a moment.
            let ports = files.connections[*connection].ends.iter().filter_map(|end| port(&end.local));
            [Group::Connection(*connection)].into_iter().chain(ports).collect()
        }
        FileKind::Socket(socket) if socket.family != libc::AF_UNIX && socket.kind == libc::SOCK_STREAM => {
            socket.address.as_deref().and_then(port).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

fn port(address: &[u8]) -> Option<Group> {
    Some(Group::Port([*address.get(2)?, *address.get(3)?]))
}

/// The places of the processes that have the file.
fn holders(file: &OpenFile) -> impl Iterator<Item = usize> {
    file.numbers.iter().map(|(number, _)| table::process_of(*number))
}

/// The first number above all descriptors, and above those by which epoll sets know files.
fn first_free(common: &Common, members: &[Member]) -> i32 {
    if members.len() == 1 && common.files.files.iter().all(|file| !file.numbers.is_empty()) {
        return 0;
    }
    let registered = |file: &OpenFile| match &file.kind {
        FileKind::Epoll { entries } => entries.iter().map(|entry| entry.fd).max(),
        _ => None,
    };
    let files = &common.files.files;
    let numbers = files.iter().flat_map(|file| &file.numbers).map(|(number, _)| table::fd_of(*number));
    numbers.chain(files.iter().filter_map(registered)).max().unwrap_or(0) + 1
}

/// Gives each object to its maker; gives its place there.
fn divide_objects(
    common: &Common,
    makers: &[usize],
    members: &mut [Member],
    numbers: &mut RangeFrom<i32>,
) -> Vec<usize> {
    let mut places = Vec::with_capacity(makers.len());
    for ((object, content), &maker) in common.contents.iter().enumerate().zip(makers) {
        let image = &mut members[maker].image;
        let place = image.objects.len();
        image.objects.push(content.clone());
        image.added.objects.extend(common.files.added.object(object).map(|status| (place, status.clone())));
        let shows = |member: &Member| member.image.mappings.iter().any(|mapping| object_of(mapping) == Some(object));
        let is_shared = members.iter().enumerate().any(|(at, member)| at != maker && shows(member));
        let number = if is_shared { numbers.next() } else { None };
        members[maker].kin.hands_down.extend(number.map(|number| (place, number)));
        places.push((place, number.unwrap_or_default()));
    }
    for (at, member) in members.iter_mut().enumerate() {
        for mapping in &mut member.image.mappings {
            if let Backing::Object { object, offset } = mapping.backing {
                let (place, number) = places[object];
                mapping.backing = match makers[object] == at {
                    true => Backing::Object { object: place, offset },
                    false => Backing::Handed { number, offset },
                };
            }
        }
    }
    places.into_iter().map(|(place, _)| place).collect()
}

/// Gives each open file to its maker, and its number to all others who have it. `objects` are the places of objects in the images of their makers.
fn divide_files(
    common: Common,
    makers: &[usize],
    objects: &[usize],
    members: &mut [Member],
    numbers: &mut RangeFrom<i32>,
) {
    let Common { files: Files { files, pipes, pairs, connections, locks, added, .. }, wall_timers, .. } = common;
    let (mut pipe_places, mut pair_places, mut connection_places) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut by_number: HashMap<i32, usize> = HashMap::new();
    // Of each file: its place in the image of its maker, and a number that it has there.
    let mut places: Vec<(usize, i32)> = Vec::with_capacity(files.len());
    for (at, (mut file, &maker)) in files.into_iter().zip(makers).enumerate() {
        by_number.extend(file.numbers.iter().map(|(number, _)| (*number, at)));
        let image = &mut members[maker].image;
        match &mut file.kind {
            FileKind::Pipe { pipe, .. } => {
                *pipe = *pipe_places.entry(*pipe).or_insert_with_key(|pipe| moved(&pipes[*pipe], &mut image.pipes));
            }
            FileKind::UnixPair { pair, .. } => {
                *pair = *pair_places.entry(*pair).or_insert_with_key(|pair| moved(&pairs[*pair], &mut image.pairs));
            }
            FileKind::Connection { connection, .. } => {
                *connection = *connection_places
                    .entry(*connection)
                    .or_insert_with_key(|connection| moved(&connections[*connection], &mut image.connections));
            }
            FileKind::Memfd { object, .. } => *object = objects[*object],
            _ => {}
        }
        let place = image.files.len();
        let users: BTreeSet<usize> = holders(&file).collect();
        let of = |user: usize| -> Vec<(i32, bool)> {
            let own = file.numbers.iter().filter(|(number, _)| table::process_of(*number) == user);
            own.map(|(number, close_on_exec)| (table::fd_of(*number), *close_on_exec)).collect()
        };
        let mut own = of(maker);
        // A file that is on its way may have no user.
        let is_handed = users.is_empty() || users.iter().any(|user| *user != maker);
        let handed = if is_handed { numbers.next() } else { None };
        for user in users.iter().filter(|user| **user != maker) {
            members[*user].kin.inherited.extend(handed.map(|number| (number, of(*user))));
        }
        own.extend(handed.map(|number| (number, true)));
        places.push((place, own.first().map_or(-1, |(number, _)| *number)));
        file.numbers = own;
        members[maker].image.files.push(file);
    }
    for mut passed in added.passed {
        let Some(maker) = passed.files.first().map(|file| makers[*file]) else { continue };
        passed.pair = pair_places[&passed.pair];
        passed.files.iter_mut().for_each(|file| *file = places[*file].0);
        members[maker].image.added.passed.push(passed);
    }
    for (at, state) in added.sockets {
        members[makers[at]].image.added.sockets.push((places[at].0, state));
    }
    for (at, owner) in added.owners {
        members[makers[at]].image.added.owners.push((places[at].0, owner));
    }
    for Reused { set, entry, fd } in added.reused {
        let reused = Reused { set: places[set].0, entry, fd: table::fd_of(fd) };
        members[makers[set]].image.added.reused.push(reused);
    }
    for lock in locks {
        let at = by_number[&lock.fd];
        let (who, fd) = match lock.kind {
            LockKind::Process => (table::process_of(lock.fd), table::fd_of(lock.fd)),
            LockKind::OpenFile | LockKind::OpenFileRange => (makers[at], places[at].1),
        };
        members[who].image.locks.push(FileLock { fd, ..lock });
    }
    for timer in wall_timers {
        let at = by_number[&timer.which];
        members[makers[at]].image.wall_timers.descriptors.push(WallTimer { which: places[at].1, ..timer });
    }
}

/// Adds what has no place yet to the image of its maker; gives its place.
fn moved<T: Clone>(what: &T, to: &mut Vec<T>) -> usize {
    to.push(what.clone());
    to.len() - 1
}

/// What only descendants of its maker have, and needs more than to be made: its maker has closed it when all else is there.
fn orphaned(member: &Member, tree: &Tree) -> Vec<Refusal> {
    let image = &member.image;
    let is_handed = |number: &i32| tree.handed_from > 0 && *number >= tree.handed_from;
    let mut found = Vec::new();
    for (at, file) in image.files.iter().enumerate() {
        let Some((number, _)) = file.numbers.first().filter(|(number, _)| is_handed(number)) else { continue };
        let what = match &file.kind {
            FileKind::Timerfd { value, ticks, .. } if (*value, *ticks) != (TimerValue::default(), 0) => "a timer",
            FileKind::Epoll { entries } if !entries.is_empty() => "an epoll set",
            FileKind::Inotify { watches } if !watches.is_empty() => "an inotify instance",
            _ if file.flags & libc::O_ASYNC != 0 => "a file that sends signals",
            _ if image.added.owners.iter().any(|(owned, _)| *owned == at) => "a file that sends signals",
            _ if image.locks.iter().any(|lock| lock.fd == *number) => "a locked file",
            _ => continue,
        };
        found.push(match heir(tree, *number) {
            Some((heir, fd)) => {
                let what = format!("{what} that several processes share, and their common parent has closed");
                of_member(heir, Refusal::UnknownDescriptor { fd, what })
            }
            None => of_member(member, on_its_way(image, at, what)),
        });
    }
    let passed = image.added.passed.iter().flat_map(|passed| &passed.files);
    let processes = passed.filter(|file| matches!(image.files[**file].kind, FileKind::Pidfd { .. }));
    found.extend(processes.map(|file| of_member(member, on_its_way(image, *file, "a pidfd"))));
    found
}

/// Refuses the file at this place, which comes with a message.
fn on_its_way(image: &ProgramImage, file: usize, what: &str) -> Refusal {
    let socket = image.added.passed.iter().find(|passed| passed.files.contains(&file)).and_then(|passed| {
        let is_it = |kind: &FileKind| matches!(kind, FileKind::UnixPair { pair, end } if (*pair, *end) == (passed.pair, passed.end));
        image.files.iter().find(|file| is_it(&file.kind))?.numbers.first()
    });
    let fd = socket.map_or(-1, |(number, _)| *number);
    Refusal::UnknownDescriptor { fd, what: format!("a socket at which {what} waits (SCM_RIGHTS)") }
}

fn of_member(member: &Member, refusal: Refusal) -> Refusal {
    let thread = &member.image.threads[0];
    refusal.of_process(thread.tid, String::from_utf8_lossy(&thread.name).trim_end_matches('\0'))
}

/// The first process that has what is handed down by this number, and its descriptor there.
fn heir(tree: &Tree, number: i32) -> Option<(&Member, i32)> {
    tree.members.iter().find_map(|member| {
        let (_, own) = member.kin.inherited.iter().find(|(handed, _)| *handed == number)?;
        Some((member, own.first()?.0))
    })
}
