//! Of builds of templates.

/// Longest time of one step of a build, in milliseconds: an hour.
pub const BUILD_STEP_MAX_MS: u64 = 3_600_000;

/// Most steps of a build.
pub const BUILD_STEPS_MAX: usize = 400;

/// Most layers of builds that are kept for the next ones, beside those that templates stand on.
pub const BUILD_LAYERS_KEPT_MAX: usize = 100;

/// Bytes of those layers: 64 GiB.
pub const BUILD_LAYERS_BYTES_KEPT_MAX: u64 = 64 << 30;

/// Room on the disk of the node's state without which no layer of a build is copied, no file for one is taken, and no image is unpacked: 2 GiB.
pub const BUILD_ROOM_MIN: u64 = 2 << 30;

/// Longest time of a build of a client, in milliseconds: 4 hours.
pub const BUILD_MAX_MS: u64 = 4 * 3_600_000;

/// Of so many builds it is known what they have come to.
pub const BUILD_RESULTS_KEPT_MAX: usize = 1_000;

/// Most builds of a server that are under way; others wait.
pub const BUILDS_AT_ONCE_MAX: usize = 4;

/// Most builds of a team that are under way: a team leaves room for others.
pub const BUILDS_OF_TEAM_MAX: usize = 2;

/// Most builds whose logs a server has.
pub const BUILDS_KEPT_MAX: usize = 1_000;

/// Most bytes of the log of a build.
pub const BUILD_LOG_BYTES_MAX: usize = 2 << 20;

/// Most bytes of an archive that a client puts for a build: 4 GiB.
pub const BUILD_FILE_BYTES_MAX: u64 = 4 << 30;

/// Bytes of all such archives of a team that a server keeps for the next builds: 16 GiB.
pub const BUILD_FILES_BYTES_MAX: u64 = 16 << 30;

/// Most addresses for uploads of a team that are valid at the same time.
pub const BUILD_UPLOADS_MAX: usize = 1_000;

/// Most uploads of a server at a time; others wait.
pub const BUILD_UPLOADS_AT_ONCE_MAX: usize = 16;

/// And of a team.
pub const BUILD_UPLOADS_OF_TEAM_MAX: usize = 4;

/// Most builds of a team that are under way or wait for their turn: they hold their archives open.
pub const BUILDS_STARTED_MAX: usize = 20;

/// Most bytes that one `COPY` of a build may bring.
pub const COPY_BYTES_MAX: u64 = 16 << 30;

/// Most files, directories and links that one `COPY` of a build may bring.
pub const COPY_ENTRIES_MAX: u64 = 1_000_000;
