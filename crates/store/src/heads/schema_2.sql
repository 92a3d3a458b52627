-- {TEXT} is TEXT in SQLite and TEXT COLLATE "C" in PostgreSQL.

-- Nodes that serve chunks to others of their realm. Advice, not truth: a row may be of a node that is gone, and a node may have none.
CREATE TABLE peers (
    realm {TEXT} NOT NULL,
    node {TEXT} NOT NULL,
    address {TEXT} NOT NULL,
    seen_s BIGINT NOT NULL,
    PRIMARY KEY (realm, node)
);
