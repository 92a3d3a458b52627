// Many threads (--threads N, default 400), each with a thread-local value and a pattern on its own stack; half of
// them compute, half of them are blocked. `--busy N` sets how many compute (0: all are blocked, for measurements).
#include "probe.h"

enum { WORDS = 256, THREADS_MAX = 4096, BURST_ROUNDS = 400 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static int threads = 400, busy = 200, waiting;
static volatile bool go;
static volatile uint64_t rounds[THREADS_MAX];
static uint8_t intact[THREADS_MAX];
static __thread uint64_t local_value;
static __thread char local_text[32] = "initialised";

static void block_until_go(void)
{
	pthread_mutex_lock(&mutex);
	waiting++;
	while (!go)
		pthread_cond_wait(&wake, &mutex);
	pthread_mutex_unlock(&mutex);
}

/// Bursts of computing with short rests, so that 200 of them leave some time to others on a small machine.
static void compute_until_go(intptr_t self)
{
	uint64_t value = (uint64_t)self;
	while (!go) {
		for (int i = 0; i < BURST_ROUNDS; i++)
			value = probe_pattern(value, (uint64_t)i);
		rounds[self] += value != 0;
		probe_sleep_ms(20);
	}
}

static void *live(void *argument)
{
	intptr_t self = (intptr_t)argument;
	volatile uint64_t pattern[WORDS];
	for (int i = 0; i < WORDS; i++)
		pattern[i] = probe_pattern((uint64_t)self, (uint64_t)i);
	pid_t tid = gettid();
	local_value = probe_pattern((uint64_t)self, 4711);
	snprintf(local_text, sizeof local_text, "thread %d", (int)self);
	if (self < busy)
		compute_until_go(self);
	else
		block_until_go();
	char expected_text[32];
	snprintf(expected_text, sizeof expected_text, "thread %d", (int)self);
	bool right = local_value == probe_pattern((uint64_t)self, 4711) && strcmp(local_text, expected_text) == 0 && gettid() == tid;
	for (int i = 0; i < WORDS; i++)
		right = right && pattern[i] == probe_pattern((uint64_t)self, (uint64_t)i);
	intact[self] = right;
	return NULL;
}

static int number(int argc, char **argv, const char *name, int otherwise, int most)
{
	const char *text = probe_option(argc, argv, name, NULL);
	int value = text == NULL ? otherwise : atoi(text);
	if (value < 0 || value > most)
		probe_die("%s: 0 to %d", name, most);
	return value;
}

int main(int argc, char **argv)
{
	static pthread_t handles[THREADS_MAX];
	probe_begin(argc, argv);
	threads = number(argc, argv, "--threads", threads, THREADS_MAX);
	busy = number(argc, argv, "--busy", threads / 2, threads);
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 * 1024);
	for (intptr_t i = 0; i < threads; i++) {
		errno = pthread_create(&handles[i], &small, live, (void *)i);
		if (errno != 0)
			probe_die("thread %d", (int)i);
	}
	for (int ready = 0; ready < threads;) {
		probe_sleep_ms(2);
		pthread_mutex_lock(&mutex);
		ready = waiting;
		pthread_mutex_unlock(&mutex);
		for (int i = 0; i < busy; i++)
			ready += rounds[i] > 0;
	}
	probe_ready();
	probe_wait();
	uint64_t before = 0, after = 0;
	for (int i = 0; i < busy; i++)
		before += rounds[i];
	probe_sleep_ms(300);
	for (int i = 0; i < busy; i++)
		after += rounds[i];
	probe_check(busy == 0 || after > before, "computing threads go on");
	pthread_mutex_lock(&mutex);
	go = true;
	pthread_cond_broadcast(&wake);
	pthread_mutex_unlock(&mutex);
	int right = 0;
	for (int i = 0; i < threads; i++) {
		pthread_join(handles[i], NULL);
		right += intact[i];
	}
	printf("threads whole: %d\n", right);
	probe_check(right == threads, "all threads");
	return probe_end();
}
