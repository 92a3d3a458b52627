//! Commands and terminals: the service `process.Process`.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use connectrpc::{ConnectError, InboundStream, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream};
use futures::{Stream, StreamExt};

use crate::{
    Code, Command, End, Event, Events, Failure, Followed, Input, Outcome, Place, PlaceHandle, Selector, Signal, Size,
    Start,
    proto::process::{
        self as wire, CloseStdinRequest, CloseStdinResponse, ConnectRequest, ConnectResponse, ListRequest,
        ListResponse, ProcessEvent, ProcessInput, ProcessSelector, SendInputRequest, SendInputResponse,
        SendSignalRequest, SendSignalResponse, StartRequest, StartResponse, StreamInputRequest, StreamInputResponse,
        UpdateRequest, UpdateResponse,
        process_event::{DataEvent, EndEvent, KeepAlive, StartEvent, data_event::Output},
    },
    user_of,
};

/// Between two signs of life on a stream, if the client names no other interval.
const KEEPALIVE_DEFAULT: Duration = Duration::from_secs(90);
/// What a client may ask for.
const KEEPALIVE_MIN: Duration = Duration::from_secs(1);
/// The timeout that the SDKs send if their caller named none. It bounds the stream and not the command: people start
/// servers that way, and come back to them later.
const TIMEOUT_UNSET: Duration = Duration::from_secs(60);

/// The sandbox that a request is for.
pub(crate) fn place(ctx: &RequestContext) -> Result<Arc<dyn Place>, ConnectError> {
    let place = ctx.extensions().get::<PlaceHandle>();
    place.map(|handle| Arc::clone(&handle.0)).ok_or_else(|| ConnectError::internal("the request has no sandbox"))
}

/// How often the client wants a sign of life.
pub(crate) fn keepalive(ctx: &RequestContext) -> Duration {
    let asked = ctx.header("keepalive-ping-interval").and_then(|value| value.to_str().ok()?.trim().parse().ok());
    asked.map_or(KEEPALIVE_DEFAULT, Duration::from_secs).max(KEEPALIVE_MIN)
}

pub(crate) struct ProcessService;

// The generated traits let handlers answer with less than the whole message; these never do.
#[allow(refining_impl_trait)]
impl wire::Process for ProcessService {
    async fn list(&self, ctx: RequestContext, _: ServiceRequest<'_, ListRequest>) -> ServiceResult<ListResponse> {
        let processes = place(&ctx)?.commands().await?.into_iter().map(info).collect();
        Response::ok(ListResponse { processes, ..Default::default() })
    }

    async fn start(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, StartRequest>,
    ) -> ServiceResult<ServiceStream<StartResponse>> {
        let start = start_of(&ctx, request.to_owned_message())?;
        let followed = place(&ctx)?.start(start).await?;
        let events = events(followed, keepalive(&ctx));
        Response::stream_ok(events.map(|event| Ok(StartResponse { event: event?.into(), ..Default::default() })))
    }

    async fn connect(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, ConnectRequest>,
    ) -> ServiceResult<ServiceStream<ConnectResponse>> {
        let selector = selector(request.to_owned_message().process.into_option())?;
        let followed = place(&ctx)?.follow(selector).await?;
        let events = events(followed, keepalive(&ctx));
        Response::stream_ok(events.map(|event| Ok(ConnectResponse { event: event?.into(), ..Default::default() })))
    }

    async fn update(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, UpdateRequest>,
    ) -> ServiceResult<UpdateResponse> {
        let UpdateRequest { process, pty, .. } = request.to_owned_message();
        let selector = selector(process.into_option())?;
        if let Some(size) = pty.into_option().and_then(|pty| pty.size.into_option()) {
            place(&ctx)?.resize(selector, size_of(&size)?).await?;
        }
        Response::ok(UpdateResponse::default())
    }

    async fn stream_input(
        &self,
        ctx: RequestContext,
        mut requests: InboundStream<StreamInputRequest>,
    ) -> ServiceResult<StreamInputResponse> {
        let place = place(&ctx)?;
        let mut target = None;
        while let Some(request) = requests.next().await {
            use wire::stream_input_request::Event;
            match request?.to_owned_message().event {
                Some(Event::Start(start)) => target = Some(selector(start.process.into_option())?),
                Some(Event::Data(data)) => {
                    let to = target.clone().ok_or_else(|| {
                        ConnectError::invalid_argument("the first message of the stream names no command")
                    })?;
                    place.input(to, input(data.input.into_option())?).await?;
                }
                Some(Event::Keepalive(_)) | None => {}
            }
        }
        Response::ok(StreamInputResponse::default())
    }

    async fn send_input(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, SendInputRequest>,
    ) -> ServiceResult<SendInputResponse> {
        let SendInputRequest { process, input: bytes, .. } = request.to_owned_message();
        place(&ctx)?.input(selector(process.into_option())?, input(bytes.into_option())?).await?;
        Response::ok(SendInputResponse::default())
    }

    async fn send_signal(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, SendSignalRequest>,
    ) -> ServiceResult<SendSignalResponse> {
        let SendSignalRequest { process, signal, .. } = request.to_owned_message();
        let signal = match signal.as_known() {
            Some(wire::Signal::SIGNAL_SIGTERM) => Signal::Terminate,
            Some(wire::Signal::SIGNAL_SIGKILL) => Signal::Kill,
            Some(wire::Signal::SIGNAL_UNSPECIFIED) | None => {
                return Err(ConnectError::invalid_argument("the signal must be SIGTERM or SIGKILL"));
            }
        };
        place(&ctx)?.signal(selector(process.into_option())?, signal).await?;
        Response::ok(SendSignalResponse::default())
    }

    async fn close_stdin(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, CloseStdinRequest>,
    ) -> ServiceResult<CloseStdinResponse> {
        let selector = selector(request.to_owned_message().process.into_option())?;
        place(&ctx)?.close_input(selector).await?;
        Response::ok(CloseStdinResponse::default())
    }
}

fn start_of(ctx: &RequestContext, request: StartRequest) -> Outcome<Start> {
    let StartRequest { process, pty, tag, stdin, .. } = request;
    let config = process.into_option().filter(|config| !config.cmd.is_empty());
    let config = config.ok_or_else(|| Failure::new(Code::InvalidArgument, "no command is given"))?;
    let terminal = pty.into_option().map(|pty| size_of(&pty.size.into_option().unwrap_or_default())).transpose()?;
    let timeout = timeout(ctx);
    Ok(Start {
        user: user_of(ctx.headers())?,
        argv: [vec![config.cmd], config.args].concat(),
        env: config.envs.into_iter().collect(),
        cwd: config.cwd.filter(|cwd| !cwd.is_empty()),
        // A terminal is always open for input.
        input: stdin.unwrap_or(true) && terminal.is_none(),
        terminal,
        tag: tag.filter(|tag| !tag.is_empty()),
        timeout: timeout.filter(|timeout| *timeout != TIMEOUT_UNSET),
    })
}

/// How long the client lets the command run, as it was sent.
fn timeout(ctx: &RequestContext) -> Option<Duration> {
    let sent = ctx.header("connect-timeout-ms").and_then(|value| value.to_str().ok()?.trim().parse().ok());
    sent.filter(|ms| *ms > 0).map(Duration::from_millis)
}

fn size_of(size: &wire::pty::Size) -> Outcome<Size> {
    let fits = |value: u32, default: u16| match value {
        0 => Ok(default),
        value => u16::try_from(value).map_err(|_| {
            Failure::new(Code::InvalidArgument, format!("a terminal has at most {} lines and columns", u16::MAX))
        }),
    };
    Ok(Size { rows: fits(size.rows, 24)?, columns: fits(size.cols, 80)? })
}

fn selector(selector: Option<ProcessSelector>) -> Outcome<Selector> {
    use wire::process_selector::Selector as Sent;
    match selector.and_then(|selector| selector.selector) {
        Some(Sent::Pid(pid)) => Ok(Selector::Pid(pid)),
        Some(Sent::Tag(tag)) => Ok(Selector::Tag(tag)),
        None => Err(Failure::new(Code::InvalidArgument, "no command is selected: give its pid or its tag")),
    }
}

fn input(input: Option<ProcessInput>) -> Outcome<Input> {
    use wire::process_input::Input as Sent;
    match input.and_then(|input| input.input) {
        Some(Sent::Stdin(bytes)) => Ok(Input::Stdin(Bytes::from(bytes))),
        Some(Sent::Pty(bytes)) => Ok(Input::Terminal(Bytes::from(bytes))),
        None => Err(Failure::new(Code::InvalidArgument, "no input is given: neither stdin nor pty")),
    }
}

fn info(command: Command) -> wire::ProcessInfo {
    let Command { pid, tag, argv, env, cwd } = command;
    let mut argv = argv.into_iter();
    let config = wire::ProcessConfig {
        cmd: argv.next().unwrap_or_default(),
        args: argv.collect(),
        envs: env.into_iter().collect(),
        cwd,
        ..Default::default()
    };
    wire::ProcessInfo { config: config.into(), pid, tag, ..Default::default() }
}

/// The start of a command and all that comes after it, with signs of life in between.
fn events(followed: Followed, keepalive: Duration) -> impl Stream<Item = Result<ProcessEvent, ConnectError>> + Send {
    let start = event(StartEvent { pid: followed.pid, ..Default::default() });
    let rest = futures::stream::unfold(Some(followed.events), move |events| next(events, keepalive));
    futures::stream::once(std::future::ready(Ok(start))).chain(rest)
}

type Next = Option<(Result<ProcessEvent, ConnectError>, Option<Events>)>;

async fn next(events: Option<Events>, keepalive: Duration) -> Next {
    let mut events = events?;
    match tokio::time::timeout(keepalive, events.next()).await {
        Err(_elapsed) => Some((Ok(event(KeepAlive::default())), Some(events))),
        Ok(None) => Some((Err(ConnectError::unavailable("the command can no longer be followed")), None)),
        Ok(Some(Event::Ended(end))) => Some((Ok(event(end_event(end))), None)),
        Ok(Some(Event::Broken(failure))) => Some((Err(failure.into()), None)),
        Ok(Some(Event::Missed(bytes))) => {
            let message = format!("the client was too slow: {bytes} bytes of output were dropped");
            Some((Err(ConnectError::data_loss(message)), None))
        }
        Ok(Some(Event::Stdout(bytes))) => Some((Ok(data(Output::Stdout(bytes.into()))), Some(events))),
        Ok(Some(Event::Stderr(bytes))) => Some((Ok(data(Output::Stderr(bytes.into()))), Some(events))),
        Ok(Some(Event::Terminal(bytes))) => Some((Ok(data(Output::Pty(bytes.into()))), Some(events))),
    }
}

fn event(event: impl Into<wire::process_event::Event>) -> ProcessEvent {
    ProcessEvent { event: Some(event.into()), ..Default::default() }
}

fn data(output: Output) -> ProcessEvent {
    event(DataEvent { output: Some(output), ..Default::default() })
}

/// As Go's `ProcessState` has it, which is what clients know.
fn end_event(end: End) -> EndEvent {
    let (exit_code, exited, status) = match end {
        End::Code(code) => (code, true, format!("exit status {code}")),
        End::Signal(signal) => (-1, false, format!("signal: {}", signal_name(signal))),
        End::Unknown => (-1, false, "unknown".to_owned()),
    };
    let error = match end {
        End::Code(0) => None,
        End::Code(_) | End::Signal(_) => Some(status.clone()),
        End::Unknown => Some("the exit status is unknown: the node was restarted when the command ended".to_owned()),
    };
    EndEvent { exit_code, exited, status, error, ..Default::default() }
}

fn signal_name(signal: i32) -> String {
    let known = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        other => return format!("signal {other}"),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_as_gos_process_state() {
        let shown = |end| {
            let EndEvent { exit_code, exited, status, error, .. } = end_event(end);
            (exit_code, exited, status, error)
        };
        assert_eq!(shown(End::Code(0)), (0, true, "exit status 0".into(), None));
        assert_eq!(shown(End::Code(3)), (3, true, "exit status 3".into(), Some("exit status 3".into())));
        assert_eq!(shown(End::Signal(9)), (-1, false, "signal: killed".into(), Some("signal: killed".into())));
        assert_eq!(shown(End::Unknown).0, -1);
    }

    #[test]
    fn a_terminal_has_a_size_that_the_kernel_takes() {
        let size = |rows, cols| size_of(&wire::pty::Size { rows, cols, ..Default::default() });
        assert_eq!(size(0, 0).unwrap(), Size { rows: 24, columns: 80 });
        assert_eq!(size(7, 9).unwrap(), Size { rows: 7, columns: 9 });
        assert!(size(65_536, 9).is_err());
    }
}
