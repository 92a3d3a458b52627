// Timers of the wall clock. Absolute ones are due at their time of day, at once if that passed while a copy waited to be started. Relative ones keep
// what remained of them by the monotonic clock.
#include "probe.h"

#include <poll.h>
#include <signal.h>
#include <sys/timerfd.h>

enum { SOON_MS = 1000, LATER_MS = 7000, LATE_MAX_MS = 600, HOUR_MS = 3600 * 1000 };

struct wall {
	const char *name;
	int64_t due_ms; // 0: relative, an hour from the start
	int64_t interval_ms;
	int flags; // beside absolute
	int fd;
	timer_t id;
	int number; // the POSIX timer's signal
};

static struct wall walls[] = {
	{.name = "soon", .due_ms = SOON_MS},
	{.name = "later", .due_ms = LATER_MS, .flags = TFD_TIMER_CANCEL_ON_SET},
	{.name = "soon and every hour", .due_ms = SOON_MS, .interval_ms = HOUR_MS},
	{.name = "in an hour"},
};
enum { WALLS = sizeof walls / sizeof *walls };

static int64_t started_ms; // of the monotonic clock

static struct itimerspec times(const struct wall *wall)
{
	int64_t first = wall->due_ms != 0 ? wall->due_ms : HOUR_MS;
	return (struct itimerspec){{wall->interval_ms / 1000, 0}, {first / 1000, first % 1000 * 1000000}};
}

static void make(struct wall *wall, int number)
{
	struct itimerspec set = times(wall);
	bool absolute = wall->due_ms != 0;
	wall->fd = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK | TFD_CLOEXEC);
	if (wall->fd < 0 || timerfd_settime(wall->fd, absolute ? TFD_TIMER_ABSTIME | wall->flags : 0, &set, NULL) != 0)
		probe_die("timerfd");
	wall->number = number;
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = number};
	if (timer_create(CLOCK_REALTIME, &event, &wall->id) != 0 ||
	    timer_settime(wall->id, absolute ? TIMER_ABSTIME : 0, &set, NULL) != 0)
		probe_die("timer_settime");
}

/// Due at its time, or when the program went on after that.
static void check_due(const struct wall *wall, const char *kind, bool fired, int64_t went_on_ms)
{
	int64_t now_ms = probe_now_ms(CLOCK_REALTIME);
	int64_t expected_ms = wall->due_ms > went_on_ms ? wall->due_ms : went_on_ms;
	probe_check(fired && now_ms >= wall->due_ms && now_ms < expected_ms + LATE_MAX_MS, "%s %s: due at its time", kind, wall->name);
}

static void check_remaining(const struct wall *wall, const char *kind, const struct itimerspec *now)
{
	int64_t left_ms = (int64_t)now->it_value.tv_sec * 1000 + now->it_value.tv_nsec / 1000000;
	int64_t expected_ms = wall->due_ms + HOUR_MS - probe_now_ms(CLOCK_REALTIME);
	if (wall->due_ms == 0)
		expected_ms = started_ms + HOUR_MS - probe_now_ms(CLOCK_MONOTONIC);
	probe_check(left_ms > expected_ms - LATE_MAX_MS && left_ms < expected_ms + LATE_MAX_MS, "%s %s: what remains", kind, wall->name);
}

static void check_descriptor(const struct wall *wall, int64_t went_on_ms)
{
	char path[64], line[128];
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", wall->fd);
	FILE *info = fopen(path, "re");
	while (info != NULL && fgets(line, sizeof line, info) != NULL)
		if (strncmp(line, "settime", 7) == 0)
			printf("timerfd %s: %s", wall->name, line);
	fclose(info);
	if (wall->due_ms != 0) {
		struct pollfd readable = {.fd = wall->fd, .events = POLLIN};
		uint64_t ticks = 0;
		bool fired = poll(&readable, 1, 2 * LATER_MS) == 1 && read(wall->fd, &ticks, sizeof ticks) == sizeof ticks;
		check_due(wall, "timerfd", fired && ticks == 1, went_on_ms);
	}
	struct itimerspec now;
	timerfd_gettime(wall->fd, &now);
	if (wall->due_ms == 0 || wall->interval_ms != 0)
		check_remaining(wall, "timerfd", &now);
}

static void check_timer(const struct wall *wall, int64_t went_on_ms)
{
	if (wall->due_ms != 0) {
		sigset_t only;
		sigemptyset(&only);
		sigaddset(&only, wall->number);
		struct timespec most = {2 * LATER_MS / 1000, 0};
		check_due(wall, "timer", sigtimedwait(&only, NULL, &most) == wall->number, went_on_ms);
	}
	struct itimerspec now;
	timer_gettime(wall->id, &now);
	if (wall->due_ms == 0 || wall->interval_ms != 0)
		check_remaining(wall, "timer", &now);
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	sigset_t all;
	sigemptyset(&all);
	for (int n = 0; n < WALLS; n++)
		sigaddset(&all, SIGRTMIN + n);
	sigprocmask(SIG_BLOCK, &all, NULL);
	started_ms = probe_now_ms(CLOCK_MONOTONIC);
	int64_t now_ms = probe_now_ms(CLOCK_REALTIME);
	for (int n = 0; n < WALLS; n++) {
		walls[n].due_ms += walls[n].due_ms != 0 ? now_ms : 0;
		make(&walls[n], SIGRTMIN + n);
	}
	probe_ready();
	probe_wait();
	int64_t went_on_ms = probe_now_ms(CLOCK_REALTIME);
	static const int order[WALLS] = {0, 2, 3, 1}; // the last waits
	for (int n = 0; n < WALLS; n++)
		check_descriptor(&walls[order[n]], went_on_ms);
	went_on_ms = probe_now_ms(CLOCK_REALTIME);
	for (int n = 0; n < WALLS; n++)
		check_timer(&walls[order[n]], went_on_ms);
	return probe_end();
}
