//! From and to the nouns. Each conversion takes its source apart by name: a field that is new on either side has to be placed.

mod checkpoint;
mod command;
mod difference;
mod error;
mod mount;
mod node;
mod sandbox;
mod store;
mod template;
mod volume;
