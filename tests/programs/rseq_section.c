// A thread that is stopped inside a restartable sequence: it must leave it through its abort handler, never go on in it elsewhere.
#include "probe.h"

#include <sched.h>
#include <sys/rseq.h>

static volatile bool leave;
static volatile int moved, rounds;

enum result { LEFT, ABORTED, MOVED };

/// Stays in one restartable sequence until it may leave. glibc has registered the area, with RSEQ_SIG before abort handlers.
static enum result stay(struct rseq *area)
{
	__asm__ goto(".pushsection __rseq_cs, \"aw\"\n"
		     ".balign 32\n"
		     "3:\n"
		     ".long 0, 0\n"
		     ".quad 1f, 2f - 1f, 4f\n"
		     ".popsection\n"
		     "leaq 3b(%%rip), %%rax\n"
		     "movq %%rax, %[section]\n"
		     "1:\n"
		     "movl %[cpu], %%ecx\n"
		     "5:\n"
		     "movl %[cpu], %%eax\n"
		     "cmpl %%ecx, %%eax\n"
		     "jne %l[elsewhere]\n"
		     "cmpb $0, %[leave]\n"
		     "je 5b\n"
		     "2:\n"
		     ".pushsection __rseq_failure, \"ax\"\n"
		     ".byte 0x0f, 0xb9, 0x3d\n"
		     ".long 0x53053053\n"
		     "4:\n"
		     "jmp %l[aborted]\n"
		     ".popsection\n"
		     :
		     : [section] "m"(area->rseq_cs), [cpu] "m"(area->cpu_id), [leave] "m"(leave)
		     : "memory", "cc", "rax", "rcx"
		     : aborted, elsewhere);
	return LEFT;
aborted:
	return ABORTED;
elsewhere:
	return MOVED;
}

static void *worker(void *unused)
{
	(void)unused;
	struct rseq *area = (void *)((char *)__builtin_thread_pointer() + __rseq_offset);
	while (!leave) {
		rounds++;
		moved += stay(area) == MOVED;
	}
	return NULL;
}

/// Sends the thread to each processor that it may use, some times over.
static void chase(pthread_t thread)
{
	cpu_set_t allowed, one;
	sched_getaffinity(0, sizeof allowed, &allowed);
	for (int round = 0; round < 10; round++)
		for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
			if (!CPU_ISSET(cpu, &allowed))
				continue;
			CPU_ZERO(&one);
			CPU_SET(cpu, &one);
			pthread_setaffinity_np(thread, sizeof one, &one);
			probe_sleep_ms(2);
		}
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	bool registered = __rseq_size > 0;
	pthread_t thread;
	if (registered)
		thread = probe_thread(worker, NULL);
	probe_ready();
	probe_wait();
	if (registered) {
		chase(thread);
		leave = true;
		pthread_join(thread, NULL);
	} else {
		puts("note: glibc registered no rseq area here, nothing was checked");
	}
	probe_check(moved == 0, "a restartable sequence stays on one processor");
	probe_check(!registered || rounds > 1, "it is left when the thread is moved");
	return probe_end();
}
