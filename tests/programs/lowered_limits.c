// Limits that were lowered below what the program already has: a start has to come by that before it limits itself.
#include "probe.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { LOCKED_BYTES = 1 << 20, SHARED_BYTES = 4 << 20, THREADS = 4, SIGNALS = 4 };

static int which[] = {RLIMIT_MEMLOCK, RLIMIT_FSIZE, RLIMIT_AS, RLIMIT_NOFILE, RLIMIT_CPU, RLIMIT_SIGPENDING};

static void lower(int resource, rlim_t most)
{
	struct rlimit limit = {most, most};
	if (setrlimit(resource, &limit) != 0)
		probe_die("setrlimit %d", resource);
}

static rlim_t address_space(void)
{
	unsigned long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	if (file == NULL || fscanf(file, "%lu", &pages) != 1)
		probe_die("/proc/self/statm");
	fclose(file);
	return pages * 4096;
}

static void *live(void *unused)
{
	(void)unused;
	for (;;)
		pause();
	return NULL;
}

/// How many of the signals wait. They are taken.
static int taken(int signal)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, signal);
	int count = 0;
	for (siginfo_t info; sigtimedwait(&set, &info, &(struct timespec){0, 0}) == signal; count++)
		if (info.si_value.sival_int != count)
			probe_check(false, "value of signal %d", signal);
	return count;
}

static void *takes(void *unused)
{
	(void)unused;
	probe_wait();
	return (void *)(intptr_t)taken(SIGRTMIN + 1);
}

/// Queues signals for the process and for a thread, and makes timers, for which the kernel keeps signals ready.
static pthread_t queue(void)
{
	pthread_t thread = probe_thread(takes, NULL);
	for (int n = 0; n < SIGNALS; n++) {
		union sigval value = {.sival_int = n};
		timer_t timer;
		if (sigqueue(getpid(), SIGRTMIN, value) != 0 || pthread_sigqueue(thread, SIGRTMIN + 1, value) != 0 ||
		    timer_create(CLOCK_MONOTONIC, NULL, &timer) != 0)
			probe_die("sigqueue");
	}
	return thread;
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN), sigaddset(&set, SIGRTMIN + 1);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	char *locked = mmap(NULL, LOCKED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *shared = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (locked == MAP_FAILED || shared == MAP_FAILED || mlock(locked, LOCKED_BYTES) != 0)
		probe_die("memory");
	memset(shared, 5, SHARED_BYTES);
	for (int n = 0; n < THREADS; n++)
		probe_thread(live, NULL);
	int high = fcntl(0, F_DUPFD_CLOEXEC, 500);
	if (high < 0)
		probe_die("F_DUPFD_CLOEXEC");
	pthread_t thread = queue();
	probe_ready();
	lower(RLIMIT_CPU, 60);
	lower(RLIMIT_SIGPENDING, 1);
	lower(RLIMIT_MEMLOCK, 4096);
	lower(RLIMIT_FSIZE, 1 << 20);
	lower(RLIMIT_NOFILE, 64);
	lower(RLIMIT_AS, address_space() + (1 << 20));
	probe_wait();
	for (size_t n = 0; n < sizeof which / sizeof *which; n++) {
		struct rlimit limit;
		getrlimit(which[n], &limit);
		// How much it has mapped may differ a little.
		bool is_size = which[n] == RLIMIT_AS;
		printf("limit %d: %lu of %lu\n", which[n], is_size ? 0 : limit.rlim_cur, is_size ? 0 : limit.rlim_max);
	}
	probe_check(fcntl(high, F_GETFD) == FD_CLOEXEC, "a descriptor above the limit");
	probe_check(shared[0] == 5 && shared[SHARED_BYTES - 1] == 5, "shared memory");
	void *count = NULL;
	pthread_join(thread, &count);
	printf("signals: %d of the process, %d of a thread\n", taken(SIGRTMIN), (int)(intptr_t)count);
	return probe_end();
}
