// What a program and its threads can set of themselves without privileges: prctl, locked memory, files of /proc, the scheduler.
//
// What it finds after the trigger is printed, and must be what it set.
#include "probe.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 8
#endif
enum {
	BYTES = 1 << 16,
	SECURITY_EXEC_RESTRICT = 1 << 8,
	MDWE = 65, GET_MDWE = 66, MERGE = 67, GET_MERGE = 68, TIMER_IDS = 77,
	ARCH_GET_CPUID = 0x1011, ARCH_SET_CPUID = 0x1012,
};

// struct sched_attr, which the C library does not have everywhere.
struct attributes {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t slice, deadline, period;
};

static char *locked, *on_fault, *inaccessible, *droppable, *named;
static volatile sig_atomic_t told;
static int go[2], done[2];

static void on_death(int signal)
{
	(void)signal;
	told = 1;
}

static char *map(int protection, int flags)
{
	char *memory = mmap(NULL, BYTES, protection, flags | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		probe_die("mmap");
	return memory;
}

static void must(long result, const char *what)
{
	if (result < 0)
		probe_die("%s", what);
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	// An autogroup may be changed once in 100 ms, on the whole machine.
	for (int n = 0; n < 100 && write(fd, text, strlen(text)) < 0 && errno == EAGAIN; n++)
		probe_sleep_ms(20);
	if (fd < 0 || close(fd) != 0)
		probe_die("%s", path);
}

static void print_file(const char *path, bool number_is_its_own)
{
	char text[256] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	text[got < 0 ? 0 : got] = 0;
	text[strcspn(text, "\n")] = 0;
	const char *shown = number_is_its_own && strchr(text, ' ') != NULL ? strchr(text, ' ') : text;
	printf("%s: %s\n", path, shown);
	if (fd >= 0)
		close(fd);
}

/// What smaps says of the mapping of an address: its name, and those of its flags that this program chose.
static void print_mapping(const char *what, const char *address)
{
	static const char *const chosen[] = {"lo", "lf", "dp"};
	static char text[1 << 16];
	char line[512];
	FILE *maps = fopen("/proc/self/smaps", "r");
	if (maps == NULL || setvbuf(maps, text, _IOFBF, sizeof text) != 0)
		probe_die("/proc/self/smaps");
	for (bool inside = false; fgets(line, sizeof line, maps) != NULL;) {
		unsigned long start, end;
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2) {
			inside = start <= (unsigned long)address && (unsigned long)address < end;
			if (inside && strchr(line, '[') != NULL)
				printf("%s: name %s", what, strchr(line, '['));
		} else if (inside && strncmp(line, "VmFlags:", 8) == 0) {
			printf("%s: flags", what);
			for (size_t n = 0; n < sizeof chosen / sizeof *chosen; n++)
				if (strstr(line, chosen[n]) != NULL)
					printf(" %s", chosen[n]);
			puts("");
		}
	}
	fclose(maps);
}

/// Memory that is mapped now is locked (EBUSY), and resident unless it is so only once it is touched.
static void print_new_memory(void)
{
	unsigned char resident = 0;
	char *memory = map(PROT_READ, MAP_PRIVATE);
	bool is_locked = msync(memory, 4096, MS_INVALIDATE) != 0 && errno == EBUSY;
	mincore(memory, 4096, &resident);
	printf("new memory: locked %d, resident %d\n", is_locked, resident & 1);
}

static void print_thread(const char *who)
{
	int death = -1, stamp = -1;
	struct attributes scheduled;
	prctl(PR_GET_PDEATHSIG, &death);
	prctl(PR_GET_TSC, &stamp);
	must(syscall(SYS_sched_getattr, 0, &scheduled, sizeof scheduled, 0), "sched_getattr");
	printf("%s: death signal %d, told %d, machine check %d, secure bits %#x, time stamp %d, cpuid %ld\n", who, death,
	       (int)told, prctl(PR_MCE_KILL_GET, 0, 0, 0, 0), (unsigned)prctl(PR_GET_SECUREBITS), stamp,
	       syscall(SYS_arch_prctl, ARCH_GET_CPUID, 0));
	printf("%s: speculation %d %d %d\n", who, prctl(PR_GET_SPECULATION_CTRL, 0, 0, 0, 0),
	       prctl(PR_GET_SPECULATION_CTRL, 1, 0, 0, 0), prctl(PR_GET_SPECULATION_CTRL, 2, 0, 0, 0));
	printf("%s: policy %u, flags %#lx, nice %d, slice %lu ns\n", who, scheduled.policy, (unsigned long)scheduled.flags,
	       scheduled.nice, (unsigned long)scheduled.slice);
}

static void schedule(uint32_t policy, uint64_t flags, int32_t nice, uint64_t slice)
{
	struct attributes wanted = {sizeof wanted, policy, flags, nice, 0, slice, 0, 0};
	must(syscall(SYS_sched_setattr, 0, &wanted, 0), "sched_setattr");
}

/// Without a time stamp counter it may not ask what time it is.
static void *other(void *unused)
{
	(void)unused;
	schedule(SCHED_BATCH, 1 /* SCHED_FLAG_RESET_ON_FORK */, 7, 20000000);
	must(prctl(PR_SET_PDEATHSIG, SIGUSR1), "PR_SET_PDEATHSIG");
	must(prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_LATE, 0, 0), "PR_MCE_KILL");
	must(prctl(PR_SET_TSC, PR_TSC_SIGSEGV), "PR_SET_TSC");
	char byte = 0;
	if (write(done[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 1)
		probe_die("pipe");
	print_thread("other thread");
	if (write(done[1], &byte, 1) != 1)
		probe_die("pipe");
	return NULL;
}

static void set_up(void)
{
	signal(SIGUSR1, on_death);
	signal(SIGUSR2, on_death);
	locked = map(PROT_READ | PROT_WRITE, MAP_PRIVATE);
	on_fault = map(PROT_READ | PROT_WRITE, MAP_PRIVATE);
	inaccessible = map(PROT_NONE, MAP_PRIVATE);
	droppable = map(PROT_READ | PROT_WRITE, MAP_DROPPABLE);
	named = map(PROT_READ | PROT_WRITE, MAP_PRIVATE);
	memset(locked, 7, BYTES);
	must(mlock(locked, BYTES), "mlock");
	must(mlock2(on_fault, BYTES, MLOCK_ONFAULT), "mlock2");
	if (mlock(inaccessible, BYTES) == 0 || errno != ENOMEM)
		probe_die("mlock of what may not be touched");
	if (prctl(0x53564d41 /* PR_SET_VMA */, 0, named, BYTES, "probe's own") != 0)
		puts("note: the kernel has no names of anonymous memory");
	write_file("/proc/self/oom_score_adj", "777");
	write_file("/proc/self/coredump_filter", "0x7f");
	write_file("/proc/self/autogroup", "5");
	must(prctl(PR_SET_CHILD_SUBREAPER, 1), "PR_SET_CHILD_SUBREAPER");
	must(prctl(PR_SET_THP_DISABLE, 1, 2 /* but where it is advised */, 0, 0), "PR_SET_THP_DISABLE");
	must(prctl(TIMER_IDS, 1, 0, 0, 0), "PR_TIMER_CREATE_RESTORE_IDS");
	must(prctl(MERGE, 1, 0, 0, 0), "PR_SET_MEMORY_MERGE");
	must(pipe2(go, O_CLOEXEC), "pipe");
	must(pipe2(done, O_CLOEXEC), "pipe");
	probe_thread(other, NULL);
	char byte;
	if (read(done[0], &byte, 1) != 1)
		probe_die("pipe");
	// A stack is more than may be locked.
	must(mlockall(MCL_FUTURE | MCL_ONFAULT), "mlockall");
	schedule(SCHED_OTHER, 0, 3, 5000000);
	must(prctl(PR_SET_PDEATHSIG, SIGUSR2), "PR_SET_PDEATHSIG");
	must(prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0), "PR_MCE_KILL");
	must(prctl(PR_SET_KEEPCAPS, 1), "PR_SET_KEEPCAPS");
	must(prctl(PR_SET_SECUREBITS, prctl(PR_GET_SECUREBITS) | SECURITY_EXEC_RESTRICT), "PR_SET_SECUREBITS");
	// Where the processor can.
	syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
	prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0);
	must(prctl(MDWE, 3 /* refuse, and let children do it */, 0, 0, 0), "PR_SET_MDWE");
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	set_up();
	probe_ready();
	probe_wait();
	int subreaper = 0;
	prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
	printf("subreaper %d, huge pages off %d, W^X %d, merges %d, timer ids %d\n", subreaper,
	       prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), prctl(GET_MDWE, 0, 0, 0, 0), prctl(GET_MERGE, 0, 0, 0, 0),
	       prctl(TIMER_IDS, 2, 0, 0, 0));
	print_file("/proc/self/oom_score_adj", false);
	print_file("/proc/self/coredump_filter", false);
	print_file("/proc/self/autogroup", true);
	print_mapping("locked", locked);
	print_mapping("locked when touched", on_fault);
	print_mapping("locked and inaccessible", inaccessible);
	print_mapping("droppable", droppable);
	print_mapping("named", named);
	print_new_memory();
	probe_check(locked[0] == 7 && locked[BYTES - 1] == 7, "locked memory");
	print_thread("main thread");
	char byte = 0;
	probe_check(write(go[1], &byte, 1) == 1 && read(done[0], &byte, 1) == 1, "the other thread");
	// Both are refused in every sandbox: copies would be without them.
	printf("landlock: %s\n", syscall(444, NULL, 0, 1) < 0 ? strerrorname_np(errno) : "there");
	printf("memory policy: %s\n", syscall(SYS_set_mempolicy, 4, NULL, 0) < 0 ? strerrorname_np(errno) : "there");
	return probe_end();
}
