//! One sandbox, as the services see it: commands, files, watches.

use std::{pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;

use crate::Failure;

/// What an operation gives.
pub type Outcome<T> = Result<T, Failure>;
/// What a command does, as it happens.
pub type Events = Pin<Box<dyn Stream<Item = Event> + Send>>;
/// What happens to watched files. It ends with a failure if events were lost.
pub type FileEvents = Pin<Box<dyn Stream<Item = Outcome<FileEvent>> + Send>>;

/// A sandbox, in the extensions of a request.
#[derive(Clone)]
pub struct PlaceHandle(pub Arc<dyn Place>);

/// A sandbox. `user` is the name that the client gave, or none for the sandbox's default.
#[async_trait]
pub trait Place: Send + Sync + 'static {
    /// The sandbox's id.
    fn id(&self) -> &str;
    /// Where paths of a user begin.
    async fn home(&self, user: Option<&str>) -> Outcome<Home>;

    /// Starts a command.
    async fn start(&self, start: Start) -> Outcome<Followed>;
    /// The commands that run.
    async fn commands(&self) -> Outcome<Vec<Command>>;
    /// Follows a command that runs, from the start of the output that is kept.
    async fn follow(&self, selector: Selector) -> Outcome<Followed>;
    /// Sends input; returns when the sandbox has taken it.
    async fn input(&self, selector: Selector, input: Input) -> Outcome<()>;
    /// The command reads the end of its input.
    async fn close_input(&self, selector: Selector) -> Outcome<()>;
    /// Gives the command's terminal another size.
    async fn resize(&self, selector: Selector, size: Size) -> Outcome<()>;
    /// Ends a command.
    async fn signal(&self, selector: Selector, signal: Signal) -> Outcome<()>;

    /// One entry.
    async fn stat(&self, user: Option<&str>, path: &str) -> Outcome<Entry>;
    /// What is below a directory, `depth` levels deep.
    async fn list(&self, user: Option<&str>, path: &str, depth: u32) -> Outcome<Vec<Entry>>;
    /// Makes a directory and its parents.
    async fn make_dir(&self, user: Option<&str>, path: &str) -> Outcome<Entry>;
    /// Renames an entry, and makes the parents of its new name.
    async fn rename(&self, user: Option<&str>, from: &str, to: &str) -> Outcome<Entry>;
    /// Removes an entry and all that is below it.
    async fn remove(&self, user: Option<&str>, path: &str) -> Outcome<()>;
    /// Watches a directory.
    async fn watch(&self, user: Option<&str>, watch: WatchSpec) -> Outcome<FileEvents>;
}

/// What paths of a user are relative to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// The user's home directory.
    pub home: String,
    /// The directory of relative paths.
    pub cwd: String,
}

/// A command to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// As whom.
    pub user: Option<String>,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables, beside those that every command has.
    pub env: Vec<(String, String)>,
    /// An absolute path; none: the user's home.
    pub cwd: Option<String>,
    /// Size of its terminal; none: it has pipes.
    pub terminal: Option<Size>,
    /// A name by which it can be selected.
    pub tag: Option<String>,
    /// Whether input will be sent. If not, it reads the end of its input at once.
    pub input: bool,
    /// When it is ended with all that it has started.
    pub timeout: Option<Duration>,
}

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

/// A command that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// In the sandbox.
    pub pid: u32,
    /// The name that its client gave it.
    pub tag: Option<String>,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The variables that its client gave it.
    pub env: Vec<(String, String)>,
    /// Where it began.
    pub cwd: Option<String>,
}

/// A command and what it does.
pub struct Followed {
    /// In the sandbox.
    pub pid: u32,
    /// Ends with [`Event::Ended`].
    pub events: Events,
}

/// What a command does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It wrote to standard output.
    Stdout(Bytes),
    /// It wrote to standard error.
    Stderr(Bytes),
    /// It wrote to its terminal.
    Terminal(Bytes),
    /// Output that this client was too slow for, in bytes.
    Missed(u64),
    /// It ended.
    Ended(End),
    /// It cannot be followed any more.
    Broken(Failure),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself, with an exit code.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// The status was lost.
    Unknown,
}

/// Which command is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// By its pid in the sandbox.
    Pid(u32),
    /// By the name that its client gave it.
    Tag(String),
}

/// Bytes for a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// For its standard input.
    Stdin(Bytes),
    /// For its terminal.
    Terminal(Bytes),
}

/// How a command is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
}

/// Kind of an entry; for a link, the kind of what it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A link that leads nowhere.
    Symlink,
    /// Anything else.
    Other,
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its path.
    pub path: String,
    /// Its kind.
    pub kind: EntryKind,
    /// In bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// The same as text: `-rw-r--r--`.
    pub permissions: String,
    /// Name or number of its user.
    pub owner: String,
    /// Name or number of its group.
    pub group: String,
    /// When its content was changed last: seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    /// Where a link leads.
    pub symlink_target: Option<String>,
    /// What clients have stored with it.
    pub metadata: Vec<(String, String)>,
}

/// What is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchSpec {
    /// A directory.
    pub path: String,
    /// Whether all below it is watched, too.
    pub recursive: bool,
    /// Whether events have the entry.
    pub entries: bool,
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileEventKind {
    /// It was made.
    Create,
    /// It was written.
    Write,
    /// It was removed.
    Remove,
    /// It was renamed.
    Rename,
    /// Its mode, owner or times were changed.
    Chmod,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEvent {
    /// Relative to the watched directory.
    pub name: String,
    /// What happened.
    pub kind: FileEventKind,
    /// The entry, if it was asked for and is there.
    pub entry: Option<Entry>,
}

impl FileEvent {
    /// Memory that it takes, in bytes, roughly.
    pub(crate) fn bytes(&self) -> usize {
        let entry = |entry: &Entry| {
            let metadata: usize = entry.metadata.iter().map(|(key, value)| key.len() + value.len() + 64).sum();
            let target = entry.symlink_target.as_ref().map_or(0, String::len);
            entry.name.len() + entry.path.len() + target + metadata + 256
        };
        64 + self.name.len() + self.entry.as_ref().map_or(0, entry)
    }
}
