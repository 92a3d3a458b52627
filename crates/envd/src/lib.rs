//! E2B's services inside a sandbox, answered from outside: nothing of ours runs in the sandbox.
//!
//! ```text
//! HTTP request -> connectrpc: JSON or protobuf, frames, deadlines -> ProcessService    -> Place (commands)
//!                                                                 -> FilesystemService -> Place (files, watches)
//! ```
//!
//! [`Place`] is one sandbox as the services see it. The server puts it into the extensions of the request, after it
//! has checked the access token. `proto` has the messages; E2B's packages are the authority about them.

mod failure;
mod filesystem;
mod path;
mod place;
mod process;
mod user;
mod watchers;

use std::sync::Arc;

use connectrpc::{CompressionRegistry, ConnectRpcService, Limits, Router};

pub use failure::{Code, Failure};
pub use path::resolve;
pub use place::{
    Command, End, Entry, EntryKind, Event, Events, FileEvent, FileEventKind, FileEvents, Followed, Home, Input,
    Outcome, Place, PlaceHandle, Selector, Signal, Size, Start, WatchSpec,
};
pub use user::user_of;
pub use watchers::Watchers;

/// The version of envd whose behaviour this is. Clients choose by it what they ask for.
pub const VERSION: &str = "0.6.13";
/// The port on which clients look for envd.
pub const PORT: u16 = 49983;
/// Most bytes of one message: input for a command, for the most part.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// The generated messages and services.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used, clippy::wildcard_imports, rustdoc::all)]
mod proto {
    connectrpc::include_generated!();
}

/// Both services, as a tower service.
pub type Service = ConnectRpcService;

/// Makes the services. `watchers` has what clients watch without a stream.
pub fn service(watchers: Arc<Watchers>) -> Service {
    let router = Router::new()
        .add_service(Arc::new(process::ProcessService))
        .add_service(Arc::new(filesystem::FilesystemService::new(watchers)));
    let limits = Limits::default().with_max_message_size(MESSAGE_BYTES_MAX);
    // Answers are small, or output that is wanted at once.
    ConnectRpcService::new(router).with_limits(limits).with_compression(CompressionRegistry::default())
}
