//! What a program's state has grown by since version 1: sections, each with a tag and bytes of its own.
//!
//! A section that has nothing to say is not written. A reader that does not know a tag refuses the state, because the program would lose
//! something without a word.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::StateError;
use crate::image::Image;

/// One section.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Section {
    tag: u16,
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
}

/// Tags, never reused. A new kind of state takes the next number, a `#[serde(skip)]` field of [`Image`], a line in [`of`] and one in [`apply`].
mod tag {
    pub(super) const LOCKS: u16 = 1;
    pub(super) const EXTENDED_REGISTERS: u16 = 2;
}

/// The sections of an image.
pub(super) fn of(image: &Image) -> Result<Vec<Section>, StateError> {
    let mut sections = Vec::new();
    put(&mut sections, tag::LOCKS, &image.locks)?;
    put(&mut sections, tag::EXTENDED_REGISTERS, &image.extended)?;
    Ok(sections)
}

/// Puts them where they belong.
pub(super) fn apply(sections: Vec<Section>, image: &mut Image) -> Result<(), StateError> {
    for Section { tag, bytes } in sections {
        match tag {
            tag::LOCKS => image.locks = get(&bytes)?,
            tag::EXTENDED_REGISTERS => image.extended = get(&bytes)?,
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
