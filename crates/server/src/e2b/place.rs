//! One sandbox of the node, as the services of envd see it.

use std::sync::Arc;

use async_trait::async_trait;
use envd::{
    Code, Command, End, Entry, Event, Failure, FileEvents, Followed, Home, Input, Outcome, Place, Selector, Signal,
    Size, Start, WatchSpec,
};
use model::{CommandSpec, ExitStatus, FailureKind, TerminalSize};
use node::{
    Node,
    exec::{self, Output, Outputs},
};
use tokio::sync::mpsc;

use control::Sandbox;

pub(crate) struct Inside {
    node: Arc<Node>,
    sandbox: Arc<Sandbox>,
}

impl Inside {
    pub(crate) fn new(node: Arc<Node>, sandbox: Arc<Sandbox>) -> Self {
        Self { node, sandbox }
    }
}

fn failure(error: &node::Error) -> Failure {
    let failure = error.failure();
    let code = match failure.kind {
        FailureKind::InvalidRequest | FailureKind::ProgramMissing | FailureKind::ProgramNotExecutable => {
            Code::InvalidArgument
        }
        FailureKind::NotFound => Code::NotFound,
        FailureKind::Conflict | FailureKind::CannotFork | FailureKind::ReadOnly => Code::FailedPrecondition,
        FailureKind::NoSpace => Code::ResourceExhausted,
        FailureKind::Interrupted | FailureKind::StoreUnavailable | FailureKind::Cancelled => Code::Unavailable,
        FailureKind::TimedOut => Code::DeadlineExceeded,
        FailureKind::NotReady | FailureKind::StartFailed | FailureKind::Damaged | FailureKind::Host => Code::Internal,
    };
    Failure::new(code, failure.message)
}

struct Out(mpsc::Sender<Event>, Vec<Event>);

impl Outputs for Out {
    fn put(&mut self, output: Output) {
        self.1.push(match output {
            Output::Stdout(bytes) => Event::Stdout(bytes.into()),
            Output::Stderr(bytes) => Event::Stderr(bytes.into()),
            Output::Notice(_) => return,
            Output::Exit(ExitStatus::Code(code)) => Event::Ended(End::Code(code)),
            Output::Exit(ExitStatus::Signal(signal)) => Event::Ended(End::Signal(signal)),
            Output::Exit(ExitStatus::Unknown) => Event::Ended(End::Unknown),
        });
    }

    async fn flush(&mut self) -> std::io::Result<()> {
        for event in self.1.drain(..) {
            if self.0.send(event).await.is_err() {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
        }
        Ok(())
    }

    async fn close(&mut self) {}
}

struct NoInput(bool);

impl exec::Inputs for NoInput {
    async fn next(&mut self) -> Option<exec::Input> {
        if std::mem::take(&mut self.0) {
            return Some(exec::Input::StdinEnd);
        }
        std::future::pending().await
    }
}

#[async_trait]
impl Place for Inside {
    fn id(&self) -> &str {
        self.sandbox.id.as_str()
    }

    async fn home(&self, _: Option<&str>) -> Outcome<Home> {
        Ok(Home { home: "/home/user".to_owned(), cwd: "/home/user".to_owned() })
    }

    async fn start(&self, start: Start) -> Outcome<Followed> {
        let spec = CommandSpec {
            command: start.argv,
            env: self.sandbox.spec.env_vars.clone().into_iter().chain(start.env).collect(),
            cwd: Some(start.cwd.unwrap_or_else(|| "/home/user".to_owned())),
            terminal: start.terminal.map(|size| TerminalSize { rows: size.rows, columns: size.columns }),
            timeout_ms: start.timeout.map(|timeout| timeout.as_millis() as u64),
        };
        let exec = self.node.exec(&self.sandbox.id, spec).await.map_err(|error| failure(&error))?;
        let (sender, events) = mpsc::channel(16);
        tokio::spawn(async move { exec.serve(NoInput(true), Out(sender, Vec::new())).await });
        let events = futures::stream::unfold(events, async |mut events| Some((events.recv().await?, events)));
        Ok(Followed { pid: 1, events: Box::pin(events) })
    }

    async fn commands(&self) -> Outcome<Vec<Command>> {
        Ok(Vec::new())
    }

    async fn follow(&self, _: Selector) -> Outcome<Followed> {
        Err(Failure::new(Code::NotFound, "no such command"))
    }

    async fn input(&self, _: Selector, _: Input) -> Outcome<()> {
        Err(Failure::new(Code::NotFound, "no such command"))
    }

    async fn close_input(&self, _: Selector) -> Outcome<()> {
        Err(Failure::new(Code::NotFound, "no such command"))
    }

    async fn resize(&self, _: Selector, _: Size) -> Outcome<()> {
        Err(Failure::new(Code::NotFound, "no such command"))
    }

    async fn signal(&self, _: Selector, _: Signal) -> Outcome<()> {
        Err(Failure::new(Code::NotFound, "no such command"))
    }

    async fn stat(&self, _: Option<&str>, _: &str) -> Outcome<Entry> {
        Err(Failure::new(Code::Unimplemented, "not yet"))
    }

    async fn list(&self, _: Option<&str>, _: &str, _: u32) -> Outcome<Vec<Entry>> {
        Err(Failure::new(Code::Unimplemented, "not yet"))
    }

    async fn make_dir(&self, _: Option<&str>, _: &str) -> Outcome<Entry> {
        Err(Failure::new(Code::Unimplemented, "not yet"))
    }

    async fn rename(&self, _: Option<&str>, _: &str, _: &str) -> Outcome<Entry> {
        Err(Failure::new(Code::Unimplemented, "not yet"))
    }

    async fn remove(&self, _: Option<&str>, _: &str) -> Outcome<()> {
        Err(Failure::new(Code::Unimplemented, "not yet"))
    }

    async fn watch(&self, _: Option<&str>, _: WatchSpec) -> Outcome<FileEvents> {
        Err(Failure::new(Code::Unimplemented, "not yet"))
    }
}
