//! Starts: room for a sandbox is reserved before a node starts it, and confirmed when the node has said its id.

use std::{fmt, str::FromStr, time::Duration};

use base::{
    id::{ReservationId, SandboxId, TeamId, hex},
    limits::{IDEMPOTENCY_KEPT, IDEMPOTENCY_KEY_BYTES_MAX, RESERVATION_MAX, SANDBOX_TIMEOUT_S_MAX},
};
use db::{Fields, failed, retry};
use ring::digest::{SHA256, digest};
use sqlx::AnyConnection;

use super::{NewSandbox, Sandbox, Sandboxes, State, VolumeMount, forks, record};
use crate::{ControlError, EventKind, Time, events, quota, time::sql};

/// How often a request looks whether the one with the same idempotency key is done.
const LOOK: Duration = Duration::from_millis(50);

/// A client's name for one request, so that it can repeat the request without making a second sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for IdempotencyKey {
    type Err = ControlError;

    fn from_str(text: &str) -> Result<Self, ControlError> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&text.len()) && text.bytes().all(allowed) {
            return Ok(Self(text.to_owned()));
        }
        let rule = format!("use 1 to {IDEMPOTENCY_KEY_BYTES_MAX} of a-z, 0-9 and '-'");
        Err(ControlError::invalid("the idempotency key", rule))
    }
}

/// A sandbox that was started in reserved room, as its node notes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// The sandbox.
    pub id: SandboxId,
    /// The batch of the reservation.
    pub batch: String,
}

/// Room for one sandbox. It counts against the quota until it is confirmed or abandoned, or ten minutes are over.
#[derive(Debug)]
#[must_use = "confirm or abandon it"]
pub struct Reservation {
    id: ReservationId,
    batch: String,
    team: TeamId,
    spec: NewSandbox,
}

impl Reservation {
    /// The sandbox has these volumes instead: copies get their own.
    pub fn set_volume_mounts(&mut self, mounts: Vec<VolumeMount>) {
        self.spec.volume_mounts = mounts;
    }

    /// Whose it is.
    pub fn team(&self) -> &TeamId {
        &self.team
    }

    /// What was asked for.
    pub fn spec(&self) -> &NewSandbox {
        &self.spec
    }

    /// What the node has to note with the sandbox that it starts here: so it is found if this server dies before the
    /// sandbox is confirmed.
    pub fn batch(&self) -> &str {
        &self.batch
    }
}

/// The answer to a request for a sandbox.
#[derive(Debug)]
pub enum Reserved {
    /// Start one.
    New(Reservation),
    /// An earlier request with the same idempotency key has made it.
    Existing(Sandbox),
}

/// What the row of an idempotency key says.
enum Earlier {
    None,
    Made(SandboxId),
}

impl Sandboxes<'_> {
    /// Reserves room for a sandbox. If a request with the same idempotency key is under way, it is waited for, up to
    /// `wait`. Then the answer is a conflict.
    pub async fn reserve(
        &self,
        team: &TeamId,
        spec: &NewSandbox,
        key: Option<&IdempotencyKey>,
        wait: Duration,
    ) -> Result<Reserved, ControlError> {
        record::check(spec)?;
        check_timeout(spec.lifetime.timeout)?;
        let mut left = wait;
        loop {
            match retry(|| self.try_reserve(team, spec, key, None)).await {
                Err(ControlError::KeyInUse { .. }) if left > Duration::ZERO => {}
                other => return other,
            }
            let pause = LOOK.min(left);
            tokio::time::sleep(pause).await;
            left -= pause;
        }
    }

    /// Reserves room for a sandbox that is started together with that of another reservation.
    pub async fn reserve_beside(&self, first: &Reservation) -> Result<Reserved, ControlError> {
        retry(|| self.try_reserve(&first.team, &first.spec, None, Some(first))).await
    }

    async fn try_reserve(
        &self,
        team: &TeamId,
        spec: &NewSandbox,
        key: Option<&IdempotencyKey>,
        beside: Option<&Reservation>,
    ) -> Result<Reserved, ControlError> {
        let (now, failed) = (self.0.clock.now(), || failed("reserve room for a sandbox"));
        let mut transaction = self.0.db.begin_relaxed().await?;
        let quota = quota::lock_team(self.0, &mut transaction, team).await?;
        let earlier = match key {
            Some(key) => earlier(&mut transaction, team, key, &fingerprint(spec)?, now).await?,
            None => Earlier::None,
        };
        if let Earlier::Made(id) = earlier {
            let found = record::of_team(&mut transaction, team, &id, (now, "")).await?;
            return Ok(Reserved::Existing(found));
        }
        quota::check_room(&mut transaction, team, &quota, &spec.size, now).await?;
        let id = ReservationId::random();
        let batch = beside.map_or_else(|| id.to_string(), |first| first.batch.clone());
        let insert = "INSERT INTO reservations (id, team, cpus, memory_mb, expires_ms, server, batch)
            VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let insert = sqlx::query(insert).bind(id.as_str()).bind(team.as_str()).bind(sql(spec.size.cpus));
        let insert = insert.bind(sql(spec.size.memory_mb)).bind((now + RESERVATION_MAX).sql());
        let insert = insert.bind(&*self.0.server).bind(&*batch);
        insert.execute(&mut *transaction).await.map_err(failed())?;
        if let Some(key) = key {
            remember(&mut transaction, team, key, (&fingerprint(spec)?, &id), now).await?;
        }
        transaction.commit().await.map_err(failed())?;
        Ok(Reserved::New(Reservation { id, batch, team: team.clone(), spec: spec.clone() }))
    }

    /// Says that a node has started the sandbox. Its time begins now.
    pub async fn confirm(&self, reservation: &Reservation, id: &SandboxId) -> Result<Sandbox, ControlError> {
        self.confirm_copy(reservation, id, None).await
    }

    /// As [`Sandboxes::confirm`], of a copy of `parent`.
    pub async fn confirm_copy(
        &self,
        reservation: &Reservation,
        id: &SandboxId,
        parent: Option<&SandboxId>,
    ) -> Result<Sandbox, ControlError> {
        let now = self.0.clock.now();
        let sandbox = Sandbox {
            id: id.clone(),
            team: reservation.team.clone(),
            spec: reservation.spec.clone(),
            state: State::Running,
            unresponsive: false,
            doing: None,
            started: now,
            end: now + reservation.spec.lifetime.timeout,
            refusals: 0,
            server: self.0.server.clone(),
            token_generation: 1,
        };
        retry(|| self.try_confirm(reservation, &sandbox, parent)).await?;
        self.0.wake.notify_one();
        Ok(sandbox)
    }

    async fn try_confirm(
        &self,
        reservation: &Reservation,
        sandbox: &Sandbox,
        parent: Option<&SandboxId>,
    ) -> Result<(), ControlError> {
        let failed = || failed("add a sandbox");
        let mut transaction = self.0.db.begin_relaxed().await?;
        end_reservation(&mut transaction, reservation).await?;
        record::insert(&mut transaction, sandbox).await?;
        if let Some(parent) = parent {
            forks::add(&mut transaction, sandbox, parent).await?;
        }
        let owner = (&sandbox.team, &sandbox.id);
        events::add(&mut transaction, owner, sandbox.started, EventKind::Created, "").await?;
        let update = sqlx::query("UPDATE idempotency_keys SET sandbox = $1 WHERE reservation = $2");
        let update = update.bind(sandbox.id.as_str()).bind(reservation.id.as_str());
        update.execute(&mut *transaction).await.map_err(failed())?;
        let update = "UPDATE templates SET spawn_count = spawn_count + 1, spawned_ms = $1 WHERE id = $2";
        let update = sqlx::query(update).bind(sandbox.started.sql()).bind(sandbox.spec.template.as_str());
        update.execute(&mut *transaction).await.map_err(failed())?;
        Ok(transaction.commit().await.map_err(failed())?)
    }

    /// Those of these sandboxes of this server's node that have no row: the server died before it confirmed them. For
    /// a server that starts, before it takes requests.
    pub async fn unconfirmed(&self, started: Vec<Started>) -> Result<Vec<SandboxId>, ControlError> {
        let failed = || failed("look for starts that were broken off");
        let mut found = Vec::new();
        for Started { id, batch } in started {
            let select = "SELECT COUNT(*) AS reserved FROM reservations WHERE server = $1 AND batch = $2
                AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE id = $3)";
            let select = sqlx::query(select).bind(&*self.0.server).bind(batch).bind(id.as_str());
            let row = select.fetch_one(self.0.db.pool()).await.map_err(failed())?;
            if row.count("reserved")? > 0 {
                found.push(id);
            }
        }
        Ok(found)
    }

    /// Drops the reservations of an earlier process of this server. Their idempotency keys are free again.
    pub async fn drop_own_reservations(&self) -> Result<(), ControlError> {
        let failed = || failed("drop old reservations");
        let attempt = || async {
            let mut transaction = self.0.db.begin_relaxed().await?;
            let delete = sqlx::query("DELETE FROM reservations WHERE server = $1").bind(&*self.0.server);
            delete.execute(&mut *transaction).await.map_err(failed())?;
            Ok(transaction.commit().await.map_err(failed())?)
        };
        retry(attempt).await
    }

    /// Says that the start failed. A request with the same idempotency key then starts anew.
    pub async fn abandon(&self, reservation: &Reservation) -> Result<(), ControlError> {
        let failed = || failed("abandon a reservation");
        let attempt = || async {
            let mut transaction = self.0.db.begin_relaxed().await?;
            end_reservation(&mut transaction, reservation).await?;
            let delete = sqlx::query("DELETE FROM idempotency_keys WHERE reservation = $1 AND sandbox = ''");
            let delete = delete.bind(reservation.id.as_str());
            delete.execute(&mut *transaction).await.map_err(failed())?;
            Ok(transaction.commit().await.map_err(failed())?)
        };
        retry(attempt).await
    }
}

async fn end_reservation(transaction: &mut AnyConnection, reservation: &Reservation) -> Result<(), ControlError> {
    let delete = sqlx::query("DELETE FROM reservations WHERE id = $1").bind(reservation.id.as_str());
    delete.execute(transaction).await.map_err(failed("end a reservation"))?;
    Ok(())
}

/// What an earlier request with this key did. The transaction has locked the team.
async fn earlier(
    transaction: &mut AnyConnection,
    team: &TeamId,
    key: &IdempotencyKey,
    request: &str,
    now: Time,
) -> Result<Earlier, ControlError> {
    let select = "SELECT keys.request AS request, keys.sandbox AS sandbox, keys.created_ms AS created_ms,
        COALESCE(reservations.expires_ms, 0) AS expires_ms FROM idempotency_keys AS keys
        LEFT JOIN reservations ON reservations.id = keys.reservation WHERE keys.team = $1 AND keys.name = $2";
    let select = sqlx::query(select).bind(team.as_str()).bind(&*key.0);
    let row = select.fetch_optional(&mut *transaction).await.map_err(failed("look for an earlier request"))?;
    let Some(row) = row else { return Ok(Earlier::None) };
    let (sandbox, expires) = (row.text("sandbox")?, Time::from_ms(row.count("expires_ms")?));
    let old = now.since(Time::from_ms(row.count("created_ms")?)) >= IDEMPOTENCY_KEPT;
    let died = sandbox.is_empty() && expires <= now;
    if old || died {
        let delete = sqlx::query("DELETE FROM idempotency_keys WHERE team = $1 AND name = $2").bind(team.as_str());
        delete.bind(&*key.0).execute(transaction).await.map_err(failed("forget an old request"))?;
        return Ok(Earlier::None);
    }
    if row.text("request")? != request {
        return Err(ControlError::KeyReused { key: key.to_string() });
    }
    if sandbox.is_empty() {
        return Err(ControlError::KeyInUse { key: key.to_string() });
    }
    Ok(Earlier::Made(row.parsed("sandbox", "sandbox id")?))
}

/// Notes a key.
async fn remember(
    transaction: &mut AnyConnection,
    team: &TeamId,
    key: &IdempotencyKey,
    (request, reservation): (&str, &ReservationId),
    now: Time,
) -> Result<(), ControlError> {
    let insert = "INSERT INTO idempotency_keys (team, name, request, reservation, sandbox, created_ms)
        VALUES ($1, $2, $3, $4, '', $5)";
    let insert = sqlx::query(insert).bind(team.as_str()).bind(&*key.0).bind(request).bind(reservation.as_str());
    insert.bind(now.sql()).execute(transaction).await.map_err(failed("note an idempotency key"))?;
    Ok(())
}

/// The SHA-256 of a request. Without the build: a tag may have moved since the first attempt.
fn fingerprint(spec: &NewSandbox) -> Result<String, ControlError> {
    let lifetime = spec.lifetime;
    let (timeout, on_timeout) = (lifetime.timeout.as_millis(), record::on_timeout(lifetime.on_timeout));
    let text = record::text(&(
        (&spec.template, &spec.alias, &spec.metadata, &spec.env_vars),
        (&spec.network, &spec.volume_mounts, spec.allow_internet),
        (spec.size.cpus, spec.size.memory_mb, spec.size.disk_mb),
        (timeout, on_timeout, lifetime.auto_resume),
    ))?;
    Ok(hex(digest(&SHA256, text.as_bytes()).as_ref()))
}

/// Refuses a time that only a mistake asks for.
pub(super) fn check_timeout(timeout: Duration) -> Result<(), ControlError> {
    if timeout <= Duration::from_secs(SANDBOX_TIMEOUT_S_MAX) {
        return Ok(());
    }
    Err(ControlError::invalid("the timeout", format!("use at most {SANDBOX_TIMEOUT_S_MAX} seconds from now")))
}
