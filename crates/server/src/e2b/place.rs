//! One sandbox of the node, as the services of envd see it.

mod commands;
mod files;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use base::id::SandboxId;
use control::Sandbox;
use envd::{
    Code, Command, Entry, Failure, FileEvents, Followed, Home, Input, Outcome, Place, Selector, Signal, Size, Start,
    WatchSpec,
};
use hands::Hand;
use model::FailureKind;
use node::Node;

use axum::http::StatusCode;

pub(crate) use files::{entry, entry_failure};

/// A sandbox of the node.
#[derive(Clone)]
pub(crate) struct Inside {
    node: Arc<Node>,
    sandbox: Arc<Known>,
}

/// What is known of it.
struct Known {
    id: SandboxId,
    /// Of all its commands.
    env_vars: BTreeMap<String, String>,
}

impl Inside {
    pub(crate) fn new(node: Arc<Node>, sandbox: &Sandbox) -> Self {
        let known = Known { id: sandbox.id.clone(), env_vars: sandbox.spec.env_vars.clone() };
        Self { node, sandbox: Arc::new(known) }
    }

    /// For the node's own API, which knows nothing of teams.
    pub(crate) fn of_node(node: Arc<Node>, id: SandboxId) -> Self {
        Self { node, sandbox: Arc::new(Known { id, env_vars: BTreeMap::new() }) }
    }

    /// What works on the files of a user.
    pub(crate) async fn hand(&self, user: Option<&str>) -> Outcome<Arc<Hand>> {
        self.node.files(&self.sandbox.id, user).await.map_err(|error| failure(&error))
    }

    /// Makes a path absolute.
    pub(crate) async fn resolve(&self, user: Option<&str>, path: &str) -> Outcome<String> {
        envd::resolve(path, &self.home(user).await?)
    }
}

fn failure(error: &node::Error) -> Failure {
    let model::Failure { kind, message, details, .. } = error.failure();
    let code = match kind {
        FailureKind::InvalidRequest => Code::InvalidArgument,
        FailureKind::NotFound | FailureKind::ProgramMissing => Code::NotFound,
        FailureKind::ProgramNotExecutable => Code::PermissionDenied,
        FailureKind::Conflict | FailureKind::CannotFork | FailureKind::ReadOnly => Code::FailedPrecondition,
        FailureKind::NoSpace => Code::ResourceExhausted,
        FailureKind::Interrupted | FailureKind::StoreUnavailable | FailureKind::Cancelled => Code::Unavailable,
        FailureKind::TimedOut => Code::DeadlineExceeded,
        FailureKind::NotReady | FailureKind::StartFailed | FailureKind::Damaged | FailureKind::Host => Code::Internal,
    };
    let details = if details.is_empty() { String::new() } else { format!(": {}", details.join("; ")) };
    Failure::new(code, format!("{message}{details}"))
}

/// The status of a failure over HTTP.
pub(crate) fn status(code: Code) -> StatusCode {
    match code {
        Code::InvalidArgument => StatusCode::BAD_REQUEST,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::FailedPrecondition => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::DataLoss | Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[async_trait]
impl Place for Inside {
    fn id(&self) -> &str {
        self.sandbox.id.as_str()
    }

    async fn home(&self, user: Option<&str>) -> Outcome<Home> {
        let account = self.node.account(&self.sandbox.id, user).await.map_err(|error| failure(&error))?;
        let cwd = self.node.directory_of(&self.sandbox.id, &account).unwrap_or_else(|| account.home.clone());
        Ok(Home { cwd, home: account.home })
    }

    async fn start(&self, start: Start) -> Outcome<Followed> {
        self.start_command(start).await
    }

    async fn commands(&self) -> Outcome<Vec<Command>> {
        self.list_commands().await
    }

    async fn follow(&self, selector: Selector) -> Outcome<Followed> {
        self.follow_command(selector).await
    }

    async fn input(&self, selector: Selector, input: Input) -> Outcome<()> {
        let (Input::Stdin(bytes) | Input::Terminal(bytes)) = input;
        let sent = self.node.send_input(&self.sandbox.id, &commands::selector(selector), &bytes).await;
        sent.map_err(|error| failure(&error))
    }

    async fn close_input(&self, selector: Selector) -> Outcome<()> {
        let closed = self.node.close_input(&self.sandbox.id, &commands::selector(selector)).await;
        closed.map_err(|error| failure(&error))
    }

    async fn resize(&self, selector: Selector, size: Size) -> Outcome<()> {
        let resized = self.node.resize(&self.sandbox.id, &commands::selector(selector), commands::size(size)).await;
        resized.map_err(|error| failure(&error))
    }

    async fn signal(&self, selector: Selector, signal: Signal) -> Outcome<()> {
        let signal = match signal {
            Signal::Terminate => model::CommandSignal::Terminate,
            Signal::Kill => model::CommandSignal::Kill,
        };
        match self.node.signal(&self.sandbox.id, &commands::selector(selector), signal).await {
            // To clients an ended command is gone.
            Err(node::Error::Command(node::CommandError::Ended)) => {
                Err(Failure::new(Code::NotFound, "the command has ended"))
            }
            signalled => signalled.map_err(|error| failure(&error)),
        }
    }

    async fn stat(&self, user: Option<&str>, path: &str) -> Outcome<Entry> {
        let found = self.hand(user).await?.stat(path.as_ref()).await;
        found.map(files::entry).map_err(|error| files::failure(&error))
    }

    async fn list(&self, user: Option<&str>, path: &str, depth: u32) -> Outcome<Vec<Entry>> {
        let found = self.hand(user).await?.list(path.as_ref(), depth).await;
        Ok(found.map_err(|error| files::failure(&error))?.into_iter().map(files::entry).collect())
    }

    async fn make_dir(&self, user: Option<&str>, path: &str) -> Outcome<Entry> {
        let made = self.hand(user).await?.make_directory(path.as_ref()).await;
        made.map(files::entry).map_err(|error| files::failure(&error))
    }

    async fn rename(&self, user: Option<&str>, from: &str, to: &str) -> Outcome<Entry> {
        let renamed = self.hand(user).await?.rename(from.as_ref(), to.as_ref()).await;
        renamed.map(files::entry).map_err(|error| files::failure(&error))
    }

    async fn remove(&self, user: Option<&str>, path: &str) -> Outcome<()> {
        let removed = self.hand(user).await?.remove(path.as_ref()).await;
        removed.map_err(|error| files::failure(&error))
    }

    async fn watch(&self, user: Option<&str>, watch: WatchSpec) -> Outcome<FileEvents> {
        let options = hands::WatchOptions { recursive: watch.recursive, entries: watch.entries };
        let events = self.hand(user).await?.watch(watch.path.as_ref(), options).await;
        Ok(files::events(events.map_err(|error| files::failure(&error))?))
    }
}
