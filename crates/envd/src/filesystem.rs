//! Files and watches: the service `filesystem.Filesystem`.

use std::{sync::Arc, time::Duration};

use connectrpc::{ConnectError, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream};
use futures::{Stream, StreamExt};

use crate::{
    Code, Entry, EntryKind, Failure, FileEvent, FileEventKind, FileEvents, Outcome, Place, WatchSpec, Watchers,
    path::resolve,
    process::{keepalive, place},
    proto::filesystem::{
        self as wire, CreateWatcherRequest, CreateWatcherResponse, EntryInfo, EventType, FileType, FilesystemEvent,
        GetWatcherEventsRequest, GetWatcherEventsResponse, ListDirRequest, ListDirResponse, MakeDirRequest,
        MakeDirResponse, MoveRequest, MoveResponse, RemoveRequest, RemoveResponse, RemoveWatcherRequest,
        RemoveWatcherResponse, StatRequest, StatResponse, WatchDirRequest, WatchDirResponse,
        watch_dir_response::{Event, KeepAlive, StartEvent},
    },
    user_of,
};

/// Deepest listing.
const DEPTH_MAX: u32 = 64;

pub(crate) struct FilesystemService {
    watchers: Arc<Watchers>,
}

impl FilesystemService {
    pub(crate) fn new(watchers: Arc<Watchers>) -> Self {
        Self { watchers }
    }
}

/// A request's sandbox and user.
struct Caller {
    place: Arc<dyn Place>,
    user: Option<String>,
}

impl Caller {
    fn of(ctx: &RequestContext) -> Result<Self, ConnectError> {
        Ok(Self { place: place(ctx)?, user: user_of(ctx.headers())? })
    }

    fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    async fn path(&self, path: &str) -> Outcome<String> {
        resolve(path, &self.place.home(self.user()).await?)
    }

    async fn watch(&self, path: &str, recursive: bool, entries: bool) -> Outcome<FileEvents> {
        let path = self.path(path).await?;
        self.place.watch(self.user(), WatchSpec { path, recursive, entries }).await
    }
}

// The generated traits let handlers answer with less than the whole message; these never do.
#[allow(refining_impl_trait)]
impl wire::Filesystem for FilesystemService {
    async fn stat(&self, ctx: RequestContext, request: ServiceRequest<'_, StatRequest>) -> ServiceResult<StatResponse> {
        let caller = Caller::of(&ctx)?;
        let entry = caller.place.stat(caller.user(), &caller.path(request.path).await?).await?;
        Response::ok(StatResponse { entry: info(entry).into(), ..Default::default() })
    }

    async fn make_dir(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, MakeDirRequest>,
    ) -> ServiceResult<MakeDirResponse> {
        let caller = Caller::of(&ctx)?;
        let entry = caller.place.make_dir(caller.user(), &caller.path(request.path).await?).await?;
        Response::ok(MakeDirResponse { entry: info(entry).into(), ..Default::default() })
    }

    async fn r#move(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, MoveRequest>,
    ) -> ServiceResult<MoveResponse> {
        let caller = Caller::of(&ctx)?;
        let (from, to) = (caller.path(request.source).await?, caller.path(request.destination).await?);
        let entry = caller.place.rename(caller.user(), &from, &to).await?;
        Response::ok(MoveResponse { entry: info(entry).into(), ..Default::default() })
    }

    async fn list_dir(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, ListDirRequest>,
    ) -> ServiceResult<ListDirResponse> {
        let caller = Caller::of(&ctx)?;
        let depth = match request.depth {
            0 => 1,
            depth @ 1..=DEPTH_MAX => depth,
            depth => {
                let message = format!("depth {depth}: at most {DEPTH_MAX} levels are listed at once");
                return Err(Failure::new(Code::InvalidArgument, message).into());
            }
        };
        let entries = caller.place.list(caller.user(), &caller.path(request.path).await?, depth).await?;
        Response::ok(ListDirResponse { entries: entries.into_iter().map(info).collect(), ..Default::default() })
    }

    async fn remove(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, RemoveRequest>,
    ) -> ServiceResult<RemoveResponse> {
        let caller = Caller::of(&ctx)?;
        caller.place.remove(caller.user(), &caller.path(request.path).await?).await?;
        Response::ok(RemoveResponse::default())
    }

    async fn watch_dir(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, WatchDirRequest>,
    ) -> ServiceResult<ServiceStream<WatchDirResponse>> {
        let caller = Caller::of(&ctx)?;
        let events = caller.watch(request.path, request.recursive, request.include_entry).await?;
        Response::stream_ok(watched(events, keepalive(&ctx)))
    }

    async fn create_watcher(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, CreateWatcherRequest>,
    ) -> ServiceResult<CreateWatcherResponse> {
        let caller = Caller::of(&ctx)?;
        let events = caller.watch(request.path, request.recursive, request.include_entry).await?;
        let watcher_id = self.watchers.add(caller.place.id(), events)?;
        Response::ok(CreateWatcherResponse { watcher_id, ..Default::default() })
    }

    async fn get_watcher_events(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, GetWatcherEventsRequest>,
    ) -> ServiceResult<GetWatcherEventsResponse> {
        let events = self.watchers.take(place(&ctx)?.id(), request.watcher_id).await?;
        let events = events.into_iter().map(event).collect();
        Response::ok(GetWatcherEventsResponse { events, ..Default::default() })
    }

    async fn remove_watcher(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, RemoveWatcherRequest>,
    ) -> ServiceResult<RemoveWatcherResponse> {
        self.watchers.remove(place(&ctx)?.id(), request.watcher_id)?;
        Response::ok(RemoveWatcherResponse::default())
    }
}

/// The begin of a watch and its events, with signs of life in between.
fn watched(
    events: FileEvents,
    keepalive: Duration,
) -> impl Stream<Item = Result<WatchDirResponse, ConnectError>> + Send {
    let response = |event: Event| WatchDirResponse { event: Some(event), ..Default::default() };
    let start = Ok(response(StartEvent::default().into()));
    let rest = futures::stream::unfold(Some(events), move |events| async move {
        let mut events = events?;
        match tokio::time::timeout(keepalive, events.next()).await {
            Err(_elapsed) => Some((Ok(response(KeepAlive::default().into())), Some(events))),
            Ok(None) => None,
            Ok(Some(Ok(file))) => Some((Ok(response(event(file).into())), Some(events))),
            Ok(Some(Err(failure))) => Some((Err(failure.into()), None)),
        }
    });
    futures::stream::once(std::future::ready(start)).chain(rest)
}

fn event(event: FileEvent) -> FilesystemEvent {
    let kind = match event.kind {
        FileEventKind::Create => EventType::EVENT_TYPE_CREATE,
        FileEventKind::Write => EventType::EVENT_TYPE_WRITE,
        FileEventKind::Remove => EventType::EVENT_TYPE_REMOVE,
        FileEventKind::Rename => EventType::EVENT_TYPE_RENAME,
        FileEventKind::Chmod => EventType::EVENT_TYPE_CHMOD,
    };
    let entry = event.entry.map(info);
    FilesystemEvent { name: event.name, r#type: kind.into(), entry: entry.into(), ..Default::default() }
}

fn info(entry: Entry) -> EntryInfo {
    let kind = match entry.kind {
        EntryKind::File => FileType::FILE_TYPE_FILE,
        EntryKind::Directory => FileType::FILE_TYPE_DIRECTORY,
        EntryKind::Symlink => FileType::FILE_TYPE_SYMLINK,
        EntryKind::Other => FileType::FILE_TYPE_UNSPECIFIED,
    };
    let (seconds, nanos) = entry.modified;
    let modified = buffa_types::Timestamp { seconds, nanos: nanos as i32, ..Default::default() };
    EntryInfo {
        name: entry.name,
        r#type: kind.into(),
        path: entry.path,
        size: i64::try_from(entry.size).unwrap_or(i64::MAX),
        mode: entry.mode,
        permissions: entry.permissions,
        owner: entry.owner,
        group: entry.group,
        modified_time: modified.into(),
        is_symlink: entry.symlink_target.is_some(),
        symlink_target: entry.symlink_target,
        metadata: entry.metadata.into_iter().collect(),
        ..Default::default()
    }
}
