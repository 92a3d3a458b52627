// Alternate signal stacks: kept per thread, used by handlers, in use at the moment of the fork, and what saves a
// program from a stack overflow.
#include "probe.h"

#include <setjmp.h>
#include <signal.h>

enum { ALTERNATE_BYTES = 64 * 1024, THREADS = 2 };

struct worker {
	char *alternate;
	volatile bool on_alternate, in_handler, leave_handler, flags_kept, survived;
	volatile bool ready;
	pthread_t thread;
};

static struct worker workers[THREADS];
static volatile bool go;
static __thread struct worker *self;
static __thread sigjmp_buf overflowed;

static bool inside(const struct worker *worker, const void *address)
{
	return (const char *)address >= worker->alternate && (const char *)address < worker->alternate + ALTERNATE_BYTES;
}

static void on_usr1(int number)
{
	(void)number;
	char here;
	self->on_alternate = inside(self, &here);
}

static void on_usr2(int number)
{
	(void)number;
	self->in_handler = true;
	while (!self->leave_handler)
		probe_sleep_ms(2);
}

static void on_segv(int number)
{
	(void)number;
	siglongjmp(overflowed, 1);
}

__attribute__((noinline)) static int recurse(volatile const char *caller, long frames)
{
	if (frames == 0)
		return 0;
	volatile char frame[4096];
	frame[0] = caller[0];
	return recurse(frame, frames - 1) + frame[0];
}

static bool survive_overflow(void)
{
	volatile char start[16] = {1};
	if (sigsetjmp(overflowed, 1) == 0)
		return recurse(start, 1L << 40) < 0; // never gets there
	return true;
}

static void install_alternate(struct worker *worker)
{
	self = worker;
	worker->alternate = malloc(ALTERNATE_BYTES);
	stack_t stack = {.ss_sp = worker->alternate, .ss_size = ALTERNATE_BYTES};
	if (worker->alternate == NULL || sigaltstack(&stack, NULL) != 0)
		probe_die("sigaltstack");
}

static void check_worker(struct worker *worker)
{
	stack_t now;
	sigaltstack(NULL, &now);
	worker->flags_kept = now.ss_sp == worker->alternate && now.ss_size == ALTERNATE_BYTES && now.ss_flags == 0;
	pthread_kill(pthread_self(), SIGUSR1);
	worker->survived = survive_overflow() && survive_overflow();
}

static void *work(void *argument)
{
	install_alternate(argument);
	self->ready = true;
	while (!go)
		probe_sleep_ms(2);
	check_worker(self);
	return NULL;
}

static void handle(int number, void (*handler)(int))
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
	sigemptyset(&action.sa_mask);
	sigaction(number, &action, NULL);
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	handle(SIGUSR1, on_usr1);
	handle(SIGUSR2, on_usr2);
	handle(SIGSEGV, on_segv);
	struct worker main_worker = {0};
	install_alternate(&main_worker);
	for (int i = 0; i < THREADS; i++) {
		workers[i].thread = probe_thread(work, &workers[i]);
		while (!workers[i].ready)
			probe_sleep_ms(1);
	}
	// The second thread is forked while its handler runs on the alternate stack.
	pthread_kill(workers[1].thread, SIGUSR2);
	while (!workers[1].in_handler)
		probe_sleep_ms(1);
	probe_ready();
	probe_wait();
	go = true;
	workers[1].leave_handler = true;
	for (int i = 0; i < THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		probe_check(workers[i].flags_kept, "thread %d: alternate stack kept", i);
		probe_check(workers[i].on_alternate, "thread %d: handler runs on it", i);
		probe_check(workers[i].survived, "thread %d: survives stack overflows", i);
	}
	check_worker(&main_worker);
	probe_check(main_worker.flags_kept && main_worker.on_alternate, "main thread: alternate stack kept and used");
	probe_check(main_worker.survived, "main thread: survives stack overflows");
	return probe_end();
}
