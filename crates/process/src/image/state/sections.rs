//! What was added to a program's state since version 1: sections, each with a tag and bytes of its own.
//!
//! A section without content is not written. A reader that does not know a tag refuses the state, because the program would silently lose
//! something.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::StateError;
use crate::image::{Attributes, Kin, Member, ProgramImage, Tree, Zombie};

/// One section.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Section {
    tag: u16,
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
}

/// Tags, never reused. A new kind of state takes the next number, a `#[serde(skip)]` field of [`ProgramImage`], a line in [`of`] and one in [`apply`].
mod tag {
    pub(super) const LOCKS: u16 = 1;
    pub(super) const EXTENDED_REGISTERS: u16 = 2;
    pub(super) const SOCKETS: u16 = 3;
    pub(super) const SIGNAL_OWNERS: u16 = 4;
    pub(super) const OBJECTS: u16 = 5;
    pub(super) const REUSED_NUMBERS: u16 = 6;
    pub(super) const GUARDS: u16 = 7;
    pub(super) const WALL_TIMERS: u16 = 8;
    pub(super) const ARGUMENTS: u16 = 10;
    pub(super) const ATTRIBUTES: u16 = 9;
    pub(super) const MEMORY_FILES: u16 = 11;
    pub(super) const PRIVILEGES: u16 = 12;
    pub(super) const OTHERS: u16 = 13;
    pub(super) const CONNECTIONS: u16 = 14;
    pub(super) const TERMINAL: u16 = 15;
    pub(super) const OWN_TERMINALS: u16 = 16;
    pub(super) const PROTECTION_KEYS: u16 = 17;
    pub(super) const SYSTEM_V: u16 = 18;
    pub(super) const PASSED: u16 = 19;
    pub(super) const JOB: u16 = 20;
}

/// What a program has beside its first process.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Others {
    handed_from: i32,
    without_program: bool,
    /// Of the first process.
    kin: Kin,
    members: Vec<Encoded>,
    zombies: Vec<Zombie>,
}

/// Another process. Its image and its sections have the forms that those of the first have.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Encoded {
    kin: Kin,
    #[serde(with = "serde_bytes")]
    image: Vec<u8>,
}

/// The sections of a program.
pub(super) fn of(tree: &Tree) -> Result<Vec<Section>, StateError> {
    let mut sections = of_image(tree.first())?;
    let encoded = |member: &Member| -> Result<Encoded, StateError> {
        let image = postcard::to_stdvec(&(&member.image, of_image(&member.image)?)).map_err(StateError::Encoding)?;
        Ok(Encoded { kin: member.kin.clone(), image })
    };
    let others = Others {
        handed_from: tree.handed_from,
        without_program: tree.without_program,
        kin: tree.members[0].kin.clone(),
        members: tree.members[1..].iter().map(encoded).collect::<Result<_, _>>()?,
        zombies: tree.zombies.clone(),
    };
    put(&mut sections, tag::OTHERS, &others)?;
    Ok(sections)
}

/// Puts them where they belong.
pub(super) fn apply(sections: Vec<Section>, tree: &mut Tree) -> Result<(), StateError> {
    let (others, own): (Vec<Section>, Vec<Section>) = sections.into_iter().partition(|one| one.tag == tag::OTHERS);
    apply_to_image(own, &mut tree.members[0].image)?;
    for Section { bytes, .. } in others {
        let Others { handed_from, without_program, kin, members, zombies } = get(&bytes)?;
        (tree.handed_from, tree.without_program, tree.members[0].kin) = (handed_from, without_program, kin);
        tree.zombies = zombies;
        for Encoded { kin, image } in members {
            let (mut image, sections): (ProgramImage, Vec<Section>) = get(&image)?;
            apply_to_image(sections, &mut image)?;
            tree.members.push(Member { image, kin });
        }
    }
    Ok(())
}

/// The sections of one process.
fn of_image(image: &ProgramImage) -> Result<Vec<Section>, StateError> {
    let mut sections = Vec::new();
    put(&mut sections, tag::LOCKS, &image.locks)?;
    put(&mut sections, tag::EXTENDED_REGISTERS, &image.extended)?;
    put(&mut sections, tag::SOCKETS, &image.added.sockets)?;
    put(&mut sections, tag::SIGNAL_OWNERS, &image.added.owners)?;
    put(&mut sections, tag::OBJECTS, &image.added.objects)?;
    put(&mut sections, tag::REUSED_NUMBERS, &image.added.reused)?;
    put(&mut sections, tag::GUARDS, &image.guards)?;
    put(&mut sections, tag::WALL_TIMERS, &image.wall_timers)?;
    put(&mut sections, tag::ARGUMENTS, &image.arguments)?;
    put(&mut sections, tag::ATTRIBUTES, &Attributes::of(image))?;
    put(&mut sections, tag::MEMORY_FILES, &image.memory_files)?;
    put(&mut sections, tag::PRIVILEGES, &image.privileges)?;
    put(&mut sections, tag::CONNECTIONS, &image.connections)?;
    put(&mut sections, tag::TERMINAL, &image.terminal)?;
    put(&mut sections, tag::OWN_TERMINALS, &image.own_terminals)?;
    put(&mut sections, tag::PROTECTION_KEYS, &image.keys)?;
    put(&mut sections, tag::SYSTEM_V, &image.system_v)?;
    put(&mut sections, tag::PASSED, &image.added.passed)?;
    put(&mut sections, tag::JOB, &image.job)?;
    Ok(sections)
}

fn apply_to_image(sections: Vec<Section>, image: &mut ProgramImage) -> Result<(), StateError> {
    for Section { tag, bytes } in sections {
        match tag {
            tag::LOCKS => image.locks = get(&bytes)?,
            tag::EXTENDED_REGISTERS => image.extended = get(&bytes)?,
            tag::SOCKETS => image.added.sockets = get(&bytes)?,
            tag::SIGNAL_OWNERS => image.added.owners = get(&bytes)?,
            tag::OBJECTS => image.added.objects = get(&bytes)?,
            tag::REUSED_NUMBERS => image.added.reused = get(&bytes)?,
            tag::GUARDS => image.guards = get(&bytes)?,
            tag::WALL_TIMERS => image.wall_timers = get(&bytes)?,
            tag::ARGUMENTS => image.arguments = get(&bytes)?,
            tag::ATTRIBUTES => get::<Attributes>(&bytes)?.apply(image).map_err(StateError::Impossible)?,
            tag::MEMORY_FILES => image.memory_files = get(&bytes)?,
            tag::PRIVILEGES => image.privileges = get(&bytes)?,
            tag::CONNECTIONS => image.connections = get(&bytes)?,
            tag::TERMINAL => image.terminal = get(&bytes)?,
            tag::OWN_TERMINALS => image.own_terminals = get(&bytes)?,
            tag::PROTECTION_KEYS => image.keys = get(&bytes)?,
            tag::SYSTEM_V => image.system_v = get(&bytes)?,
            tag::PASSED => image.added.passed = get(&bytes)?,
            tag::JOB => image.job = get(&bytes)?,
            unknown => return Err(StateError::Section(unknown)),
        }
    }
    Ok(())
}

fn put<T: Serialize + Default + PartialEq>(sections: &mut Vec<Section>, tag: u16, value: &T) -> Result<(), StateError> {
    if *value != T::default() {
        sections.push(Section { tag, bytes: postcard::to_stdvec(value).map_err(StateError::Encoding)? });
    }
    Ok(())
}

fn get<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StateError> {
    match postcard::take_from_bytes(bytes).map_err(StateError::Encoding)? {
        (value, []) => Ok(value),
        (_, _) => Err(StateError::Impossible("bytes follow a section")),
    }
}
