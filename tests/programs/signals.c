// Signals: blocked masks per thread, and pending ones, standard and real-time, sent to the process and to threads,
// with their values and in their order.
#include "probe.h"

#include <signal.h>

enum { THREADS = 3, SEEN_MAX = 32 };

struct seen {
	int number, code, value;
	bool from_self;
};

static volatile bool go;
static volatile int blocked_threads;
static pthread_t threads[THREADS];
static __thread struct seen *seen_list;
static __thread int seen_count;
static struct seen seen_by[THREADS + 1][SEEN_MAX];
static int seen_counts[THREADS + 1];
static char masks_before[THREADS + 1][256], masks_after[THREADS + 1][256];

static void on_signal(int number, siginfo_t *info, void *unused)
{
	(void)unused;
	if (seen_list == NULL || seen_count == SEEN_MAX)
		return;
	seen_list[seen_count++] = (struct seen){number, info->si_code, info->si_code == SI_QUEUE ? info->si_value.sival_int : 0,
						info->si_pid == getpid() && info->si_uid == getuid()};
}

/// The signal lines of this thread's /proc status, private and shared pending ones among them.
static void read_masks(char *text, size_t bytes)
{
	char path[64], line[256];
	snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)gettid());
	FILE *status = fopen(path, "re");
	if (status == NULL)
		probe_die("%s", path);
	text[0] = 0;
	while (fgets(line, sizeof line, status) != NULL)
		if (strncmp(line, "Sig", 3) == 0 && strncmp(line, "SigQ", 4) != 0)
			strncat(text, line, bytes - strlen(text) - 1);
	fclose(status);
}

static void receive(int self, const sigset_t *set)
{
	seen_list = seen_by[self];
	// Handlers block everything, so they run one after the other in the order of delivery.
	pthread_sigmask(SIG_UNBLOCK, set, NULL);
	seen_counts[self] = seen_count;
}

static void *wait_for_signals(void *argument)
{
	intptr_t self = (intptr_t)argument;
	sigset_t mine;
	sigemptyset(&mine);
	sigaddset(&mine, SIGUSR2);
	sigaddset(&mine, SIGRTMIN + 2);
	sigaddset(&mine, SIGRTMIN + 3);
	sigaddset(&mine, SIGALRM + (int)self); // SIGTERM, SIGSTKFLT, SIGCHLD: a mask of its own
	pthread_sigmask(SIG_BLOCK, &mine, NULL);
	__atomic_add_fetch(&blocked_threads, 1, __ATOMIC_SEQ_CST);
	while (blocked_threads <= THREADS) // main counts itself in once all are queued
		probe_sleep_ms(1);
	read_masks(masks_before[self], sizeof masks_before[self]);
	__atomic_add_fetch(&blocked_threads, 1, __ATOMIC_SEQ_CST);
	while (!go)
		probe_sleep_ms(2);
	read_masks(masks_after[self], sizeof masks_after[self]);
	receive((int)self, &mine);
	return NULL;
}

static void queue_to_process(int number, int value)
{
	if (sigqueue(getpid(), number, (union sigval){.sival_int = value}) != 0)
		probe_die("sigqueue");
}

static void queue_to_thread(pthread_t thread, int number, int value)
{
	errno = pthread_sigqueue(thread, number, (union sigval){.sival_int = value});
	if (errno != 0)
		probe_die("pthread_sigqueue");
}

static void queue_all(void)
{
	queue_to_process(SIGRTMIN + 5, 52);
	queue_to_process(SIGRTMIN + 4, 41);
	queue_to_process(SIGRTMIN + 5, 51);
	queue_to_process(SIGRTMIN + 4, 42);
	kill(getpid(), SIGUSR1);
	kill(getpid(), SIGUSR1); // a standard signal is pending once only
	queue_to_process(SIGHUP, 1);
	for (int i = 1; i <= THREADS; i++) {
		queue_to_thread(threads[i - 1], SIGRTMIN + 3, i * 10 + 3);
		queue_to_thread(threads[i - 1], SIGRTMIN + 2, i * 10 + 1);
		queue_to_thread(threads[i - 1], SIGRTMIN + 2, i * 10 + 2);
		pthread_kill(threads[i - 1], SIGUSR2);
	}
}

static const char *name_of(int number)
{
	static char name[32];
	if (number < SIGRTMIN)
		snprintf(name, sizeof name, "SIG%s", sigabbrev_np(number));
	else
		snprintf(name, sizeof name, "SIGRTMIN+%d", number - SIGRTMIN);
	return name;
}

static const char *code_name(int code)
{
	return code == SI_QUEUE ? "SI_QUEUE" : code == SI_USER ? "SI_USER" : code == SI_TKILL ? "SI_TKILL" : "other";
}

static void report(int self)
{
	probe_check(strcmp(masks_before[self], masks_after[self]) == 0, "thread %d: masks and pending sets", self);
	fputs(masks_after[self], stdout);
	for (int i = 0; i < seen_counts[self]; i++) {
		const struct seen *seen = &seen_by[self][i];
		printf("thread %d: %s %s value %d sender %s\n", self, name_of(seen->number), code_name(seen->code), seen->value,
		       seen->from_self ? "itself" : "other");
	}
}

/// The rest of the shared queue is taken by waiting for it, without handlers.
static void take_by_waiting(const sigset_t *set)
{
	siginfo_t info;
	struct timespec at_once = {0};
	int number;
	while ((number = sigtimedwait(set, &info, &at_once)) > 0)
		printf("waited: %s %s value %d\n", name_of(number), code_name(info.si_code), info.si_value.sival_int);
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
	sigfillset(&action.sa_mask);
	const int handled[] = {SIGHUP, SIGUSR1, SIGUSR2, SIGRTMIN + 2, SIGRTMIN + 3, SIGRTMIN + 4, SIGRTMIN + 5};
	for (size_t i = 0; i < sizeof handled / sizeof *handled; i++)
		sigaction(handled[i], &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	sigset_t shared, waited;
	sigemptyset(&waited);
	sigaddset(&waited, SIGRTMIN + 5);
	shared = waited;
	sigaddset(&shared, SIGRTMIN + 4);
	sigaddset(&shared, SIGUSR1);
	sigaddset(&shared, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &shared, NULL);
	for (intptr_t i = 1; i <= THREADS; i++)
		threads[i - 1] = probe_thread(wait_for_signals, (void *)i);
	while (blocked_threads < THREADS)
		probe_sleep_ms(1);
	queue_all();
	read_masks(masks_before[0], sizeof masks_before[0]);
	__atomic_add_fetch(&blocked_threads, 1, __ATOMIC_SEQ_CST);
	while (blocked_threads < 2 * THREADS + 1)
		probe_sleep_ms(1);
	probe_ready();
	probe_wait();
	read_masks(masks_after[0], sizeof masks_after[0]);
	go = true;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	take_by_waiting(&waited);
	receive(0, &shared);
	for (int i = 0; i <= THREADS; i++)
		report(i);
	return probe_end();
}
