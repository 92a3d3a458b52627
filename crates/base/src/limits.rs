//! Every bound in one place, each with its reason.

mod builds;
mod hands;

pub use builds::{
    BUILD_FILE_BYTES_MAX, BUILD_FILES_BYTES_MAX, BUILD_LAYERS_BYTES_KEPT_MAX, BUILD_LAYERS_KEPT_MAX,
    BUILD_LOG_BYTES_MAX, BUILD_MAX_MS, BUILD_RESULTS_KEPT_MAX, BUILD_ROOM_MIN, BUILD_STEP_MAX_MS, BUILD_STEPS_MAX,
    BUILD_UPLOADS_AT_ONCE_MAX, BUILD_UPLOADS_MAX, BUILD_UPLOADS_OF_TEAM_MAX, BUILDS_AT_ONCE_MAX, BUILDS_KEPT_MAX,
    BUILDS_OF_TEAM_MAX, BUILDS_STARTED_MAX, COPY_BYTES_MAX, COPY_ENTRIES_MAX,
};

pub use hands::{
    HAND_CACHED_BYTES_MAX, HAND_DESCRIPTORS_MAX, HAND_EVENTS_MAX, HAND_IDLE_S, HAND_KERNEL_FILE_BYTES_MAX,
    HAND_LIST_BYTES_MAX, HAND_LIST_ENTRIES_MAX, HAND_LISTS_MAX, HAND_NAMES_BYTES_MAX, HAND_PEER_IDLE_S,
    HAND_PIPE_BYTES, HAND_REQUESTS_MAX, HAND_STALL_S, HAND_TRANSFERS_MAX, HAND_USERS_MAX, HAND_WATCHED_DIRECTORIES_MAX,
    HAND_WATCHES_MAX, WATCH_BYTES_MAX, WATCH_BYTES_NODE_MAX, WATCH_BYTES_SANDBOX_MAX,
};
use std::time::Duration;

/// Longest name of a template: a DNS label, so that it can become part of a host name.
pub const NAME_BYTES_MAX: usize = 63;

/// Longest id of an HTTP request that the node takes from a client, in bytes. The id is in each log line of the request.
pub const REQUEST_ID_BYTES_MAX: usize = 64;

/// Most sandboxes that one `create` or `fork` request may ask for: bounds the answer and the work behind one request.
pub const SANDBOXES_PER_REQUEST_MAX: u32 = 1_000;

/// Most processes of a forked program: all of them lie in one zygote, side by side.
pub const PROCESSES_MAX: usize = 256;

/// Most commands that go with a forked program: their streams come in one message, which takes 253 descriptors.
pub const FORKED_COMMANDS_MAX: usize = 80;

/// Most bytes of what copies have to know of the commands that go with a program (arguments, environments, and the ends of their outputs as base64),
/// as a part of one message of [`LONG_MESSAGE_BYTES_MAX`].
pub const FORKED_COMMANDS_BYTES_MAX: usize = LONG_MESSAGE_BYTES_MAX / 4 * 3;

/// The longest that a template's `on_fork` may take in a copy, in milliseconds: the start waits for it.
pub const ON_FORK_MS_MAX: u64 = 10_000;

/// Most files that an answer names in which two sandboxes differ.
pub const DIFFERENCES_MAX: usize = 50_000;

/// Forks back that a sandbox knows how its files, or those of the one that it descends from, were: what a merge goes back to.
pub const FORK_POINTS_MAX: usize = 8;

/// Most forks of a team in one answer.
pub const FORKS_LISTED_MAX: usize = 10_000;

/// Sandboxes that are gone and are remembered, because others descend from them.
pub const GONE_SANDBOXES_MAX: usize = 10_000;

/// Most threads of a forked process: bounds the script and its frames (about 4 KiB each).
pub const THREADS_MAX: usize = 4_096;

/// Most mappings of a forked program: the kernel's own default (`vm.max_map_count`).
pub const MAPPINGS_MAX: usize = 65_530;

/// Most runs of guard pages (`MADV_GUARD_INSTALL`) of a forked program: bounds the script, in which each is a step of 96 bytes. As many as mappings,
/// because they take the place of these.
pub const GUARDS_MAX: usize = MAPPINGS_MAX;

/// Most bytes of addresses that the mappings of a checkpointed program may cover which hold memory (256 GiB): a restored process has a bit for
/// each page of them in a fixed place. Reserved mappings without a page do not count.
pub const RESTORED_ADDRESS_BYTES_MAX: u64 = 256 << 30;

/// Most descriptors of a forked program: bounds the script.
pub const DESCRIPTORS_MAX: usize = 4_096;

/// Most bytes that may wait in one direction of a TCP connection inside a program, for copies to have it: as much as a socket takes whose owner may
/// not raise the host's bounds.
pub const CONNECTION_BYTES_MAX: usize = 384 << 10;

/// Largest content of one pipe, socket queue or shared object that is carried into a copy, in bytes.
pub const CARRIED_BYTES_MAX: u64 = 256 << 20;

/// Size of a sandbox's /dev/shm, in bytes: all of it is carried into copies, so a program cannot have more there than a capture takes. What is in
/// it is memory of the sandbox, and counts against that limit, too.
pub const SHARED_MEMORY_BYTES_MAX: u64 = CARRIED_BYTES_MAX;

/// Most System V objects of a sandbox (segments, sets of semaphores, message queues) that are carried into a copy.
pub const SYSTEM_V_OBJECTS_MAX: usize = 1_024;

/// Largest size of all System V segments of a sandbox together, their holes included, in bytes. [`CARRIED_BYTES_MAX`] bounds their content.
pub const SYSTEM_V_BYTES_MAX: u64 = 64 << 30;

/// Most files in a sandbox's /dev/shm, directories and further names of a file included: bounds the script of a copy, and the kernel's memory.
pub const SHARED_MEMORY_FILES_MAX: usize = 16_384;

/// Most bytes of files that a zygote cannot map (those of volumes) which a program may have privately mapped: they become its memory.
pub const TAKEN_OVER_BYTES_MAX: u64 = 1 << 30;

/// Most locks on files that a forked program may hold: bounds the script.
pub const LOCKS_MAX: usize = 4_096;

/// Largest message between server and keeper, in bytes: below the kernel's default socket buffer (212,992).
pub const MESSAGE_BYTES_MAX: usize = 128 << 10;

/// Largest message that goes beside the socket, in a file in memory: a command of [`COMMAND_BYTES_MAX`] is at most six times as long as JSON.
pub const LONG_MESSAGE_BYTES_MAX: usize = 32 << 20;

/// Most bytes of a command and its environment, as Linux counts them: each string with its zero byte, and 8 bytes for each. The kernel's own bound
/// where the stack may have 8 MiB (execve(2)).
pub const COMMAND_BYTES_MAX: usize = 2 << 20;

/// Longest argument, or variable with its name, in bytes: the kernel's MAX_ARG_STRLEN without the zero byte.
pub const ARGUMENT_BYTES_MAX: usize = (128 << 10) - 1;

/// Longest path, in bytes: the kernel's PATH_MAX without the zero byte.
pub const PATH_BYTES_MAX: usize = 4_095;

/// Most bytes of a template's description as JSON: it is kept in records, with every checkpoint and paused sandbox of the template.
pub const TEMPLATE_BYTES_MAX: usize = RECORD_BYTES_MAX / 2;

/// Highest memory limit of a sandbox, in bytes (1 PiB): what the kernel can count.
pub const MEMORY_BYTES_MAX: u64 = 1 << 50;

/// Highest disk limit of a sandbox, in bytes (1 PiB).
pub const DISK_BYTES_MAX: u64 = 1 << 50;

/// Lowest disk limit of a sandbox, in bytes: the files of its own identity need some.
pub const DISK_BYTES_MIN: u64 = 1 << 20;

/// Highest process limit of a sandbox: the kernel has no more numbers (PID_MAX_LIMIT).
pub const PIDS_MAX: u64 = 4 << 20;

/// Highest CPU limit of a sandbox, in thousandths of a processor: 10,000 of them; the kernel refuses quotas of some 170,000.
pub const CPU_MILLIS_MAX: u32 = 10_000_000;

/// Longest time limit of a command, in milliseconds: 30 days.
pub const COMMAND_TIMEOUT_MS_MAX: u64 = 30 * 86_400_000;

/// Bytes of each output of a command that are kept (1 MiB): a screen of text a thousand times, and small enough for thousands of commands.
pub const COMMAND_OUTPUT_KEPT_BYTES: u64 = 1 << 20;

/// Most commands that run at a time in one sandbox: each takes five descriptors and up to 2 MiB of output from what all sandboxes share.
pub const COMMANDS_PER_SANDBOX_MAX: usize = 256;

/// Most commands that run at a time in all sandboxes of a node: their kept output is then 4 GiB at most.
pub const COMMANDS_PER_NODE_MAX: usize = 2_048;

/// Commands of one sandbox that are kept after their end, so that a client that comes back gets output and status. The oldest go first.
pub const ENDED_COMMANDS_PER_SANDBOX_MAX: usize = 32;

/// Output of ended commands that is kept on a node, in bytes (64 MiB). When it is more, the command that ended first goes.
pub const ENDED_COMMANDS_BYTES_MAX: u64 = 64 << 20;

/// Longest tag of a command, in bytes: it is listed with every command.
pub const COMMAND_TAG_BYTES_MAX: usize = 256;

/// Most descriptors in one message: the kernel's SCM_MAX_FD is 253; none of ours needs more than this.
pub const MESSAGE_DESCRIPTORS_MAX: usize = 16;

/// Most mount points of a template: the mounts of a sandbox go to the keeper in one message.
pub const MOUNT_POINTS_MAX: usize = MESSAGE_DESCRIPTORS_MAX;

/// Longest path of a mount point, in bytes: all of them go into one message as well.
pub const MOUNT_POINT_BYTES_MAX: usize = 1_024;

/// Largest body of an API request, in bytes, unless it carries a command.
pub const REQUEST_BYTES_MAX: usize = 256 << 10;

/// Largest body of an API request that carries a command: of its [`COMMAND_BYTES_MAX`], JSON makes six times as many at most.
pub const COMMAND_REQUEST_BYTES_MAX: usize = 16 << 20;

/// A sandbox's output file is cut when it grows past this, in bytes; the newest half is kept.
pub const LOG_BYTES_MAX: u64 = 16 << 20;

/// Largest state record read back from disk, in bytes.
pub const RECORD_BYTES_MAX: usize = 1 << 20;

/// Blank sandboxes that a node keeps ready over all templates, and as many without a root filesystem: each costs about 1 MiB of kernel and process memory.
pub const POOL_SANDBOXES_DEFAULT: usize = 64;

/// Of these, the most that hold a copy forked ahead, which makes up to 4 MiB of the program's memory its own.
pub const PARKED_COPIES_DEFAULT: usize = 32;

/// Most content of shared memory, in bytes, of a program whose copies are forked ahead: each of them has its own.
pub const PARKED_SHARED_BYTES_MAX: u64 = 4 << 20;

/// A template must be ready within this many milliseconds unless the request says otherwise.
pub const READY_TIMEOUT_MS_DEFAULT: u64 = 60_000;

/// Longest readiness wait a request may ask for, in milliseconds.
pub const READY_TIMEOUT_MS_MAX: u64 = 3_600_000;

/// A sandbox's default disk limit, in bytes.
pub const DISK_BYTES_DEFAULT: u64 = 20 << 30;

/// A sandbox's default memory limit, in bytes.
pub const MEMORY_BYTES_DEFAULT: u64 = 4 << 30;

/// A sandbox's default limit of tasks: processes, and threads, which count alike. Enough for a build or a browser; one neighbour that
/// forks without end then takes a sixtieth of the 32,768 that a small host has.
pub const PIDS_DEFAULT: u64 = 512;

/// All sandboxes together may have this share of the tasks that the kernel has numbers for (`kernel.pid_max`), in hundredths. It bounds what is in use,
/// not the sum of limits, which may be larger: the host keeps the rest.
pub const PIDS_OF_HOST_PERCENT: u64 = 80;

/// The score of every sandboxed program when the host runs out of memory, from -1000 to 1000: as if it used half of all memory more than it does, so
/// it is killed before the host's own processes. A program may raise its own.
pub const OOM_SCORE_PROGRAM: i16 = 500;

/// The score of the node and its keeper, where it may be lowered (`CAP_SYS_RESOURCE`): without them nobody removes the sandbox that
/// takes the memory. Not -1000: a node that leaks is better killed, in the end, than the host.
pub const OOM_SCORE_NODE: i16 = -900;

/// Most terminals of one sandbox: the kernel has 4,096 for all of the host (`kernel.pty.max`) and keeps 1,024 for the host itself, which
/// leaves 48 such sandboxes.
pub const TERMINALS_MAX: u32 = 64;

/// The first user and group id of the host that sandboxes get: the one above those that systemd gives to containers (0x80000 to 0x6fff_ffff).
pub const IDS_FIRST: u32 = 0x7000_0000;

/// User and group ids of one sandbox: all that most images have, and as many as other container runtimes give.
pub const IDS_PER_SANDBOX: u32 = 1 << 16;

/// The capabilities of a sandbox's root in its own namespaces, by their bits: Docker's default. `CHOWN`, `DAC_OVERRIDE`, `FOWNER`, `FSETID`, `KILL`,
/// `SETGID`, `SETUID`, `SETPCAP`, `NET_BIND_SERVICE`, `NET_RAW`, `SYS_CHROOT`, `MKNOD`, `AUDIT_WRITE`, `SETFCAP`.
pub const ROOT_CAPABILITIES: u64 = 0xa804_25fb;

/// Most groups of a user beside its own: far above what images have, and the list is sent with each command.
pub const GROUPS_MAX: usize = 256;

/// Most sandboxes of a host: their ids are below 2^31, because some programs take them for signed numbers.
pub const ID_RANGES_MAX: u32 = 4_000;

/// Longest host name, in bytes: that of the domain name system (RFC 1035, 2.3.4), as text without the last dot.
pub const HOST_BYTES_MAX: usize = 253;

/// Connections of clients that the edge holds at a time: above the 1,000 idle streams that one user may have, below
/// the descriptors that a node raises its own limit to (two for each connection to a sandbox).
pub const EDGE_CONNECTIONS_MAX: usize = 4_096;

/// Connections to programs that the edge has at a time, for all sandboxes: twice as many as clients may have, because
/// one HTTP/2 connection carries many.
pub const EDGE_PROXIED_MAX: usize = 8_192;

/// The same for one sandbox: above the 1,000 idle streams that one user may have, a quarter of all.
pub const EDGE_PROXIED_SANDBOX_MAX: usize = 2_048;

/// Requests at a time in one HTTP/2 connection: an SDK keeps all its streams in one.
pub const EDGE_STREAMS_MAX: u32 = 1_024;

/// Most bytes of the head of one request, and of one answer of a program in a sandbox: more than common servers take
/// (8 to 32 KiB), so that a program decides itself.
pub const EDGE_HEAD_BYTES_MAX: usize = 64 << 10;

/// Most headers of one answer of a program in a sandbox.
pub const EDGE_HEADERS_MAX: usize = 256;

/// Milliseconds from a connection to the whole head of its first request, TLS handshake included. Browsers connect
/// ahead and then wait; slow clients must not.
pub const EDGE_FIRST_REQUEST_MS_MAX: u64 = 30_000;

/// Milliseconds that a TLS handshake may take.
pub const EDGE_HANDSHAKE_MS_MAX: u64 = 10_000;

/// Milliseconds that a connection may be without a request. Clients of E2B reuse connections for 300 s: a server that
/// closes earlier makes requests fail.
pub const EDGE_IDLE_MS_MAX: u64 = 620_000;

/// The same while all connections are in use: clients that wait come before those that rest.
pub const EDGE_IDLE_FULL_MS_MAX: u64 = 5_000;

/// Milliseconds that a client may take nothing of an answer that is ready. It is longer than people look at a debugger,
/// and as long as a transfer of a file waits ([`HAND_PEER_IDLE_S`]).
pub const EDGE_STALL_MS_MAX: u64 = 600_000;

/// Seconds that a client of the API may send nothing of its body.
pub const API_BODY_IDLE_S: u64 = 30;

/// Milliseconds that running requests get to finish when the server is stopped: systemd kills after 90 s.
pub const EDGE_GRACE_MS: u64 = 10_000;

/// Milliseconds that a tunnel whose one side has ended may be without a byte. A client that is gone looks like one that
/// has only finished sending.
pub const EDGE_HALF_OPEN_MS_MAX: u64 = 60_000;

/// A sandbox lives this many seconds if the request (`/v2/sandboxes`, `/v2/.../connect`) does not say how long: the
/// default of E2B's newer clients.
pub const SANDBOX_TIMEOUT_S_DEFAULT: u64 = 300;

/// The same for the older requests (`/sandboxes`, `/sandboxes/.../connect`), forks and keep-alives: the default of
/// E2B's older clients.
pub const SANDBOX_TIMEOUT_S_DEFAULT_V1: u64 = 15;

/// Longest time that a request may let a sandbox live from now, in seconds (30 days). It only keeps mistakes out: a
/// sandbox may be given more time as often as its owner likes.
pub const SANDBOX_TIMEOUT_S_MAX: u64 = 30 * 86_400;

/// A pause at a sandbox's end that was refused is tried again after this time: often enough to free the memory soon,
/// seldom enough that the attempts cost nothing.
pub const PAUSE_RETRY: Duration = Duration::from_secs(60);

/// When a client that was refused for want of a resource, or for a passing reason, may try again.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Running sandboxes that a new team may have: what a node of 64 GiB carries if each uses little.
pub const TEAM_SANDBOXES_DEFAULT: u64 = 500;

/// Memory of a new team's running sandboxes together, in MiB (1 TiB). Limits of sandboxes are promises of at most, so
/// their sum may be far above what the node has.
pub const TEAM_MEMORY_MB_DEFAULT: u64 = 1 << 20;

/// CPUs of a new team's running sandboxes together: four for each sandbox. They share the processors of the node.
pub const TEAM_CPUS_DEFAULT: u64 = 2_000;

/// Starts and resumes of a new team that may be under way at once: clients create 100 sandboxes at a time.
pub const TEAM_STARTS_DEFAULT: u64 = 200;

/// A start that did not end within this time does not count against its team any more: the server that made it has
/// died.
pub const RESERVATION_MAX: Duration = Duration::from_secs(600);

/// A server that works on a sandbox says so again before this time is over. Then another server may take the work up.
pub const CLAIM_MAX: Duration = Duration::from_secs(120);

/// How often a server says so again: three attempts may fail.
pub const CLAIM_RENEWAL: Duration = Duration::from_secs(30);

/// Longest time between two looks of the scheduler at the database: how late it sees what another server has changed.
pub const SCHEDULE_POLL: Duration = Duration::from_secs(5);

/// Sandboxes that one look of the scheduler takes up: bounds its memory. The next look follows at once.
pub const SCHEDULE_BATCH_MAX: usize = 256;

/// Sandboxes that the scheduler of one server ends at once. Most of a kill is waiting for processes.
pub const SCHEDULED_KILLS_MAX: usize = 32;

/// Sandboxes that the scheduler of one server pauses at once. Each reads memory and writes to the store.
pub const SCHEDULED_PAUSES_MAX: usize = 4;

/// The same idempotency key gives the same sandbox for this time: longer than any client retries.
pub const IDEMPOTENCY_KEPT: Duration = Duration::from_secs(86_400);

/// Idempotency keys that are kept for one team, the newest ones: 100 bytes each.
pub const IDEMPOTENCY_KEYS_MAX: u64 = 10_000;

/// Longest idempotency key, in bytes: the bound of E2B's API.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// Pairs of metadata of a sandbox: each is a row of an index.
pub const METADATA_PAIRS_MAX: usize = 128;

/// Metadata, environment, network policy and mounts of a sandbox, each as JSON, in bytes: every list reads metadata.
pub const SANDBOX_JSON_BYTES_MAX: usize = 64 << 10;

/// Sandboxes, snapshots or templates on one page of a list: the bound of E2B's API.
pub const PAGE_MAX: usize = 100;

/// Events that are kept for one sandbox, the newest ones.
pub const EVENTS_MAX: u64 = 256;

/// Events are kept for this time, also when their sandbox has ended: a week to find out why.
pub const EVENTS_KEPT: Duration = Duration::from_secs(7 * 86_400);

/// Longest detail of an event, in bytes: an error with its causes.
pub const EVENT_DETAIL_BYTES_MAX: usize = 1_024;

/// API keys of one team: people and machines, each with its own.
pub const TEAM_KEYS_MAX: u64 = 1_000;

/// Templates and snapshots of one team.
pub const TEAM_TEMPLATES_MAX: u64 = 10_000;

/// Builds that are kept of one template. A tag keeps its build; the oldest of the others go first.
pub const TEMPLATE_BUILDS_MAX: u64 = 100;

/// Names and tags of one template, each.
pub const TEMPLATE_NAMES_MAX: u64 = 100;

/// Longest name or tag of a template, in bytes.
pub const TEMPLATE_NAME_BYTES_MAX: usize = 128;

/// Files that are counted for what a sandbox uses of the disk: a list of metrics waits for that, and 100,000 take a
/// tenth of a second.
pub const DISK_USE_ENTRIES_MAX: usize = 100_000;

/// Time between two measurements of a sandbox for its metrics.
pub const METRICS_PAUSE: Duration = Duration::from_secs(15);

/// Measurements of a sandbox that are kept: an hour, in 20 KiB.
pub const METRICS_KEPT: usize = 240;

/// Sandboxes that are measured at once: each takes a tenth of a second.
pub const METRICS_SIDE_BY_SIDE: usize = 16;

/// Entries of a log in one answer.
pub const LOG_ENTRIES_MAX: usize = 1_000;

/// A text that entries of a log are searched for, in bytes.
pub const LOG_SEARCH_BYTES_MAX: usize = 256;

/// Secrets of one team: a list of them is read page by page.
pub const TEAM_SECRETS_MAX: u64 = 1_000;

/// A secret's value, in bytes: keys and certificates fit.
pub const SECRET_BYTES_MAX: usize = 64 << 10;

/// A secret's name, in bytes.
pub const SECRET_NAME_BYTES_MAX: usize = 128;

/// An expired reservation of another server is kept this long: a sandbox without an owner is found by it when that
/// server starts again.
pub const RESERVATION_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// A server that has given no sign for this long is taken for stopped.
pub const SERVER_SILENT: Duration = Duration::from_secs(120);

/// Volumes of one team.
pub const TEAM_VOLUMES_MAX: u64 = 10_000;

/// Snapshots of one volume that clients of `pando serve` can keep: a list has them all.
pub const VOLUME_SNAPSHOTS_MAX: usize = 1_000;

/// Smallest size that a client can give a volume, in MiB.
pub const VOLUME_MB_MIN: u64 = 1;

/// Largest size that a client can give a volume, in MiB: 1 TiB. Larger ones are the operator's to make.
pub const VOLUME_MB_MAX: u64 = 1 << 20;

/// Levels of directories that one request lists: each level keeps some entries in memory.
pub const VOLUME_LIST_DEPTH_MAX: u32 = 64;

/// Longest line of a list that a process of volumes sends, in bytes: a path of 64 names of 255 bytes, each byte in three
/// characters, fits.
pub const VOLUME_LINE_BYTES_MAX: usize = 64 << 10;

/// Longest name of a team, a key or a volume that people read, in bytes.
pub const LABEL_BYTES_MAX: usize = 256;

/// The use of an API key is noted again after this time: a list shows when a key was used last, and a request costs
/// no write.
pub const KEY_USE_NOTED: Duration = Duration::from_secs(600);

/// A key that was found valid is believed for this time. A revocation on the same server takes effect at once, on
/// others after this.
pub const KEY_BELIEVED: Duration = Duration::from_secs(5);

/// Keys that a server remembers as valid: 200 bytes each.
pub const KEYS_REMEMBERED_MAX: usize = 10_000;

/// Most bytes of the headers of one part of an upload's form: a name of a file is a path.
pub const FORM_HEAD_BYTES_MAX: usize = 16 << 10;

/// Most parts of an upload's form: each file costs a few hundred bytes of the answer.
pub const FORM_PARTS_MAX: usize = 4_096;

/// Largest file that is compressed for a client that takes gzip, in bytes. More would take a processor longer than the
/// network takes for the bytes, and a sparse file of terabytes would occupy one for hours.
pub const GZIP_FILE_BYTES_MAX: u64 = 64 << 20;

/// Longest key of a file's metadata, in bytes: an attribute's name has at most 255, and ours begin with `user.e2b.`.
pub const METADATA_KEY_BYTES_MAX: usize = 246;

/// Most bytes of all keys and values of a file's metadata: what E2B takes.
pub const METADATA_BYTES_MAX: usize = 4_096;

/// What `pando mcp` shows of each output of a command, in bytes: an answer goes into an agent's context, which is small. Of a longer output it shows
/// the first and the last half of this.
pub const MCP_OUTPUT_BYTES_MAX: usize = 64 << 10;

/// What `pando mcp` reads of a file in one call, in bytes: also for an agent's context. Longer files are read piece by piece.
pub const MCP_FILE_BYTES_MAX: u64 = 256 << 10;

/// Most entries of a directory that `pando mcp` lists.
pub const MCP_ENTRIES_MAX: usize = 1_000;

/// How long a command of `pando mcp` may run by itself, and at most. Agents forget commands, and a client waits for the answer.
pub const MCP_COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest that an agent may ask for.
pub const MCP_COMMAND_TIMEOUT_MAX: Duration = Duration::from_secs(3_600);

/// Longest answer of a server that `pando mcp` takes into memory: far more than any answer in which lists have bounds.
pub const MCP_ANSWER_BYTES_MAX: usize = 16 << 20;

/// How long `pando mcp` waits for a connection. A server that is there takes it at once.
pub const MCP_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long `pando mcp` waits for one answer, commands and code aside: snapshots of large memories take minutes.
pub const MCP_ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
