// Who and where the process is: ids, session, directory, umask, limits, priority, names, environment.
//
// Everything is read twice, when ready and after the trigger; each item has to be the same.
#include "probe.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { THREADS = 3, ITEMS_MAX = 64, TEXT_BYTES = 512 };

struct item {
	char name[64];
	char text[TEXT_BYTES];
};

struct record {
	struct item items[ITEMS_MAX];
	int count;
};

static volatile int phase, done[2];
static struct record thread_records[2][THREADS];

__attribute__((format(printf, 3, 4))) static void add(struct record *record, const char *name, const char *format, ...)
{
	if (record->count == ITEMS_MAX)
		probe_die("more than %d items", ITEMS_MAX);
	struct item *item = &record->items[record->count++];
	snprintf(item->name, sizeof item->name, "%s", name);
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(item->text, sizeof item->text, format, arguments);
	va_end(arguments);
}

/// A checksum of a /proc file, since cmdline and environ hold NUL bytes.
static void add_file(struct record *record, const char *path)
{
	unsigned char bytes[4096];
	uint64_t sum = 1469598103934665603u;
	ssize_t got, total = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	while (fd >= 0 && (got = read(fd, bytes, sizeof bytes)) > 0) {
		for (ssize_t i = 0; i < got; i++)
			sum = (sum ^ bytes[i]) * 1099511628211u;
		total += got;
	}
	if (fd >= 0)
		close(fd);
	add(record, path, "%zd bytes, sum %016lx", total, sum);
}

static void add_link(struct record *record, const char *path)
{
	char target[400];
	ssize_t got = readlink(path, target, sizeof target - 1);
	target[got < 0 ? 0 : got] = 0;
	add(record, path, "%s", target);
}

static void add_limits(struct record *record)
{
	static const struct {
		int which;
		const char *name;
	} limits[] = {{RLIMIT_NOFILE, "RLIMIT_NOFILE"}, {RLIMIT_CORE, "RLIMIT_CORE"}, {RLIMIT_STACK, "RLIMIT_STACK"},
		      {RLIMIT_FSIZE, "RLIMIT_FSIZE"}, {RLIMIT_AS, "RLIMIT_AS"}, {RLIMIT_MEMLOCK, "RLIMIT_MEMLOCK"},
		      {RLIMIT_NICE, "RLIMIT_NICE"}, {RLIMIT_SIGPENDING, "RLIMIT_SIGPENDING"}};
	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
		struct rlimit limit;
		getrlimit(limits[i].which, &limit);
		add(record, limits[i].name, "%ld/%ld", (long)limit.rlim_cur, (long)limit.rlim_max);
	}
}

static void take_process(struct record *record)
{
	mode_t mask = umask(0);
	umask(mask);
	add(record, "pid", "%d", getpid());
	add(record, "main thread", "%d", gettid());
	add(record, "ppid", "%d", getppid());
	add(record, "session", "%d", getsid(0));
	add(record, "process group", "%d", getpgid(0));
	add(record, "users", "%d %d", getuid(), geteuid());
	add(record, "groups", "%d %d, %d more", getgid(), getegid(), getgroups(0, NULL));
	add(record, "umask", "%03o", mask);
	add(record, "dumpable", "%d", prctl(PR_GET_DUMPABLE));
	add(record, "no_new_privs", "%d", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
	add(record, "seccomp", "%d", prctl(PR_GET_SECCOMP));
	add(record, "child subreaper", "%d", ({ int flag = 0; prctl(PR_GET_CHILD_SUBREAPER, &flag); flag; }));
	add_limits(record);
	add_link(record, "/proc/self/cwd");
	add_link(record, "/proc/self/exe");
	add_file(record, "/proc/self/cmdline");
	add_file(record, "/proc/self/environ");
	add_file(record, "/proc/self/auxv");
	add_file(record, "/proc/self/personality");
	add_file(record, "/proc/self/coredump_filter");
}

static void take_thread(struct record *record)
{
	char name[17] = "";
	struct sched_param parameters;
	cpu_set_t cpus;
	prctl(PR_GET_NAME, name);
	sched_getaffinity(0, sizeof cpus, &cpus);
	sched_getparam(0, &parameters);
	add(record, "name", "%s", name);
	add(record, "tid", "%d", gettid());
	add(record, "nice", "%d", getpriority(PRIO_PROCESS, (id_t)gettid()));
	add(record, "policy", "%d priority %d", sched_getscheduler(0), parameters.sched_priority);
	add(record, "processors", "%d, first one %s", CPU_COUNT(&cpus), CPU_ISSET(0, &cpus) ? "allowed" : "not allowed");
	add(record, "io priority", "%ld", syscall(SYS_ioprio_get, 1, 0));
	add(record, "timer slack", "%d ns", prctl(PR_GET_TIMERSLACK));
	add(record, "robust list", "%s", ({ void *head = NULL; size_t bytes = 0;
		syscall(SYS_get_robust_list, 0, &head, &bytes); head != NULL ? "registered" : "none"; }));
}

static void distinguish(intptr_t self)
{
	char name[16];
	cpu_set_t first;
	snprintf(name, sizeof name, "probe-thread-%d", (int)self);
	prctl(PR_SET_NAME, name);
	setpriority(PRIO_PROCESS, (id_t)gettid(), 5 + (int)self);
	if (self == 1)
		sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0});
	if (self == 2) {
		CPU_ZERO(&first);
		CPU_SET(0, &first);
		sched_setaffinity(0, sizeof first, &first);
		prctl(PR_SET_TIMERSLACK, 200000);
		syscall(SYS_ioprio_set, 1, 0, 2 << 13 | 6); // best effort, level 6
	}
}

static void *live(void *argument)
{
	intptr_t self = (intptr_t)argument;
	distinguish(self);
	for (int round = 0; round < 2; round++) {
		while (phase < round)
			probe_sleep_ms(2);
		take_thread(&thread_records[round][self]);
		__atomic_add_fetch(&done[round], 1, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

static void compare(const char *of, const struct record *before, const struct record *after)
{
	for (int i = 0; i < before->count; i++) {
		bool same = strcmp(before->items[i].text, after->items[i].text) == 0;
		probe_check(same, "%s %s", of, before->items[i].name);
		if (!same)
			printf("note: before: %s, after: %s\n", before->items[i].text, after->items[i].text);
	}
}

static void lower(int which, rlim_t most)
{
	struct rlimit limit;
	getrlimit(which, &limit);
	limit.rlim_cur = most < limit.rlim_max ? most : limit.rlim_max;
	setrlimit(which, &limit);
}

int main(int argc, char **argv)
{
	static struct record before, after;
	probe_begin(argc, argv);
	if (chdir(probe_dir) != 0 || (mkdir("probe-identity", 0755) != 0 && errno != EEXIST) || chdir("probe-identity") != 0)
		probe_die("%s/probe-identity", probe_dir);
	umask(027);
	lower(RLIMIT_NOFILE, 200);
	lower(RLIMIT_STACK, 4 << 20);
	lower(RLIMIT_FSIZE, 1 << 30);
	prctl(PR_SET_NAME, "probe-main");
	setpriority(PRIO_PROCESS, 0, 3);
	for (intptr_t i = 1; i < THREADS; i++)
		probe_thread(live, (void *)i);
	while (done[0] < THREADS - 1)
		probe_sleep_ms(2);
	take_thread(&thread_records[0][0]);
	take_process(&before);
	probe_ready();
	probe_wait();
	take_process(&after);
	take_thread(&thread_records[1][0]);
	phase = 1;
	while (done[1] < THREADS - 1)
		probe_sleep_ms(2);
	compare("process", &before, &after);
	for (int i = 0; i < THREADS; i++) {
		char of[16];
		snprintf(of, sizeof of, "thread %d", i);
		compare(of, &thread_records[0][i], &thread_records[1][i]);
	}
	int fd = open("made-after", O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
	struct stat made;
	probe_check(fd >= 0 && fstat(fd, &made) == 0 && (made.st_mode & 0777) == 0640, "file made in the directory with the umask");
	return probe_end();
}
