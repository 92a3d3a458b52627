//! The messages between the server and the keeper.
//!
//! ```text
//! server ── request + its files ─────────────────────> keeper
//! server <── Captured, then Done(reply) or Failed ──── keeper     with the number of the request; in any order
//! server <── Event ─────────────────────────────────── keeper     unasked; number 0
//! ```
//!
//! Each request is a type of its own. [`Call`] names the type of its reply and the files that go with it. [`wire`] carries the messages.

mod call;
mod reply;
mod request;
pub mod wire;

pub use call::{Call, Files, Request, Sent};
pub use reply::{
    Adopted, Built, BuiltOrRefused, ByFault, Created, Event, Failed, FailureKind, Forked, ForkedCommand, FromKeeper,
    Refusal, Released, Status,
};
pub use request::{
    Adopt, AttachMounts, Base, BindLimits, Capture, CreateBare, CreateSandbox, DestroySandbox, DropZygote, Furnish,
    Interpreter, MakeMountPoints, Parcel, ParkCopy, Purpose, ReleaseCopy, RestoreZygote, Source, Spawn, StartCopy,
    StartHand, Thaw, Volumes,
};
