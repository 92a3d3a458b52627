//! Images from registries (OCI's distribution specification): names, tokens, and downloads that resume.
//!
//! ```text
//! name ─► Reference ─► manifest (of an index: the one for this machine) ─► configuration ─► layers that the node lacks
//!                         └──────────── Session: token, Http: address checked ────────────────┘
//! DIR/MANIFEST/  an oci-layout that is filled; images takes it in, as any other one
//! ```
//!
//! Registries are named by users and not trusted: what is read is bounded before it is parsed, each blob has its digest, and no connection leads to
//! where a sandbox may not connect to ([`network::Outside`]). A registry cannot lead it there by a redirect, by the address of its token service, or by
//! a name that changes its address. Downloads survive the node: the next pull of the image goes on with them.

mod attempts;
mod background;
mod blob;
mod downloads;
mod error;
mod http;
mod limits;
mod meter;
mod reference;
mod registry;
mod session;
mod settings;

pub use error::Error;
pub use meter::Tell;
pub use reference::{Host, REGISTRY_DEFAULT, Reference};
pub use registry::{Fetched, Registry};
pub use session::Credentials;
pub use settings::Settings;
