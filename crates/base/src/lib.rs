//! What every other crate may use: identifiers, limits, errors as text, text for people, scratch directories, the framed encoding of what
//! outlives a process, lists of texts for serde, and the names of metrics.

pub mod budget;
pub mod error;
pub mod frame;
pub mod id;
pub mod limits;
pub mod scratch;
pub mod telemetry;
pub mod text;
pub mod texts;
