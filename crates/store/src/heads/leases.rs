//! Leases: what no head names yet, or what a reader still needs, and the garbage collector shall leave alone.
//!
//! No change of a lease waits for the disk of a machine that has the database for itself: a power cut ends who holds it, too. Where a lease
//! ends in a commit of a head, it is durable with that.

use std::time::Duration;

use sqlx::{AnyConnection, Row, any::AnyRow};

use super::{
    Head, HeadName, Heads, HeadsError, database,
    rows::{now_ms, parse, parsed},
};
use crate::id::{LeaseId, ManifestId, Realm, SegmentId};

/// A promise of the garbage collector to its holder. Released when the work is done; ended by `expire_leases` when its holder
/// has not renewed it in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Names it.
    pub id: LeaseId,
    /// Whose objects it keeps.
    pub realm: Realm,
    /// Who holds it. For people.
    pub holder: String,
    /// When it may be ended, in milliseconds since 1970.
    pub expires_ms: u64,
}

/// Something that a lease keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protected {
    /// A manifest and all it needs. It need not exist yet.
    Manifest(ManifestId),
    /// A segment. It need not exist yet.
    Segment(SegmentId),
}

/// All that the garbage collector must keep of a realm, in one instant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roots {
    /// What heads name. Each must exist, with all it needs.
    pub heads: Vec<ManifestId>,
    /// What leases keep. May not exist yet.
    pub leased: Vec<Protected>,
}

impl Protected {
    fn columns(self) -> (&'static str, String) {
        match self {
            Self::Manifest(id) => ("manifest", id.to_string()),
            Self::Segment(id) => ("segment", id.to_string()),
        }
    }
}

impl Lease {
    fn new(realm: &Realm, holder: &str, ttl: Duration) -> Self {
        Self {
            id: LeaseId::random(),
            realm: realm.clone(),
            // PostgreSQL has no text with a NUL in it.
            holder: holder.replace('\0', ""),
            expires_ms: expiry(ttl),
        }
    }
}

impl Heads {
    /// A new lease of `realm` for `ttl` from now, which keeps nothing yet.
    pub async fn lease(&self, realm: &Realm, holder: &str, ttl: Duration) -> Result<Lease, HeadsError> {
        let lease = Lease::new(realm, holder, ttl);
        let mut transaction = self.database.begin_relaxed().await?;
        insert(&mut transaction, &lease).await?;
        transaction.commit().await.map_err(database("take a lease"))?;
        Ok(lease)
    }

    /// As [`Heads::lease`] and [`Heads::open_under`] in one step. Without a head there is no lease, either.
    pub async fn open_leased(
        &self,
        realm: &Realm,
        name: &HeadName,
        holder: &str,
        ttl: Duration,
    ) -> Result<(Head, Lease), HeadsError> {
        let lease = Lease::new(realm, holder, ttl);
        let mut transaction = self.database.begin_relaxed().await?;
        insert(&mut transaction, &lease).await?;
        let head = open(&mut transaction, &lease, name).await?;
        transaction.commit().await.map_err(database("open a head"))?;
        Ok((head, lease))
    }

    /// Prolongs the lease to `ttl` from now.
    pub async fn renew(&self, lease: &mut Lease, ttl: Duration) -> Result<(), HeadsError> {
        let failed = || database("renew a lease");
        let expires_ms = expiry(ttl);
        let update = sqlx::query("UPDATE leases SET expires_ms = $1 WHERE id = $2").bind(expires_ms as i64);
        let update = update.bind(lease.id.to_string());
        let mut transaction = self.database.begin_relaxed().await?;
        if update.execute(&mut *transaction).await.map_err(failed())?.rows_affected() == 0 {
            return Err(HeadsError::LeaseLost(lease.id));
        }
        transaction.commit().await.map_err(failed())?;
        lease.expires_ms = expires_ms;
        Ok(())
    }

    /// Lets the lease keep `items`, which its holder is about to write. Must return before the first byte of them is written. For what
    /// is there already, use [`Heads::open_under`]: it cannot be gone when the lease gets it.
    pub async fn protect(&self, lease: &Lease, items: &[Protected]) -> Result<(), HeadsError> {
        let mut transaction = self.database.begin_relaxed().await?;
        hold(&mut transaction, lease.id).await?;
        for item in items {
            keep(&mut transaction, lease.id, *item).await?;
        }
        transaction.commit().await.map_err(database("add to a lease"))
    }

    /// Reads a head and lets the lease keep its manifest, in one step: nothing can collect it in between.
    pub async fn open_under(&self, lease: &Lease, name: &HeadName) -> Result<Head, HeadsError> {
        let mut transaction = self.database.begin_relaxed().await?;
        hold(&mut transaction, lease.id).await?;
        let head = open(&mut transaction, lease, name).await?;
        transaction.commit().await.map_err(database("open a head"))?;
        Ok(head)
    }

    /// Ends the lease. What it kept and no head names is garbage. A lease that has ended already is released, too.
    pub async fn release(&self, lease: Lease) -> Result<(), HeadsError> {
        let mut transaction = self.database.begin_relaxed().await?;
        end(&mut transaction, lease.id, &lease.realm).await?;
        transaction.commit().await.map_err(database("release a lease"))
    }

    /// All leases of a realm.
    pub async fn leases(&self, realm: &Realm) -> Result<Vec<Lease>, HeadsError> {
        let select = "SELECT id, holder, expires_ms FROM leases WHERE realm = $1 ORDER BY id";
        let rows = sqlx::query(select).bind(realm.as_str()).fetch_all(self.database.pool()).await;
        rows.map_err(database("list leases"))?.iter().map(|row| lease(realm, row)).collect()
    }

    /// Ends the leases of a realm whose time is over by this machine's clock, and says how many.
    pub async fn expire_leases(&self, realm: &Realm) -> Result<u64, HeadsError> {
        let failed = || database("end expired leases");
        let mut transaction = self.database.begin_relaxed().await?;
        let delete = "DELETE FROM leases WHERE realm = $1 AND expires_ms < $2 RETURNING id";
        let rows = sqlx::query(delete).bind(realm.as_str()).bind(now_ms()).fetch_all(&mut *transaction).await;
        let rows = rows.map_err(failed())?;
        for row in &rows {
            let id: String = row.try_get(0).map_err(failed())?;
            let delete = sqlx::query("DELETE FROM lease_roots WHERE lease = $1").bind(id);
            delete.execute(&mut *transaction).await.map_err(failed())?;
        }
        transaction.commit().await.map_err(failed())?;
        Ok(rows.len() as u64)
    }

    /// What heads and leases of a realm keep. One statement, so one instant: a commit moves things from a lease to a head, and
    /// they are seen in one or the other.
    pub async fn roots(&self, realm: &Realm) -> Result<Roots, HeadsError> {
        let failed = || database("read the roots");
        let select = "SELECT 'head' AS kind, manifest AS root FROM heads WHERE realm = $1
            UNION ALL SELECT lease_roots.kind, lease_roots.root FROM lease_roots
            JOIN leases ON leases.id = lease_roots.lease WHERE leases.realm = $2";
        let select = sqlx::query(select).bind(realm.as_str()).bind(realm.as_str());
        let mut roots = Roots::default();
        for row in select.fetch_all(self.database.pool()).await.map_err(failed())? {
            let kind: String = row.try_get(0).map_err(failed())?;
            let root: String = row.try_get(1).map_err(failed())?;
            match kind.as_str() {
                "head" => roots.heads.push(parsed(root, "manifest id")?),
                "manifest" => roots.leased.push(Protected::Manifest(parsed(root, "manifest id")?)),
                "segment" => roots.leased.push(Protected::Segment(parsed(root, "segment id")?)),
                _ => return Err(HeadsError::Damaged { expected: "kind of root", value: kind }),
            }
        }
        Ok(roots)
    }
}

async fn insert(transaction: &mut AnyConnection, lease: &Lease) -> Result<(), HeadsError> {
    let insert = "INSERT INTO leases (id, realm, holder, expires_ms) VALUES ($1, $2, $3, $4)";
    let insert = sqlx::query(insert).bind(lease.id.to_string()).bind(lease.realm.as_str()).bind(&*lease.holder);
    insert.bind(lease.expires_ms as i64).execute(transaction).await.map_err(database("take a lease"))?;
    Ok(())
}

/// Lets a lease that the transaction has locked, or made, keep what a head names.
async fn open(transaction: &mut AnyConnection, lease: &Lease, name: &HeadName) -> Result<Head, HeadsError> {
    // An update that changes nothing: it locks the row in both databases, so that no commit moves the head before the lease has it.
    let lock = "UPDATE heads SET generation = generation WHERE realm = $1 AND name = $2
        RETURNING name, manifest, generation, updated_ms, note";
    let lock = sqlx::query(lock).bind(lease.realm.as_str()).bind(name.as_str());
    let rows = lock.fetch_all(&mut *transaction).await.map_err(database("open a head"))?;
    let Some(row) = rows.first() else {
        return Err(HeadsError::NotFound { realm: lease.realm.clone(), name: name.clone() });
    };
    let head = parse(&lease.realm, row)?;
    keep(transaction, lease.id, Protected::Manifest(head.manifest)).await?;
    Ok(head)
}

/// Locks the lease until the transaction ends. Always the first lock of a transaction, before that of a head: no deadlock.
async fn hold(transaction: &mut AnyConnection, lease: LeaseId) -> Result<(), HeadsError> {
    let update = sqlx::query("UPDATE leases SET holder = holder WHERE id = $1").bind(lease.to_string());
    let locked = update.execute(transaction).await.map_err(database("lock a lease"))?;
    if locked.rows_affected() == 0 { Err(HeadsError::LeaseLost(lease)) } else { Ok(()) }
}

async fn keep(transaction: &mut AnyConnection, lease: LeaseId, item: Protected) -> Result<(), HeadsError> {
    let (kind, root) = item.columns();
    let insert = "INSERT INTO lease_roots (lease, kind, root) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
    let insert = sqlx::query(insert).bind(lease.to_string()).bind(kind).bind(root);
    insert.execute(transaction).await.map_err(database("add to a lease"))?;
    Ok(())
}

/// Removes the lease with all it keeps; false if the realm has no such lease.
pub(super) async fn end(transaction: &mut AnyConnection, lease: LeaseId, realm: &Realm) -> Result<bool, HeadsError> {
    let failed = || database("end a lease");
    let delete = "DELETE FROM leases WHERE id = $1 AND realm = $2";
    let delete = sqlx::query(delete).bind(lease.to_string()).bind(realm.as_str());
    if delete.execute(&mut *transaction).await.map_err(failed())?.rows_affected() == 0 {
        return Ok(false);
    }
    let roots = sqlx::query("DELETE FROM lease_roots WHERE lease = $1").bind(lease.to_string());
    roots.execute(transaction).await.map_err(failed())?;
    Ok(true)
}

/// As `end`, for a lease that a head takes `manifest` over from: refused if the lease does not keep it.
pub(super) async fn hand_over(
    transaction: &mut AnyConnection,
    lease: &Lease,
    realm: &Realm,
    manifest: ManifestId,
) -> Result<bool, HeadsError> {
    let (kind, root) = Protected::Manifest(manifest).columns();
    let select = sqlx::query("SELECT root FROM lease_roots WHERE lease = $1 AND kind = $2 AND root = $3");
    let select = select.bind(lease.id.to_string()).bind(kind).bind(root);
    let kept = select.fetch_all(&mut *transaction).await.map_err(database("look at a lease"))?;
    let ended = end(transaction, lease.id, realm).await?;
    if ended && kept.is_empty() {
        return Err(HeadsError::Unprotected { lease: lease.id, manifest });
    }
    Ok(ended)
}

fn lease(realm: &Realm, row: &AnyRow) -> Result<Lease, HeadsError> {
    let failed = || database("read a lease's row");
    let id: String = row.try_get(0).map_err(failed())?;
    let expires_ms: i64 = row.try_get(2).map_err(failed())?;
    let holder = row.try_get(1).map_err(failed())?;
    Ok(Lease { id: parsed(id, "lease id")?, realm: realm.clone(), holder, expires_ms: expires_ms.unsigned_abs() })
}

/// Milliseconds since 1970, `ttl` from now.
fn expiry(ttl: Duration) -> u64 {
    let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
    now_ms().saturating_add(ttl_ms).unsigned_abs()
}
