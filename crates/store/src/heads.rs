//! Heads: the only thing in the store that changes. A head is (realm, name) -> manifest, generation, in SQLite or PostgreSQL.
//!
//! ```text
//!   create ──► generation g ──commit──► generation g, next manifest ──commit──► ...
//!                   │
//!               take_over ──► generation g' > g: whoever still commits under g gets `Fenced` and changes nothing
//! ```
//!
//! Each operation is one transaction. A `commit` is a compare-and-swap of generation and manifest: of any number of writers exactly
//! one wins, the others learn why not. A generation is never given twice in a database, not even to a name that was removed and
//! made again, so what a stale writer holds is never right again.
//!
//! A [`Lease`] keeps what no head names yet from being collected. Leases expire by a clock, and that clock may be wrong: a commit
//! names its lease and fails with `LeaseLost` if the lease is gone, so a lease that ended too early costs work, never data.

mod database;
mod leases;
mod peers;
mod rows;

use std::{fmt, path::Path, str::FromStr};

use db::{Database, DbError};
use sqlx::{Any, AnyConnection, Row, any::AnyArguments, query::Query};

pub use self::leases::{Lease, Protected, Roots};
pub use self::peers::PeerEntry;
use self::{
    database::{SCHEMA, database},
    rows::{head, now_ms, parse, parsed, signed},
};
use crate::{
    id::{LeaseId, ManifestId, Realm},
    limits,
};

/// Why an operation on heads or leases failed. Nothing has changed then, except perhaps after `Database`: a `commit` that is repeated
/// finds out.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // of the fields: the messages say it
pub enum HeadsError {
    /// The name has no head (any more).
    #[error("there is no {realm}/{name}")]
    NotFound { realm: Realm, name: HeadName },
    /// The name has a head already.
    #[error("{realm}/{name} exists already")]
    Exists { realm: Realm, name: HeadName },
    /// Somebody took the name over. What this writer has written since is garbage.
    #[error("{realm}/{name} was taken over: generation {held} is fenced off by {current}")]
    Fenced { realm: Realm, name: HeadName, held: u64, current: u64 },
    /// Another writer of the same generation committed first.
    #[error("{realm}/{name} has moved to manifest {found}, expected {expected}")]
    Moved { realm: Realm, name: HeadName, expected: ManifestId, found: ManifestId },
    /// The lease has expired or was released: what it kept may be collected already.
    #[error("lease {0} has ended, and what it kept may be gone: begin again with a new one")]
    LeaseLost(LeaseId),
    /// The garbage collector could have taken the manifest already: a bug of the writer's.
    #[error("lease {lease} does not keep manifest {manifest}: protect it before it is written")]
    Unprotected { lease: LeaseId, manifest: ManifestId },
    /// The text is no name of a head.
    #[error(
        "{text:?} is not a head's name: use 1 to 255 of a-z, A-Z, 0-9, '-', '_', '.' and '/', beginning with a letter or digit"
    )]
    Name { text: String },
    /// What shall be noted with a head is too long.
    #[error("a note of {bytes} bytes is too long for a head, which takes {bytes_max}")]
    Note { bytes: usize, bytes_max: usize },
    /// A row does not hold what this program writes.
    #[error("the database holds {value:?} where a {expected} should be")]
    Damaged { expected: &'static str, value: String },
    /// The database refused, cannot be reached, or is of another program.
    #[error(transparent)]
    Database(#[from] DbError),
}

/// A head's name within its realm, such as `checkpoints/geo`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HeadName(String);

impl HeadName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HeadName {
    type Err = HeadsError;

    fn from_str(text: &str) -> Result<Self, HeadsError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/');
        let good = text.len() <= limits::HEAD_NAME_BYTES_MAX
            && text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
            && text.bytes().all(allowed);
        if good {
            return Ok(Self(text.to_owned()));
        }
        Err(HeadsError::Name { text: text.chars().take(limits::HEAD_NAME_BYTES_MAX).collect() })
    }
}

impl fmt::Display for HeadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a name points at, and the right to move it: a writer keeps the head it was last given and commits against that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Whose it is.
    pub realm: Realm,
    /// Its name.
    pub name: HeadName,
    /// The state it names.
    pub manifest: ManifestId,
    /// Fencing: changes with each `take_over`, never with a commit.
    pub generation: u64,
    /// When it was last changed, in milliseconds since 1970 by the writer's clock. For people, and for guesses that may be wrong.
    pub updated_ms: u64,
    /// What whoever duplicated the head, or moved it by [`Heads::commit_keeping`], had to say: at most [`limits::HEAD_NOTE_BYTES_MAX`], often nothing.
    pub note: String,
}

/// All heads and leases of one store.
#[derive(Debug, Clone)]
pub struct Heads {
    database: Database,
}

impl Heads {
    /// Opens the database at `url` (`postgres://user@host/database` or `sqlite:///path`) and brings its schema up to date. An SQLite file that is not
    /// there is made, unless the address has parameters, which say what is to be done (`?mode=rw`).
    pub async fn open(url: &str) -> Result<Self, HeadsError> {
        Ok(Self { database: Database::open(url, &SCHEMA).await? })
    }

    /// Opens the SQLite database at `path`, or makes it. Several processes may use one.
    pub async fn open_file(path: &Path) -> Result<Self, HeadsError> {
        Ok(Self { database: Database::open_file(path, &SCHEMA).await? })
    }

    /// The random id that this database got when it was made. A store's objects carry it too, so that the garbage collector never
    /// judges the objects of one store by the heads of another.
    pub async fn store_id(&self) -> Result<String, HeadsError> {
        let failed = || database("read the store's id");
        let rows = sqlx::query("SELECT id FROM heads_store").fetch_all(self.database.pool()).await.map_err(failed())?;
        let row = rows.first().ok_or(HeadsError::Damaged { expected: "store id", value: String::new() })?;
        row.try_get(0).map_err(failed())
    }

    /// Makes a head. `lease` must keep `manifest` and what it needs, and ends here; it goes on if this fails. May be repeated as it was
    /// when the answer was lost.
    pub async fn create(
        &self,
        realm: &Realm,
        name: &HeadName,
        manifest: ManifestId,
        lease: &Lease,
    ) -> Result<Head, HeadsError> {
        let failed = || database("create a head");
        let mut transaction = self.database.begin().await?;
        let generation = next_generation(&mut transaction).await?;
        let kept = leases::hand_over(&mut transaction, lease, realm, manifest).await?;
        let made = new_head(realm, name, manifest, generation, "");
        if kept && insert(&mut transaction, &made).await.map_err(failed())? {
            transaction.commit().await.map_err(failed())?;
            return Ok(made);
        }
        transaction.rollback().await.map_err(failed())?;
        match self.get(realm, name).await {
            Ok(found) if found.manifest == manifest => Ok(found),
            Ok(_) => Err(HeadsError::Exists { realm: realm.clone(), name: name.clone() }),
            Err(HeadsError::NotFound { .. }) if !kept => Err(HeadsError::LeaseLost(lease.id)),
            Err(error) => Err(error),
        }
    }

    /// Gives what `of` names a second name, with a note, if `of` is still exactly that. In one step, so that no lease is needed. May be
    /// repeated as it was when the answer was lost.
    pub async fn duplicate(&self, of: &Head, name: &HeadName, note: &str) -> Result<Head, HeadsError> {
        self.name_kept(of, of.manifest, name, note).await
    }

    /// Gives `manifest` a name of its own, with a note: one that the manifest which `keeper` names needs, if `keeper` is still exactly that. In
    /// one step, as [`Heads::duplicate`].
    pub async fn name_kept(
        &self,
        keeper: &Head,
        manifest: ManifestId,
        name: &HeadName,
        note: &str,
    ) -> Result<Head, HeadsError> {
        check_note(note)?;
        let failed = || database("name a state again");
        let realm = &keeper.realm;
        let mut transaction = self.database.begin().await?;
        let generation = next_generation(&mut transaction).await?;
        // Changes nothing: locks the row, so that no commit moves the head away, and no collector comes, before the second name is there.
        let lock = "UPDATE heads SET generation = generation
            WHERE realm = $1 AND name = $2 AND generation = $3 AND manifest = $4";
        let lock = sqlx::query(lock).bind(realm.as_str()).bind(keeper.name.as_str()).bind(signed(keeper.generation));
        let locked = lock.bind(keeper.manifest.to_string()).execute(&mut *transaction).await.map_err(failed())?;
        let still = locked.rows_affected() == 1;
        let made = new_head(realm, name, manifest, generation, note);
        if still && insert(&mut transaction, &made).await.map_err(failed())? {
            transaction.commit().await.map_err(failed())?;
            return Ok(made);
        }
        transaction.rollback().await.map_err(failed())?;
        if !still {
            return Err(why_not(keeper, &self.get(realm, &keeper.name).await?));
        }
        match self.get(realm, name).await? {
            found if found.manifest == manifest && found.note == note => Ok(found),
            _ => Err(HeadsError::Exists { realm: realm.clone(), name: name.clone() }),
        }
    }

    /// The head as it is now.
    pub async fn get(&self, realm: &Realm, name: &HeadName) -> Result<Head, HeadsError> {
        let select = "SELECT name, manifest, generation, updated_ms, note FROM heads WHERE realm = $1 AND name = $2";
        let select = sqlx::query(select).bind(realm.as_str()).bind(name.as_str());
        let rows = select.fetch_all(self.database.pool()).await.map_err(database("read a head"))?;
        let row = rows.first().ok_or_else(|| HeadsError::NotFound { realm: realm.clone(), name: name.clone() })?;
        parse(realm, row)
    }

    /// Moves the head from `expected` to `next` if nobody else has moved it or taken it over. `lease` must keep `next` and what it
    /// needs, and ends here; it goes on if this fails. A commit whose answer was lost may be repeated as it was: it succeeds if it did before.
    pub async fn commit(&self, expected: &Head, next: ManifestId, lease: &Lease) -> Result<Head, HeadsError> {
        self.commit_naming(expected, (next, &expected.note), lease, None).await
    }

    /// As [`Heads::commit`], with a note for the head; in the same step, what `expected` names gets the name `before`, with a note, too. `next` may be
    /// what `expected` names already: then a commit that is repeated is told by its note, which has to be a new one.
    pub async fn commit_keeping(
        &self,
        expected: &Head,
        next: (ManifestId, &str),
        lease: &Lease,
        before: (&HeadName, &str),
    ) -> Result<Head, HeadsError> {
        check_note(next.1)?;
        check_note(before.1)?;
        self.commit_naming(expected, next, lease, Some(before)).await
    }

    async fn commit_naming(
        &self,
        expected: &Head,
        (next, next_note): (ManifestId, &str),
        lease: &Lease,
        before: Option<(&HeadName, &str)>,
    ) -> Result<Head, HeadsError> {
        let failed = || database("commit a head");
        let Head { realm, name, .. } = expected;
        let mut transaction = self.database.begin().await?;
        let before = match before {
            Some((name, note)) => {
                let generation = next_generation(&mut transaction).await?;
                Some(new_head(realm, name, expected.manifest, generation, note))
            }
            None => None,
        };
        let kept = leases::hand_over(&mut transaction, lease, realm, next).await?;
        let update = "UPDATE heads SET manifest = $1, updated_ms = $2, note = $3
            WHERE realm = $4 AND name = $5 AND generation = $6 AND manifest = $7";
        let updated_ms = now_ms();
        let generation = signed(expected.generation);
        let update = sqlx::query(update).bind(next.to_string()).bind(updated_ms).bind(next_note);
        let update =
            update.bind(realm.as_str()).bind(name.as_str()).bind(generation).bind(expected.manifest.to_string());
        let moved = kept && update.execute(&mut *transaction).await.map_err(failed())?.rows_affected() == 1;
        let named = match &before {
            Some(before) if moved => insert(&mut transaction, before).await.map_err(failed())?,
            _ => true,
        };
        if moved && named {
            transaction.commit().await.map_err(failed())?;
            return head(realm, name, &next.to_string(), generation, updated_ms, next_note.to_owned());
        }
        transaction.rollback().await.map_err(failed())?;
        let found = self.get(realm, name).await?;
        if found.generation == expected.generation && (found.manifest, &*found.note) == (next, next_note) {
            return Ok(found);
        }
        match before {
            Some(before) if !named => Err(HeadsError::Exists { realm: before.realm, name: before.name }),
            _ if !kept && (found.generation, found.manifest) == (expected.generation, expected.manifest) => {
                Err(HeadsError::LeaseLost(lease.id))
            }
            _ => Err(why_not(expected, &found)),
        }
    }

    /// Makes the caller the only writer: gives the head a new generation if it still has that of `seen`. Of several that take over
    /// from one generation one wins; the others and the writer before them get `Fenced`.
    pub async fn take_over(&self, seen: &Head) -> Result<Head, HeadsError> {
        let failed = || database("take a head over");
        let mut transaction = self.database.begin().await?;
        let generation = next_generation(&mut transaction).await?;
        let update = "UPDATE heads SET generation = $1, updated_ms = $2
            WHERE realm = $3 AND name = $4 AND generation = $5 RETURNING name, manifest, generation, updated_ms, note";
        let update = sqlx::query(update).bind(generation).bind(now_ms()).bind(seen.realm.as_str());
        let update = update.bind(seen.name.as_str()).bind(signed(seen.generation));
        let rows = update.fetch_all(&mut *transaction).await.map_err(failed())?;
        let Some(row) = rows.first() else {
            transaction.rollback().await.map_err(failed())?;
            return Err(why_not(seen, &self.get(&seen.realm, &seen.name).await?));
        };
        let taken = parse(&seen.realm, row)?;
        transaction.commit().await.map_err(failed())?;
        Ok(taken)
    }

    /// Removes the head if it is still exactly `expected`. What it named becomes garbage.
    pub async fn remove(&self, expected: &Head) -> Result<(), HeadsError> {
        let delete = "DELETE FROM heads WHERE realm = $1 AND name = $2 AND generation = $3 AND manifest = $4";
        let delete = sqlx::query(delete).bind(expected.realm.as_str()).bind(expected.name.as_str());
        let delete = delete.bind(signed(expected.generation)).bind(expected.manifest.to_string());
        if self.has_removed(delete).await? {
            return Ok(());
        }
        Err(why_not(expected, &self.get(&expected.realm, &expected.name).await?))
    }

    /// Removes the head of this name, whatever it names by now: for those who mean the name. Its writers get `NotFound`.
    pub async fn remove_name(&self, realm: &Realm, name: &HeadName) -> Result<(), HeadsError> {
        let delete = "DELETE FROM heads WHERE realm = $1 AND name = $2";
        if self.has_removed(sqlx::query(delete).bind(realm.as_str()).bind(name.as_str())).await? {
            return Ok(());
        }
        Err(HeadsError::NotFound { realm: realm.clone(), name: name.clone() })
    }

    async fn has_removed(&self, delete: Query<'_, Any, AnyArguments>) -> Result<bool, HeadsError> {
        let done = delete.execute(self.database.pool()).await.map_err(database("remove a head"))?;
        Ok(done.rows_affected() == 1)
    }

    /// The heads of a realm whose names begin with `prefix` and come after `after`, ordered by name (by bytes); at most
    /// [`limits::HEADS_PER_LIST_MAX`].
    pub async fn list(&self, realm: &Realm, prefix: &str, after: Option<&HeadName>) -> Result<Vec<Head>, HeadsError> {
        // '\x7f' is above everything a name may hold, so the range is exactly the prefix, and the primary key's index serves it.
        let select = "SELECT name, manifest, generation, updated_ms, note FROM heads
            WHERE realm = $1 AND name >= $2 AND name < $3 AND name > $4 ORDER BY name LIMIT $5";
        let select = sqlx::query(select).bind(realm.as_str()).bind(prefix).bind(format!("{prefix}\x7f"));
        let select = select.bind(after.map_or("", HeadName::as_str)).bind(i64::from(limits::HEADS_PER_LIST_MAX));
        let rows = select.fetch_all(self.database.pool()).await.map_err(database("list heads"))?;
        rows.iter().map(|row| parse(realm, row)).collect()
    }

    /// The realms that have a head or a lease.
    pub async fn realms(&self) -> Result<Vec<Realm>, HeadsError> {
        let failed = || database("list realms");
        let select = "SELECT realm FROM heads UNION SELECT realm FROM leases ORDER BY realm";
        let rows = sqlx::query(select).fetch_all(self.database.pool()).await.map_err(failed())?;
        rows.iter().map(|row| parsed(row.try_get(0).map_err(failed())?, "realm")).collect()
    }
}

fn check_note(note: &str) -> Result<(), HeadsError> {
    let (bytes, bytes_max) = (note.len(), limits::HEAD_NOTE_BYTES_MAX);
    if bytes > bytes_max { Err(HeadsError::Note { bytes, bytes_max }) } else { Ok(()) }
}

fn new_head(realm: &Realm, name: &HeadName, manifest: ManifestId, generation: i64, note: &str) -> Head {
    let (generation, updated_ms) = (generation.unsigned_abs(), now_ms().unsigned_abs());
    Head { realm: realm.clone(), name: name.clone(), manifest, generation, updated_ms, note: note.to_owned() }
}

/// Adds a head; false if the name is taken.
async fn insert(transaction: &mut AnyConnection, head: &Head) -> Result<bool, sqlx::Error> {
    let insert =
        "INSERT INTO heads (realm, name, manifest, generation, updated_ms, note) VALUES ($1, $2, $3, $4, $5, $6)
        ON CONFLICT (realm, name) DO NOTHING";
    let insert = sqlx::query(insert).bind(head.realm.as_str()).bind(head.name.as_str()).bind(head.manifest.to_string());
    let insert = insert.bind(signed(head.generation)).bind(signed(head.updated_ms)).bind(&*head.note);
    Ok(insert.execute(transaction).await?.rows_affected() == 1)
}

/// Why a conditional change found `found` instead of what the caller held.
fn why_not(held: &Head, found: &Head) -> HeadsError {
    let (realm, name) = (held.realm.clone(), held.name.clone());
    if found.generation != held.generation {
        return HeadsError::Fenced { realm, name, held: held.generation, current: found.generation };
    }
    HeadsError::Moved { realm, name, expected: held.manifest, found: found.manifest }
}

/// The next generation. Locks the counter until the transaction ends, so generations grow in the order of commits.
async fn next_generation(transaction: &mut AnyConnection) -> Result<i64, HeadsError> {
    let failed = || database("give out a generation");
    let update = "UPDATE heads_store SET generation = generation + 1 RETURNING generation";
    let rows = sqlx::query(update).fetch_all(transaction).await.map_err(failed())?;
    let row = rows.first().ok_or(HeadsError::Damaged { expected: "generation", value: String::new() })?;
    row.try_get(0).map_err(failed())
}
