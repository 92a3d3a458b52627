// Guard pages (MADV_GUARD_INSTALL): below a thread's stack, as glibc 2.42 makes them, among data, in views of files and in shared memory, some
// of them removed again, and some that a thread makes and removes all the time. Each must fault, and each page beside one have what it had.
#include "probe.h"

#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103, PAGE = 4096, PAGES = 64, STACK = 1 << 20, CHANGING = 32 };

enum kind { DATA, GUARD, EMPTY };

struct region {
	const char *name;
	char *start;
	enum kind kinds[PAGES];
};

static sigjmp_buf back;
static volatile bool expects_fault;
static char *stack;
static char *changing;
static enum kind changed[CHANGING];
static atomic_bool enough;

static void on_fault(int number)
{
	if (!expects_fault) {
		signal(number, SIG_DFL);
		raise(number);
	}
	siglongjmp(back, 1);
}

static bool faults(const volatile char *at)
{
	expects_fault = true;
	bool faulted = sigsetjmp(back, 1) != 0;
	if (!faulted)
		(void)*at;
	expects_fault = false;
	return faulted;
}

static void advise(char *at, size_t bytes, int advice)
{
	if (madvise(at, bytes, advice) != 0)
		probe_die("madvise %d", advice);
}

static char *map(size_t bytes, int flags, int fd)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (memory == MAP_FAILED)
		probe_die("mmap");
	return memory;
}

static void fill(struct region *region, const char *name, char *start)
{
	region->name = name;
	region->start = start;
	for (int page = 0; page < PAGES; page++) {
		memset(start + page * PAGE, page + 1, PAGE);
		region->kinds[page] = page % 7 == 3 || page == PAGES - 1 ? GUARD : DATA;
		if (region->kinds[page] == GUARD)
			advise(start + page * PAGE, PAGE, GUARD_INSTALL);
	}
}

static void remove_some(struct region *region)
{
	for (int page = 3; page < PAGES; page += 14) {
		advise(region->start + page * PAGE, PAGE, GUARD_REMOVE);
		region->kinds[page] = EMPTY;
	}
}

static bool holds(const char *start, int page, enum kind kind)
{
	const char *at = start + (long)page * PAGE;
	if (kind == GUARD)
		return faults(at) && faults(at + PAGE - 1);
	char expected = kind == DATA ? (char)(page + 1) : 0;
	return !faults(at) && at[0] == expected && at[PAGE - 1] == expected;
}

static void check(const struct region *region)
{
	int wrong = 0, guards = 0;
	for (int page = 0; page < PAGES; page++) {
		guards += region->kinds[page] == GUARD;
		wrong += !holds(region->start, page, region->kinds[page]);
	}
	probe_check(wrong == 0, "%s: all of %d pages, %d guards", region->name, PAGES, guards);
}

static void *change(void *unused)
{
	(void)unused;
	for (unsigned n = 0; !enough; n++) {
		unsigned page = n * 13 % CHANGING;
		char *at = changing + (size_t)page * PAGE;
		if (changed[page] == GUARD) {
			advise(at, PAGE, GUARD_REMOVE);
			memset(at, page + 1, PAGE);
			changed[page] = DATA;
		} else {
			advise(at, PAGE, GUARD_INSTALL);
			changed[page] = GUARD;
		}
		usleep(500);
	}
	return NULL;
}

static void *stay(void *unused)
{
	(void)unused;
	for (;;)
		pause();
	return NULL;
}

/// What pthread_create of glibc 2.42 does: the lowest page of a thread's stack is its guard.
static void thread_with_guard(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	stack = map(STACK, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1);
	advise(stack, PAGE, GUARD_INSTALL);
	pthread_attr_init(&attributes);
	if (pthread_attr_setstack(&attributes, stack, STACK) != 0 || pthread_create(&thread, &attributes, stay, NULL) != 0)
		probe_die("a thread with a stack of its own");
}

static char *file_view(int flags, const char *name)
{
	char path[200];
	snprintf(path, sizeof path, "%s/%s", probe_dir, name);
	int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0644);
	if (fd < 0 || ftruncate(fd, PAGES * PAGE) != 0)
		probe_die("%s", path);
	char *view = map(PAGES * PAGE, flags, fd);
	close(fd);
	return view;
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	thread_with_guard();
	struct region regions[7];
	fill(&regions[0], "private memory", map(PAGES * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1));
	fill(&regions[1], "memory with guards removed", map(PAGES * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1));
	fill(&regions[2], "memory kept from forks", map(PAGES * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1));
	fill(&regions[3], "private view of a file", file_view(MAP_PRIVATE, "guards-private"));
	fill(&regions[4], "shared view of a file", file_view(MAP_SHARED, "guards-shared"));
	fill(&regions[5], "shared memory", map(PAGES * PAGE, MAP_SHARED | MAP_ANONYMOUS, -1));
	fill(&regions[6], "locked memory", map(PAGES * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1));
	// It is locked, although the guards in it cannot be brought in.
	if (mlock(regions[6].start, PAGES * PAGE) != -1 || errno != ENOMEM)
		probe_die("mlock of memory with guards in it");
	remove_some(&regions[1]);
	advise(regions[2].start, PAGES * PAGE, MADV_DONTFORK);
	char *unreadable = map(3 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	memset(unreadable, 'u', 3 * PAGE);
	advise(unreadable + PAGE, PAGE, GUARD_INSTALL);
	mprotect(unreadable, 3 * PAGE, PROT_NONE);
	changing = map(CHANGING * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	for (int page = 0; page < CHANGING; page++)
		memset(changing + page * PAGE, page + 1, PAGE);
	pthread_t changer = probe_thread(change, NULL);
	probe_ready();
	probe_wait();
	enough = true;
	pthread_join(changer, NULL);
	for (size_t n = 0; n < sizeof regions / sizeof *regions; n++)
		check(&regions[n]);
	int wrong = 0;
	for (int page = 0; page < CHANGING; page++)
		wrong += !holds(changing, page, changed[page]);
	probe_check(wrong == 0, "pages that became guards and data all the time");
	probe_check(faults(stack) && faults(stack + PAGE - 1) && !faults(stack + PAGE), "the guard of a thread's stack");
	mprotect(unreadable, 3 * PAGE, PROT_READ);
	probe_check(unreadable[0] == 'u' && faults(unreadable + PAGE) && unreadable[2 * PAGE] == 'u', "memory without access");
	// They are the program's own: it can remove them, and make more.
	advise(regions[0].start + 3 * PAGE, PAGE, GUARD_REMOVE);
	advise(regions[0].start + 4 * PAGE, PAGE, GUARD_INSTALL);
	probe_check(regions[0].start[3 * PAGE] == 0 && faults(regions[0].start + 4 * PAGE), "guards removed and made");
	return probe_end();
}
