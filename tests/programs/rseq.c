// Restartable sequences: glibc's registered area must go on naming the processor that each thread runs on.
#include "probe.h"

#include <sched.h>
#include <sys/rseq.h>
#include <sys/syscall.h>

enum { THREADS = 3, ROUNDS = 200000, BUSY_ROUNDS = 4000 };

static volatile bool go;
static int mismatches[THREADS], stale[THREADS];

static uint32_t area_cpu(void)
{
	const volatile struct rseq *area = (const void *)((const char *)__builtin_thread_pointer() + __rseq_offset);
	return area->cpu_id;
}

// The system call, since sched_getcpu() itself reads the area.
static uint32_t kernel_cpu(void)
{
	unsigned cpu = 0;
	syscall(SYS_getcpu, &cpu, NULL, NULL);
	return cpu;
}

static int count_mismatches(int rounds)
{
	int count = 0;
	for (int i = 0; i < rounds; i++) {
		uint32_t before = kernel_cpu(), area = area_cpu(), after = kernel_cpu();
		// Unequal around the read: it migrated, nothing can be said.
		count += before == after && area != before && area_cpu() != kernel_cpu();
	}
	return count;
}

/// Moves the thread to each allowed processor; the area must name it at once.
static int count_stale(void)
{
	cpu_set_t allowed, one;
	int count = 0;
	sched_getaffinity(0, sizeof allowed, &allowed);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &allowed))
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		if (sched_setaffinity(0, sizeof one, &one) == 0)
			count += area_cpu() != (uint32_t)cpu;
	}
	sched_setaffinity(0, sizeof allowed, &allowed);
	return count;
}

static void *check(void *argument)
{
	intptr_t self = (intptr_t)argument;
	// One sleeps and one is mostly in the program, but no more than half of the time: seven of these are there at once.
	for (bool busy = self != 1; !go; probe_sleep_ms(1))
		if (busy)
			count_mismatches(BUSY_ROUNDS);
	mismatches[self] = count_mismatches(ROUNDS);
	stale[self] = count_stale();
	return NULL;
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	bool registered = __rseq_size > 0 && count_mismatches(1000) == 0;
	pthread_t threads[THREADS];
	for (intptr_t i = 1; i < THREADS; i++)
		threads[i] = probe_thread(check, (void *)i);
	probe_ready();
	probe_wait();
	if (!registered)
		puts("note: glibc registered no rseq area here, nothing was checked");
	go = true;
	if (registered)
		check((void *)0);
	for (int i = 0; i < THREADS; i++) {
		if (i > 0)
			pthread_join(threads[i], NULL);
		probe_check(!registered || mismatches[i] == 0, "thread %d: cpu_id follows the processor", i);
		probe_check(!registered || stale[i] == 0, "thread %d: cpu_id after a migration", i);
	}
	return probe_end();
}
