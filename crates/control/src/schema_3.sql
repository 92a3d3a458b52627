-- {TEXT} is as in schema_1.sql.

-- `sealed` is the newest value as hexadecimal digits, sealed by a data key that is not in the database.
CREATE TABLE secrets (
    id {TEXT} NOT NULL PRIMARY KEY,
    team {TEXT} NOT NULL,
    name {TEXT} NOT NULL,
    version BIGINT NOT NULL,
    metadata {TEXT} NOT NULL,
    sealed {TEXT} NOT NULL,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    UNIQUE (team, name)
);
CREATE INDEX secrets_of_team ON secrets (team, created_ms, id);
