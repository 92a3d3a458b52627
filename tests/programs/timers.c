// Timers of each kind: interval timers, POSIX timers with their ids, and timer descriptors. Each must be there,
// keep its interval and fire again.
#include "probe.h"

#include <signal.h>
#include <sys/time.h>
#include <sys/timerfd.h>

enum { LATE_MS = 60000, FIRES_MS = 20000, HOUR_S = 3600 };

static volatile int fired[4]; // SIGALRM, SIGVTALRM, SIGPROF, the POSIX timer with a signal
static volatile int fired_in_thread, fired_elsewhere, wrong_value;
static volatile pid_t thread_tid;

static void on_interval(int number)
{
	fired[number == SIGALRM ? 0 : number == SIGVTALRM ? 1 : 2]++;
}

static void on_timer(int number, siginfo_t *info, void *unused)
{
	(void)unused;
	if (number == SIGRTMIN) {
		fired[3]++;
		wrong_value += info->si_value.sival_int != 4711 || info->si_code != SI_TIMER;
	} else if (gettid() == thread_tid) {
		fired_in_thread++;
	} else {
		fired_elsewhere++;
	}
}

static void *stay(void *unused)
{
	(void)unused;
	thread_tid = gettid();
	for (;;)
		pause();
	return NULL;
}

static timer_t create_timer(int notify, int number, int value, pid_t tid)
{
	struct sigevent event = {.sigev_notify = notify, .sigev_signo = number, .sigev_value.sival_int = value};
	event._sigev_un._tid = tid;
	timer_t id;
	if (timer_create(CLOCK_MONOTONIC, &event, &id) != 0)
		probe_die("timer_create");
	return id;
}

static void arm(timer_t id, long first_s, long interval_ms)
{
	struct itimerspec times = {{interval_ms / 1000, interval_ms % 1000 * 1000000}, {first_s, first_s ? 0 : interval_ms * 1000000}};
	if (timer_settime(id, 0, &times, NULL) != 0)
		probe_die("timer_settime");
}

static int timer_descriptor(clockid_t clock, long first_s, long interval_ms, int flags)
{
	struct itimerspec times = {{interval_ms / 1000, interval_ms % 1000 * 1000000}, {first_s, first_s ? 0 : 1000000}};
	if (flags & TFD_TIMER_ABSTIME) {
		struct timespec now;
		clock_gettime(clock, &now);
		times.it_value.tv_sec += now.tv_sec;
	}
	int fd = timerfd_create(clock, TFD_NONBLOCK | TFD_CLOEXEC);
	if (fd < 0 || timerfd_settime(fd, flags, &times, NULL) != 0)
		probe_die("timerfd");
	return fd;
}

/// Burns processor time until a counter moves by 3, at most FIRES_MS. Most of it is the program's own time, which a system call alone takes too
/// little of: ITIMER_VIRTUAL wants 60 ms of it, on a busy machine, too.
static bool fires_again(const volatile int *counter)
{
	int before = *counter;
	int64_t end_ms = probe_now_ms(CLOCK_MONOTONIC) + FIRES_MS;
	while (*counter < before + 3 && probe_now_ms(CLOCK_MONOTONIC) < end_ms) {
		for (volatile int spun = 0; spun < 20000; spun++)
			;
		probe_may_go();
	}
	return *counter >= before + 3;
}

/// Intervals of 20 and 30 ms take at least that long on average; late ones are the machine's load.
static bool paced(const volatile int *counter, int interval_ms)
{
	int before = *counter;
	int64_t start_ms = probe_now_ms(CLOCK_MONOTONIC);
	probe_sleep_ms(10 * interval_ms);
	int64_t most = (probe_now_ms(CLOCK_MONOTONIC) - start_ms) / interval_ms + 2;
	return *counter - before >= 1 && *counter - before <= most;
}

/// Whether about an hour, less what passed since the start, is left.
static bool remains(const struct itimerspec *times, int64_t started_ms)
{
	int64_t left_ms = (int64_t)times->it_value.tv_sec * 1000 + times->it_value.tv_nsec / 1000000;
	int64_t expected_ms = HOUR_S * 1000LL - (probe_now_ms(CLOCK_MONOTONIC) - started_ms);
	return left_ms > expected_ms - LATE_MS && left_ms < expected_ms + LATE_MS;
}

static bool reads(int fd, bool expected)
{
	uint64_t expirations = 0;
	ssize_t got = read(fd, &expirations, sizeof expirations);
	return expected ? got == sizeof expirations && expirations >= 1 : got == -1 && errno == EAGAIN;
}

static void check_interval_timers(void)
{
	const int which[3] = {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF};
	const char *const names[3] = {"ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"};
	for (int i = 0; i < 3; i++) {
		struct itimerval now;
		getitimer(which[i], &now);
		printf("%s interval %ld us\n", names[i], now.it_interval.tv_sec * 1000000L + now.it_interval.tv_usec);
		probe_check(fires_again(&fired[i]), "%s fires", names[i]);
	}
	probe_check(paced(&fired[0], 30), "ITIMER_REAL pace");
}

static void check_timer(const char *name, timer_t id, const volatile int *counter)
{
	struct itimerspec now;
	probe_check(timer_gettime(id, &now) == 0, "%s id %d known", name, (int)(intptr_t)id);
	printf("%s interval %ld ns\n", name, now.it_interval.tv_nsec);
	if (counter != NULL) {
		probe_check(fires_again(counter), "%s fires", name);
		probe_check(paced(counter, 20), "%s pace", name);
	}
}

static void check_descriptors(const int *descriptors, int64_t started_ms)
{
	static const char *const names[4] = {"MONOTONIC periodic", "MONOTONIC in an hour", "REALTIME absolute", "MONOTONIC expired, unread"};
	for (int i = 0; i < 4; i++) {
		struct itimerspec now;
		bool periodic = i == 0, far = i == 1 || i == 2;
		timerfd_gettime(descriptors[i], &now);
		printf("timerfd %s interval %ld ns\n", names[i], now.it_interval.tv_nsec);
		probe_check(reads(descriptors[i], !far), "timerfd %s readable", names[i]);
		if (far)
			probe_check(remains(&now, started_ms), "timerfd %s remaining time", names[i]);
		if (periodic) {
			probe_sleep_ms(100);
			probe_check(reads(descriptors[i], true), "timerfd %s fires again", names[i]);
		} else {
			probe_check(reads(descriptors[i], false), "timerfd %s fires once only", names[i]);
		}
	}
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	struct sigaction interval_action = {.sa_handler = on_interval, .sa_flags = SA_RESTART};
	struct sigaction timer_action = {.sa_sigaction = on_timer, .sa_flags = SA_SIGINFO | SA_RESTART};
	sigaction(SIGALRM, &interval_action, NULL);
	sigaction(SIGVTALRM, &interval_action, NULL);
	sigaction(SIGPROF, &interval_action, NULL);
	sigaction(SIGRTMIN, &timer_action, NULL);
	sigaction(SIGRTMIN + 1, &timer_action, NULL);
	probe_thread(stay, NULL);
	while (thread_tid == 0)
		probe_sleep_ms(1);
	int64_t started_ms = probe_now_ms(CLOCK_MONOTONIC);
	// Deleted ones in between, so that ids have gaps.
	timer_t dropped_first = create_timer(SIGEV_NONE, 0, 0, 0);
	timer_t signalling = create_timer(SIGEV_SIGNAL, SIGRTMIN, 4711, 0);
	timer_t dropped_second = create_timer(SIGEV_NONE, 0, 0, 0);
	timer_t to_thread = create_timer(SIGEV_THREAD_ID, SIGRTMIN + 1, 0, thread_tid);
	timer_t silent = create_timer(SIGEV_NONE, 0, 0, 0);
	timer_t disarmed = create_timer(SIGEV_SIGNAL, SIGRTMIN, 0, 0);
	timer_delete(dropped_first);
	timer_delete(dropped_second);
	arm(signalling, 0, 20);
	arm(to_thread, 0, 20);
	arm(silent, HOUR_S, 0);
	int descriptors[4] = {
		timer_descriptor(CLOCK_MONOTONIC, 0, 20, 0),
		timer_descriptor(CLOCK_MONOTONIC, HOUR_S, 0, 0),
		timer_descriptor(CLOCK_REALTIME, HOUR_S, 0, TFD_TIMER_ABSTIME),
		timer_descriptor(CLOCK_MONOTONIC, 0, 0, 0),
	};
	setitimer(ITIMER_REAL, &(struct itimerval){{0, 30000}, {0, 30000}}, NULL);
	setitimer(ITIMER_VIRTUAL, &(struct itimerval){{0, 20000}, {0, 20000}}, NULL);
	setitimer(ITIMER_PROF, &(struct itimerval){{0, 20000}, {0, 20000}}, NULL);
	probe_sleep_ms(50);
	probe_ready();
	probe_wait();
	check_interval_timers();
	check_timer("SIGEV_SIGNAL", signalling, &fired[3]);
	probe_check(wrong_value == 0, "SIGEV_SIGNAL value");
	check_timer("SIGEV_THREAD_ID", to_thread, &fired_in_thread);
	probe_check(fired_elsewhere == 0, "SIGEV_THREAD_ID thread");
	check_timer("SIGEV_NONE", silent, NULL);
	struct itimerspec now;
	timer_gettime(silent, &now);
	probe_check(remains(&now, started_ms), "SIGEV_NONE remaining time");
	timer_gettime(disarmed, &now);
	probe_check(now.it_value.tv_sec == 0 && now.it_value.tv_nsec == 0, "disarmed timer stays so");
	probe_check(timer_gettime(dropped_first, &now) == -1 && timer_gettime(dropped_second, &now) == -1, "deleted ids unknown");
	create_timer(SIGEV_NONE, 0, 0, 0);
	check_descriptors(descriptors, started_ms);
	return probe_end();
}
