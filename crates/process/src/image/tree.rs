//! A program as its processes: what each of them is beside its image, and what they share.
//!
//! Each open file and each object of shared memory is made once, by the nearest process that all of its users descend from, and handed down to
//! them when they are cloned. Numbers for that lie above the descriptors of all processes.

use serde::{Deserialize, Serialize};
use sys::remote::Range;

use super::{Backing, FileKind, Mapping, OpenFile, ProgramImage, Stream};

/// The end of what can be displaced: of user addresses with four-level page tables.
const ADDRESSES: u64 = 1 << 47;

/// All processes of a program at one instant. Most have one.
#[derive(Debug)]
pub(crate) struct Tree {
    /// A parent comes before its children. The first is the one that the sandbox was started with.
    pub(crate) members: Vec<Member>,
    pub(crate) zombies: Vec<Zombie>,
    /// The first number for what is handed down.
    pub(crate) handed_from: i32,
    /// The first process is not the sandbox's program, but one of what else ran in it.
    pub(crate) without_program: bool,
}

/// One process.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) image: ProgramImage,
    pub(crate) kin: Kin,
}

/// A process's place among the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kin {
    /// The place of its parent; the first has none, and 0 here.
    pub(crate) parent: usize,
    /// It has lost its parent. Its place is below the process that has given it its session.
    pub(crate) orphan: Option<Orphan>,
    /// It was started in the sandbox from outside, beside its program.
    pub(crate) command: Option<Command>,
    /// The process group that it joins when its leader is there; none if it leads one or has that of its parent.
    pub(crate) joins: Option<i32>,
    /// Open files that an ancestor makes: the number by which it gets each, and its own descriptors, with their close-on-exec flags.
    pub(crate) inherited: Vec<(i32, Vec<(i32, bool)>)>,
    /// Objects that it makes for descendants: their places in its image, and the numbers by which they are handed down.
    pub(crate) hands_down: Vec<(usize, i32)>,
    /// How far its memory lies in the zygote from where it belongs: the sum is taken modulo 2^47.
    pub(crate) displaced: u64,
}

/// A process that was started in the sandbox from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Command {
    /// Its place among the commands, by which its streams are numbered.
    pub(crate) place: u32,
    /// What its caller knows of it.
    pub(crate) label: String,
}

/// How a process stops itself that a signal had stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) signal: i32,
    /// Its parent has waited for its stop, as far as is known: it has waited for all stops of its children.
    pub(crate) is_told: bool,
}

impl Job {
    /// Signals that stop a process, and that it can block.
    pub(crate) const SIGNALS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

    /// Whether a process with this image stops by it.
    pub(crate) fn is_sound(self, image: &ProgramImage) -> bool {
        Self::SIGNALS.contains(&self.signal) && image.threads.len() == 1 && image.is_stopped_by(self.signal)
    }
}

impl ProgramImage {
    /// Whether this signal does to it what it does by itself, and is not blocked.
    pub(crate) fn is_stopped_by(&self, signal: i32) -> bool {
        let action = self.actions.get(signal as usize - 1);
        action.is_some_and(|action| action[0] == libc::SIG_DFL as u64) && self.threads[0].mask >> (signal - 1) & 1 == 0
    }
}

/// How a process comes to have the sandbox's init as its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Orphan {
    /// The number of the leader of its session, if that has ended.
    pub(crate) leader: Option<i32>,
}

/// A process that has ended, and that its parent has not waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Zombie {
    pub(crate) parent: usize,
    pub(crate) pid: i32,
    /// As wait(2) gives it.
    pub(crate) status: i32,
    pub(crate) name: Vec<u8>,
    pub(crate) process_group_leader: bool,
}

impl Tree {
    /// A program of one process.
    pub(crate) fn of(image: ProgramImage) -> Self {
        Self {
            members: vec![Member { image, kin: Kin::default() }],
            zombies: Vec::new(),
            handed_from: 0,
            without_program: false,
        }
    }

    pub(crate) fn first(&self) -> &ProgramImage {
        &self.members[0].image
    }

    pub(crate) fn images(&self) -> impl Iterator<Item = &ProgramImage> {
        self.members.iter().map(|member| &member.image)
    }

    /// Whether there is nothing but one process.
    pub(crate) fn is_single(&self) -> bool {
        self.members.len() == 1 && self.zombies.is_empty()
    }

    /// The places of the children of a member.
    pub(crate) fn children(&self, of: usize) -> impl Iterator<Item = usize> {
        (1..self.members.len()).filter(move |at| self.members[*at].kin.parent == of)
    }

    /// Whether `at` is `of`, or one of its descendants.
    pub(crate) fn descends(&self, at: usize, of: usize) -> bool {
        let mut at = at;
        while at > of {
            at = self.members[at].kin.parent;
        }
        at == of
    }

    /// The commands, and what each is called in its sandbox.
    pub(crate) fn commands(&self) -> impl Iterator<Item = (&Command, i32)> {
        self.members.iter().filter_map(|member| Some((member.kin.command.as_ref()?, member.image.threads[0].tid)))
    }

    /// The first process that has this stream open.
    pub(crate) fn holder_of(&self, stream: Stream) -> Option<&ProgramImage> {
        let is_it = move |file: &OpenFile| matches!(file.kind, FileKind::Stream(found) if found == stream);
        self.images().find(|image| image.files.iter().any(is_it))
    }

    /// How many streams a copy is given: three of the first process, three of each command up to the last that any process has one of, and two of
    /// each terminal that the program has made; a multiple of three.
    pub(crate) fn streams(&self) -> usize {
        let files = self.images().flat_map(|image| &image.files);
        let had = files.filter_map(|file| match file.kind {
            FileKind::Stream(stream) => Some(stream.number() / 3),
            _ => None,
        });
        let terminals = self.images().filter_map(|image| image.terminal.as_ref());
        let had = had.chain(terminals.map(|terminal| terminal.stream.number() / 3));
        let own = self.images().flat_map(|image| &image.own_terminals);
        let had = had.chain(own.map(|own| own.stream.next().number() / 3));
        let last = had.chain(self.commands().map(|(command, _)| command.place + 1)).max().unwrap_or(0);
        3 * (last as usize + 1)
    }

    /// The nearest process that both descend from, or are.
    pub(crate) fn common(parents: &[usize], a: usize, b: usize) -> usize {
        let (mut a, mut b) = (a, b);
        while a != b {
            if a > b { a = parents[a] } else { b = parents[b] }
        }
        a
    }

    /// Where the zygote has the mappings that it has: those whose pages are a process's own.
    pub(crate) fn parked(&self) -> impl Iterator<Item = (usize, Range)> {
        self.members.iter().enumerate().flat_map(|(at, member)| member.parked().map(move |range| (at, range)))
    }

    /// The mappings of no file whose pages are kept, where the zygote has them, in order.
    pub(crate) fn anonymous(&self) -> Vec<Range> {
        let of =
            |member: &Member| -> Vec<Range> { member.image.anonymous().map(|range| member.kin.place(range)).collect() };
        let mut ranges: Vec<Range> = self.members.iter().flat_map(of).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges
    }

    /// The mappings of a checkpoint whose pages arrive by fault: those of no file that have any.
    pub(crate) fn by_fault(&self, pages: &[Range]) -> Vec<Range> {
        let mut ranges = self.anonymous();
        ranges.retain(|range| !super::within(pages, *range).is_empty());
        ranges
    }

    /// Content of shared memory and of files in memory, in bytes.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.images().map(ProgramImage::copied_bytes).sum()
    }

    /// Where the zygote has no room for the memory of others: what the processes above a member have mapped, and the member itself.
    pub(crate) fn lineage(&self, at: usize) -> impl Iterator<Item = &Member> {
        let mut next = Some(at);
        std::iter::from_fn(move || {
            let at = next?;
            next = (at != 0).then(|| self.members[at].kin.parent);
            Some(&self.members[at])
        })
    }
}

impl Member {
    /// Where the zygote has its private mappings.
    pub(crate) fn parked(&self) -> impl Iterator<Item = Range> {
        let private = self.image.mappings.iter().filter(|mapping| mapping.is_private());
        private.map(|mapping| self.kin.place(mapping.range))
    }

    /// All that it has mapped, the vDSO too, where it belongs.
    pub(crate) fn mapped(&self) -> impl Iterator<Item = Range> {
        let vdso = self.image.vdso.iter().map(|(_, range)| *range);
        self.image.mappings.iter().map(|mapping| mapping.range).chain(vdso)
    }
}

impl Kin {
    /// Where the zygote has this range of the process.
    pub(crate) fn place(&self, range: Range) -> Range {
        let start = range.start.wrapping_add(self.displaced) & (ADDRESSES - 1);
        if self.displaced == 0 { range } else { Range { start, end: start + (range.end - range.start) } }
    }

    /// The same of several ranges, in the order of the zygote.
    pub(crate) fn place_all(&self, ranges: &[Range]) -> Vec<Range> {
        let mut places: Vec<Range> = ranges.iter().map(|range| self.place(*range)).collect();
        places.sort_unstable_by_key(|range| range.start);
        places
    }

    /// The address in the process of what the zygote has here.
    pub(crate) fn origin(&self, place: u64) -> u64 {
        if self.displaced == 0 { place } else { place.wrapping_sub(self.displaced) & (ADDRESSES - 1) }
    }

    /// Whether the range stays below the end of all addresses there.
    pub(crate) fn holds(&self, range: Range) -> bool {
        self.displaced == 0 || self.place(range).end <= ADDRESSES - (1 << 12)
    }

    /// A mapping as the zygote has it.
    pub(crate) fn placed(&self, mapping: &Mapping) -> Mapping {
        Mapping { range: self.place(mapping.range), ..mapping.clone() }
    }
}

/// Objects that a mapping shows: those of its own process.
pub(crate) fn object_of(mapping: &Mapping) -> Option<usize> {
    match mapping.backing {
        Backing::Object { object, .. } => Some(object),
        Backing::Anonymous
        | Backing::File { .. }
        | Backing::SharedFile { .. }
        | Backing::Handed { .. }
        | Backing::Segment { .. } => None,
    }
}
