//! Images: archives unpacked exactly, and a store of their layers.
//!
//! ```text
//! docker-archive, oci-layout (directory or archive), tarball of a root
//!   -> layers, checked against their digests -> one directory per layer, shared -> record of the image: layers, and what it says of programs
//! ```
//!
//! A layer is a directory as overlayfs wants it: whiteouts are devices 0:0, opaque directories have an attribute. It knows no sandbox.

mod archive;
mod decompress;
mod digest;
mod error;
mod layout;
mod limits;
mod manifest;
mod reader;
mod store;
mod unpack;

pub use digest::{Digest, Digester};
pub use error::Error;
pub use layout::{Blob, Layout, Listing};
pub use limits::{ARCHIVE_BYTES_MAX, DOCUMENT_BYTES_MAX, ENTRIES_MAX};
pub use manifest::Config;
pub use store::{Images, Kept, Naming};
pub use unpack::{Kind, Unpacked, open_archive, unpack_tarball};
