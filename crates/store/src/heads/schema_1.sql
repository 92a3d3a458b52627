-- {TEXT} is TEXT in SQLite and TEXT COLLATE "C" in PostgreSQL: both then order by bytes.

-- One row. `generation` is the last one given to a head: none is ever given twice, so a name that was removed and made again
-- fences the writers of its first life, too.
CREATE TABLE heads_store (
    id {TEXT} NOT NULL PRIMARY KEY,
    generation BIGINT NOT NULL
);

CREATE TABLE heads (
    realm {TEXT} NOT NULL,
    name {TEXT} NOT NULL,
    manifest {TEXT} NOT NULL,
    generation BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    PRIMARY KEY (realm, name)
);

CREATE TABLE leases (
    id {TEXT} NOT NULL PRIMARY KEY,
    realm {TEXT} NOT NULL,
    holder {TEXT} NOT NULL,
    expires_ms BIGINT NOT NULL
);

-- What a lease keeps from being collected. A row here without its lease never outlives the transaction that removes the lease.
CREATE TABLE lease_roots (
    lease {TEXT} NOT NULL,
    kind {TEXT} NOT NULL,
    root {TEXT} NOT NULL,
    PRIMARY KEY (lease, kind, root)
);
