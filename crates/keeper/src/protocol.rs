//! What server and keeper say to each other: [`message`] has the messages, [`wire`] carries them.

pub mod message;
pub mod wire;
