-- {TEXT} is TEXT in SQLite and TEXT COLLATE "C" in PostgreSQL: both then compare and order by bytes.
-- Names that end with _ms are milliseconds since 1970. Flags are 0 and 1. Objects and lists are JSON.

-- One row. `secret` is what all tokens are derived from.
CREATE TABLE control_server (
    one BIGINT NOT NULL PRIMARY KEY,
    secret {TEXT} NOT NULL
);

CREATE TABLE teams (
    id {TEXT} NOT NULL PRIMARY KEY,
    slug {TEXT} NOT NULL UNIQUE,
    name {TEXT} NOT NULL,
    created_ms BIGINT NOT NULL,
    sandboxes_max BIGINT NOT NULL,
    memory_mb_max BIGINT NOT NULL,
    cpus_max BIGINT NOT NULL,
    starts_max BIGINT NOT NULL
);

-- `hash` is the SHA-256 of the key. `used_ms` is 0 for a key that was never used.
CREATE TABLE api_keys (
    id {TEXT} NOT NULL PRIMARY KEY,
    team {TEXT} NOT NULL,
    name {TEXT} NOT NULL,
    hash {TEXT} NOT NULL UNIQUE,
    mask {TEXT} NOT NULL,
    scopes {TEXT} NOT NULL,
    created_ms BIGINT NOT NULL,
    used_ms BIGINT NOT NULL
);
CREATE INDEX api_keys_of_team ON api_keys (team, created_ms, id);

-- `due_ms` is when the scheduler looks at a running sandbox: at its end, and later if a pause was refused.
-- `doing` is empty or what the server `doer` does with it until `doer_until_ms`.
CREATE TABLE sandboxes (
    id {TEXT} NOT NULL PRIMARY KEY,
    team {TEXT} NOT NULL,
    template {TEXT} NOT NULL,
    build {TEXT} NOT NULL,
    alias {TEXT} NOT NULL,
    state {TEXT} NOT NULL,
    pause_mode {TEXT} NOT NULL,
    unresponsive BIGINT NOT NULL,
    metadata {TEXT} NOT NULL,
    env_vars {TEXT} NOT NULL,
    network {TEXT} NOT NULL,
    volume_mounts {TEXT} NOT NULL,
    allow_internet BIGINT NOT NULL,
    cpus BIGINT NOT NULL,
    memory_mb BIGINT NOT NULL,
    disk_mb BIGINT NOT NULL,
    on_timeout {TEXT} NOT NULL,
    auto_resume BIGINT NOT NULL,
    timeout_ms BIGINT NOT NULL,
    started_ms BIGINT NOT NULL,
    end_ms BIGINT NOT NULL,
    due_ms BIGINT NOT NULL,
    refusals BIGINT NOT NULL,
    doing {TEXT} NOT NULL,
    doer {TEXT} NOT NULL,
    doer_until_ms BIGINT NOT NULL,
    token_generation BIGINT NOT NULL
);
CREATE INDEX sandboxes_of_team ON sandboxes (team, started_ms, id);
CREATE INDEX sandboxes_in_use ON sandboxes (team, state);
CREATE INDEX sandboxes_due ON sandboxes (state, due_ms);
CREATE INDEX sandboxes_doing ON sandboxes (doing, doer_until_ms);

-- `pair` is the SHA-256 of a key and its value.
CREATE TABLE sandbox_metadata (
    sandbox {TEXT} NOT NULL,
    pair {TEXT} NOT NULL,
    PRIMARY KEY (sandbox, pair)
);
CREATE INDEX sandbox_metadata_pairs ON sandbox_metadata (pair, sandbox);

-- Starts under way. They count against the quota of their team.
CREATE TABLE reservations (
    id {TEXT} NOT NULL PRIMARY KEY,
    team {TEXT} NOT NULL,
    cpus BIGINT NOT NULL,
    memory_mb BIGINT NOT NULL,
    expires_ms BIGINT NOT NULL
);
CREATE INDEX reservations_of_team ON reservations (team, expires_ms);

-- `request` is the SHA-256 of what was asked for. `sandbox` is empty while the start is under way.
CREATE TABLE idempotency_keys (
    team {TEXT} NOT NULL,
    name {TEXT} NOT NULL,
    request {TEXT} NOT NULL,
    reservation {TEXT} NOT NULL,
    sandbox {TEXT} NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (team, name)
);
CREATE INDEX idempotency_keys_age ON idempotency_keys (created_ms);
CREATE INDEX idempotency_keys_of_team ON idempotency_keys (team, created_ms);
CREATE INDEX idempotency_keys_start ON idempotency_keys (reservation);

CREATE TABLE sandbox_events (
    sandbox {TEXT} NOT NULL,
    sequence BIGINT NOT NULL,
    team {TEXT} NOT NULL,
    at_ms BIGINT NOT NULL,
    kind {TEXT} NOT NULL,
    detail {TEXT} NOT NULL,
    PRIMARY KEY (sandbox, sequence)
);
CREATE INDEX sandbox_events_age ON sandbox_events (at_ms);

-- `kind` is template or snapshot. `spawned_ms` is 0 before the first start.
CREATE TABLE templates (
    id {TEXT} NOT NULL PRIMARY KEY,
    team {TEXT} NOT NULL,
    kind {TEXT} NOT NULL,
    public BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    spawned_ms BIGINT NOT NULL,
    spawn_count BIGINT NOT NULL
);
CREATE INDEX templates_of_team ON templates (team, kind, created_ms, id);

CREATE TABLE template_names (
    team {TEXT} NOT NULL,
    name {TEXT} NOT NULL,
    template {TEXT} NOT NULL,
    PRIMARY KEY (team, name)
);
CREATE INDEX template_names_of ON template_names (template, name);

-- `source` is the node's own name of what was built, and empty until there is one. `origin` is the sandbox that a
-- snapshot was taken of, and empty for other builds. `wanted_tags` are the tags that the build gets when it is ready.
CREATE TABLE template_builds (
    id {TEXT} NOT NULL PRIMARY KEY,
    template {TEXT} NOT NULL,
    status {TEXT} NOT NULL,
    reason {TEXT} NOT NULL,
    source {TEXT} NOT NULL,
    origin {TEXT} NOT NULL,
    wanted_tags {TEXT} NOT NULL,
    cpus BIGINT NOT NULL,
    memory_mb BIGINT NOT NULL,
    disk_mb BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL
);
CREATE INDEX template_builds_of ON template_builds (template, created_ms, id);
CREATE INDEX template_builds_from ON template_builds (origin, template);

CREATE TABLE template_tags (
    template {TEXT} NOT NULL,
    tag {TEXT} NOT NULL,
    build {TEXT} NOT NULL,
    assigned_ms BIGINT NOT NULL,
    PRIMARY KEY (template, tag)
);

CREATE TABLE volumes (
    id {TEXT} NOT NULL PRIMARY KEY,
    team {TEXT} NOT NULL,
    name {TEXT} NOT NULL,
    node_volume {TEXT} NOT NULL,
    token_generation BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    UNIQUE (team, name)
);
