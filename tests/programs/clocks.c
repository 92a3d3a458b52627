// The monotonic and boot-time clocks, read all the time through the vDSO and by system calls. No step of them may be longer than --gap-max
// milliseconds, and none may lead back.
#include "probe.h"

#include <stdatomic.h>
#include <sys/syscall.h>

enum { CLOCKS = 2 };

static const clockid_t clocks[CLOCKS] = {CLOCK_MONOTONIC, CLOCK_BOOTTIME};
static const char *const names[CLOCKS] = {"CLOCK_MONOTONIC", "CLOCK_BOOTTIME"};
static atomic_llong longest_ms[CLOCKS], steps_back;

static int64_t asked_ms(clockid_t clock)
{
	struct timespec now;
	if (syscall(SYS_clock_gettime, clock, &now) != 0)
		probe_die("clock_gettime");
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void *read_on(void *unused)
{
	(void)unused;
	int64_t last[CLOCKS] = {asked_ms(clocks[0]), asked_ms(clocks[1])};
	for (;;) {
		for (int i = 0; i < CLOCKS; i++) {
			// Whichever way it is asked: the steps between the two ways count, too.
			int64_t shown[2] = {probe_now_ms(clocks[i]), asked_ms(clocks[i])};
			for (int way = 0; way < 2; way++) {
				int64_t step = shown[way] - last[i];
				steps_back += step < 0;
				if (step > longest_ms[i])
					longest_ms[i] = step;
				last[i] = shown[way];
			}
		}
		usleep(1000);
	}
	return NULL;
}

static double uptime_s(void)
{
	double uptime = 0;
	FILE *file = fopen("/proc/uptime", "re");
	if (file == NULL || fscanf(file, "%lf", &uptime) != 1)
		probe_die("/proc/uptime");
	fclose(file);
	return uptime;
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	long long gap_max_ms = atoll(probe_option(argc, argv, "--gap-max", "60000"));
	probe_thread(read_on, NULL);
	probe_ready();
	probe_wait();
	for (int i = 0; i < CLOCKS; i++) {
		printf("note: longest step of %s: %lld ms\n", names[i], longest_ms[i]);
		probe_check(longest_ms[i] < gap_max_ms, "%s goes on", names[i]);
	}
	probe_check(steps_back == 0, "no step back");
	double ahead = asked_ms(CLOCK_BOOTTIME) / 1000.0 - uptime_s();
	probe_check(ahead > -1 && ahead < 1, "/proc/uptime agrees");
	return probe_end();
}
