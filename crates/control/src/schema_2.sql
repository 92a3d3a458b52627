-- {TEXT} is as in schema_1.sql.

-- `server` has the sandbox on its node, or reserved the room. It is empty for rows of before, until a server finds the
-- sandbox on its node. `batch` is what the node notes with what it starts in the room.
ALTER TABLE sandboxes ADD COLUMN server {TEXT} NOT NULL DEFAULT '';
CREATE INDEX sandboxes_of_server ON sandboxes (server, state);
ALTER TABLE reservations ADD COLUMN server {TEXT} NOT NULL DEFAULT '';
ALTER TABLE reservations ADD COLUMN batch {TEXT} NOT NULL DEFAULT '';
CREATE INDEX reservations_of_server ON reservations (server);

-- Servers that use the database. `seen_ms` is when one was last known to run.
CREATE TABLE servers (
    name {TEXT} NOT NULL PRIMARY KEY,
    seen_ms BIGINT NOT NULL
);
