-- {TEXT} is as in schema_1.sql.

-- A sandbox that was forked from another one, which may be gone. A row stays as long as its sandbox is there, or one that
-- descends from it.
CREATE TABLE forks (
    child {TEXT} NOT NULL PRIMARY KEY,
    parent {TEXT} NOT NULL,
    team {TEXT} NOT NULL,
    forked_ms BIGINT NOT NULL
);
CREATE INDEX forks_of_team ON forks (team, forked_ms, child);
CREATE INDEX forks_of_parent ON forks (parent);
