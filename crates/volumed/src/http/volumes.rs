//! Requests on volumes as a whole.

use std::sync::Arc;

use api::volume::{
    ForkVolumeRequest, KeptState, RemovedVolume, RestoreRequest, Restored, Snapshot, SnapshotEnd, SnapshotRequest,
    Volume, VolumeDurability, VolumeSpec,
};
use axum::{
    Json,
    extract::{FromRequest, Path, State},
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use base::id::{SnapshotName, VolumeName};
use bytes::Bytes;
use http_body_util::channel::Channel;
use serde::de::DeserializeOwned;
use tokio::{sync::oneshot, task::JoinError, time::timeout};
use volume::{
    Durability, Options, Origin, VolumeError,
    limits::{BYTES_MAX_LEAST, INODES_MAX_LEAST},
};

use super::{
    Shared, answer,
    errors::{detail, status},
    finish,
    query::{Query, Target, parse},
};
use crate::{
    failure::{Failure, Result},
    limits::INSPECT_MAX,
    message::Source,
    worker::{
        opened::Opened,
        table::{Purpose, Table},
    },
};

/// A JSON body whose mistakes are answered like any other failure.
pub(super) struct Body<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: axum::extract::Request, state: &S) -> Result<Self> {
        match Json::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(Failure::invalid(rejection.body_text())),
        }
    }
}

/// Uid and gid of programs in sandboxes.
const OWNER: u32 = 1000;

pub(super) async fn create(State(table): Shared, Body(spec): Body<VolumeSpec>) -> Result<Json<Volume>> {
    // `GET /v1/volumes/usage` is something else.
    if spec.name.as_str() == "usage" {
        return Err(Failure::invalid("a volume cannot be called usage"));
    }
    if spec.mode.is_some_and(|mode| mode > 0o7777) {
        return Err(Failure::invalid("a mode has twelve bits"));
    }
    let quotas = [("bytes", spec.bytes_max, BYTES_MAX_LEAST), ("inodes", spec.inodes_max, INODES_MAX_LEAST)];
    for (what, max, least) in quotas {
        if let Some(max) = max.filter(|max| *max < least) {
            return Err(Failure::invalid(format!(
                "a volume of at most {max} {what} holds no file: {least} is the least"
            )));
        }
    }
    let defaults = Options::default();
    let options = Options {
        bytes_max: spec.bytes_max.unwrap_or(defaults.bytes_max),
        inodes_max: spec.inodes_max.unwrap_or(defaults.inodes_max),
        mode: spec.mode.unwrap_or(defaults.mode),
        uid: spec.uid.unwrap_or(OWNER),
        gid: spec.gid.unwrap_or(OWNER),
        durability: match spec.durability {
            VolumeDurability::Local => Durability::Local,
            VolumeDurability::Object => Durability::Object,
        },
    };
    let made = spec.name.clone();
    let making = table.makings.begin(Source::current(made.clone()))?;
    finish(async move {
        let _making = making;
        whole(&table, move |table| Ok(table.volumes.create(made.as_str(), &options)?)).await?;
        describe(&table, spec.name).await
    })
    .await
    .map(Json)
}

/// With `removed=true` those that are not there any more and have snapshots.
pub(super) async fn list(State(table): Shared, query: Query) -> Result<Response> {
    if query.flag("removed")? {
        return removed(&table).await.map(|volumes| Json(volumes).into_response());
    }
    present(&table).await.map(|volumes| Json(volumes).into_response())
}

async fn removed(table: &Arc<Table>) -> Result<Vec<RemovedVolume>> {
    let removed = whole(table, |table| Ok(table.volumes.removed()?)).await?;
    removed.into_iter().map(|(name, snapshots)| Ok(RemovedVolume { name: parse(&name)?, snapshots })).collect()
}

pub(super) async fn present(table: &Arc<Table>) -> Result<Vec<Volume>> {
    let names = whole(table, |table| Ok(table.volumes.list(None)?)).await?;
    let described = names.into_iter().map(|name| {
        let table = table.clone();
        tokio::spawn(async move { describe(&table, parse(&name)?).await })
    });
    let mut volumes = Vec::new();
    for described in described.collect::<Vec<_>>() {
        match described.await.map_err(|_| Failure::Interrupted)? {
            Ok(volume) => volumes.push(volume),
            // Removed since.
            Err(Failure::Volume(volume::VolumeError::NotFound { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(volumes)
}

pub(super) async fn inspect(State(table): Shared, Path(name): Path<String>) -> Result<Json<Volume>> {
    describe(&table, parse(&name)?).await.map(Json)
}

pub(super) async fn remove(State(table): Shared, target: Target) -> Result<Json<()>> {
    target.is_volume()?;
    remove_source(table, target.source, target.query.flag("for_good")?).await.map(Json)
}

/// With `for_good=true` also what a request makes that is under way, or was sent before and not read yet.
async fn remove_source(table: Arc<Table>, source: Source, for_good: bool) -> Result<()> {
    if !for_good {
        return table.remove(source).await;
    }
    finish(async move {
        table.makings.prevent(&source).await;
        let removed = table.remove(source.clone()).await;
        match &removed {
            // What is not there may be asked for yet; of what could not be looked for that is not known.
            Err(Failure::Volume(VolumeError::NotFound { .. })) => {}
            Err(error) if error.may_pass() => {}
            Ok(()) | Err(_) => table.makings.allow(&source),
        }
        removed
    })
    .await
}

pub(super) async fn log(State(table): Shared, Path(name): Path<String>) -> Result<Json<Vec<Snapshot>>> {
    let name: VolumeName = parse(&name)?;
    let log = move |table: &Table| {
        let log = table.volumes.log(name.as_str())?;
        if log.is_empty() {
            // Of a volume that is not there, too, it is empty.
            table.volumes.inspect(&Origin::Volume(name.to_string()))?;
        }
        log.into_iter().map(snapshot_info).collect()
    };
    whole(&table, log).await.map(Json)
}

pub(super) async fn snapshot(
    State(table): Shared,
    Path(name): Path<String>,
    Body(request): Body<SnapshotRequest>,
) -> Result<Response> {
    let name: VolumeName = parse(&name)?;
    let early = request.early;
    let (sender, fixed) = oneshot::channel();
    let mut taken = tokio::spawn(take(table, name, request, sender));
    let ended = |taken: std::result::Result<Result<Snapshot>, JoinError>| taken.map_err(|_| Failure::Interrupted)?;
    if !early {
        return ended(taken.await).map(|snapshot| Json(snapshot).into_response());
    }
    // It may fail before, and then say so like any other request.
    tokio::select! {
        biased;
        Ok(()) = fixed => {}
        result = &mut taken => return ended(result).map(|snapshot| Json(SnapshotEnd::Done(snapshot)).into_response()),
    }
    let (mut sender, body) = Channel::<Bytes, serde_json::Error>::new(1);
    tokio::spawn(async move {
        let end = match ended(taken.await) {
            Ok(snapshot) => SnapshotEnd::Done(snapshot),
            Err(error) => SnapshotEnd::Failed { status: status(&error).as_u16(), error: detail(&error) },
        };
        match serde_json::to_vec(&end) {
            // Whoever asked may have gone.
            Ok(end) => drop(sender.send_data(end.into()).await),
            Err(error) => sender.abort(error),
        }
    });
    Ok(([(CONTENT_TYPE, "application/json")], axum::body::Body::new(body)).into_response())
}

/// Says when it is settled what will be in the snapshot.
async fn take(
    table: Arc<Table>,
    name: VolumeName,
    request: SnapshotRequest,
    fixed: oneshot::Sender<()>,
) -> Result<Snapshot> {
    let snapshot = request.snapshot.unwrap_or_else(SnapshotName::random);
    let note = request.note.unwrap_or_default();
    let source = Source::current(name.clone());
    let _making = table.makings.begin(Source::new(name.clone(), Some(snapshot.clone())))?;
    match table.open_unless_elsewhere(&source, Purpose::Name).await? {
        Some(opened) => {
            opened.meter.request();
            // Whoever waited may have gone.
            let fixed = || {
                let _ = fixed.send(());
            };
            let take = move || snapshot_info(opened.volume().snapshot_telling(snapshot.as_str(), &note, fixed)?);
            table.work.run_whole(take).await
        }
        None => {
            let take =
                move |table: &Table| snapshot_info(table.volumes.snapshot(name.as_str(), snapshot.as_str(), &note)?);
            whole(&table, take).await
        }
    }
}

pub(super) async fn remove_snapshot(
    State(table): Shared,
    Path((name, snapshot)): Path<(String, String)>,
    target: Target,
) -> Result<Json<()>> {
    let source = Source::new(parse(&name)?, Some(parse(&snapshot)?));
    remove_source(table, source, target.query.flag("for_good")?).await.map(Json)
}

pub(super) async fn restore(
    State(table): Shared,
    Path(name): Path<String>,
    Body(RestoreRequest { snapshot }): Body<RestoreRequest>,
) -> Result<Json<Restored>> {
    let restore = move |opened: &Opened| {
        let before = SnapshotName::random();
        let restored = opened.volume().restore(snapshot.as_str(), before.as_str());
        match restored {
            Ok(forget) => opened.forget_restored(&forget),
            Err(error) => {
                opened.forget_all();
                return Err(error.into());
            }
        }
        Ok(Restored { before })
    };
    on_open(table, parse(&name)?, restore).await.map(Json)
}

pub(super) async fn fork(
    State(table): Shared,
    Path(name): Path<String>,
    Body(request): Body<ForkVolumeRequest>,
) -> Result<Json<Volume>> {
    let (name, to): (VolumeName, _) = (parse(&name)?, request.name.clone());
    let making = table.makings.begin(Source::current(to.clone()))?;
    finish(async move {
        let _making = making;
        if let Some(KeptState { by, manifest }) = request.state {
            if request.snapshot.is_some() {
                return Err(Failure::invalid(
                    "a volume begins with a snapshot or with a state that is kept, not with both",
                ));
            }
            let (by, manifest) = (parse(&by)?, parse(&manifest)?);
            let fork = move |table: &Table| Ok(table.volumes.fork_included(&by, manifest, to.as_str())?);
            whole(&table, fork).await?;
            return describe(&table, request.name).await;
        }
        let origin = match request.snapshot {
            Some(snapshot) => Origin::Snapshot { volume: name.to_string(), snapshot: snapshot.to_string() },
            None => {
                if let Some(opened) = table.open_unless_elsewhere(&Source::current(name.clone()), Purpose::Name).await?
                {
                    opened.meter.request();
                    table.work.run_whole(move || Ok(opened.volume().commit()?)).await?;
                }
                Origin::Volume(name.to_string())
            }
        };
        whole(&table, move |table| Ok(table.volumes.fork(&origin, to.as_str())?)).await?;
        describe(&table, request.name).await
    })
    .await
    .map(Json)
}

fn snapshot_info(volume::Snapshot { name, created_ms, note }: volume::Snapshot) -> Result<Snapshot> {
    let note = (!note.is_empty()).then_some(note);
    Ok(Snapshot { snapshot: parse(&name)?, created_ms, note })
}

/// Does something with the store.
async fn whole<T: Send + 'static>(
    table: &Arc<Table>,
    work: impl FnOnce(&Table) -> Result<T> + Send + 'static,
) -> Result<T> {
    let ours = table.clone();
    table.work.run_whole(move || work(&ours)).await
}

/// Does something with a volume that is open then, to its end.
async fn on_open<T: Send + 'static>(
    table: Arc<Table>,
    volume: VolumeName,
    work: impl FnOnce(&Opened) -> Result<T> + Send + 'static,
) -> Result<T> {
    finish(async move {
        let opened = table.open(&Source::current(volume)).await?;
        opened.meter.request();
        table.work.run_whole(move || work(&opened)).await
    })
    .await
}

/// What is known of a volume, also while the store is away, if it is open.
pub(super) async fn describe(table: &Arc<Table>, name: VolumeName) -> Result<Volume> {
    let opened = table.opened(&Source::current(name.clone())).or_else(|| table.opened(&Source::followed(name.clone())));
    let origin = Origin::Volume(name.to_string());
    let about = whole(table, move |table| Ok(table.volumes.inspect(&origin)?));
    let about = match &opened {
        // Whether there is such a volume is not known otherwise.
        None => Some(about.await?),
        Some(_) => match timeout(INSPECT_MAX, about).await {
            Ok(Err(error)) if !error.may_pass() => return Err(error),
            about => about.ok().and_then(Result::ok),
        },
    };
    let current = opened.as_ref().and_then(|opened| opened.engine().usage().ok());
    let traffic = opened.as_ref().map(|opened| opened.engine().traffic()).unwrap_or_default();
    let usage = current.or(about.as_ref().map(|about| about.usage)).map(answer::usage);
    Ok(Volume {
        created_ms: about.as_ref().map(|about| answer::millis(about.created)),
        committed_ms: about.as_ref().map(|about| about.committed_ms),
        generation: about.as_ref().map(|about| about.generation),
        durability: about.map(|about| answer::durability(about.durability)),
        usage,
        open: opened.map(|opened| opened.describe(table.link.holders(&opened.source))),
        meter: table.meters.of(&name).wire(traffic),
        name,
    })
}
