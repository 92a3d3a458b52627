// What every probe shares: the ready/go protocol and the way to report.
//
// A probe sets up its state, calls probe_ready(), waits for the file `--go` (default /tmp/go) to appear, and then prints
// what it finds. From there on the output is the same whether the process was forked by Pando in between or not;
// only lines that start with "note:" may differ. Exit code 0: every check held; 1: a check failed; 2: no set-up.
#ifndef PROBE_H
#define PROBE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static const char *probe_go_path = "/tmp/go";
static const char *probe_ready_path;
static const char *probe_dir = "/tmp";
static int probe_failures;

/// Ends the probe: its own set-up did not work, so nothing can be said about forks.
__attribute__((noreturn, format(printf, 1, 2), unused)) static void probe_die(const char *format, ...)
{
	int number = errno;
	va_list arguments;
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, " (errno %d: %s)\n", number, strerror(number));
	exit(2);
}

/// Value of `--name value`, or `otherwise`.
__attribute__((unused)) static const char *probe_option(int argc, char **argv, const char *name, const char *otherwise)
{
	for (int i = 1; i + 1 < argc; i++)
		if (strcmp(argv[i], name) == 0)
			return argv[i + 1];
	return otherwise;
}

/// Reads --go, --ready-file (or $READY_FILE) and --dir, where the probe may make files.
__attribute__((unused)) static void probe_begin(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	probe_go_path = probe_option(argc, argv, "--go", probe_go_path);
	probe_ready_path = probe_option(argc, argv, "--ready-file", getenv("READY_FILE"));
	probe_dir = probe_option(argc, argv, "--dir", probe_dir);
}

__attribute__((unused)) static void probe_ready(void)
{
	if (probe_ready_path != NULL) {
		int fd = open(probe_ready_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
		if (fd < 0)
			probe_die("%s", probe_ready_path);
		close(fd);
	}
	puts("ready");
	fflush(stdout);
}

__attribute__((unused)) static void probe_sleep_ms(long milliseconds)
{
	// Until a time: what nanosleep says is left has the timer's slack (50 us) in it, and grows where signals come more often than that.
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	int64_t ns = until.tv_nsec + milliseconds % 1000 * 1000000;
	until.tv_sec += milliseconds / 1000 + ns / 1000000000;
	until.tv_nsec = ns % 1000000000;
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		continue;
}

__attribute__((unused)) static bool probe_may_go(void)
{
	return access(probe_go_path, F_OK) == 0;
}

__attribute__((unused)) static void probe_wait(void)
{
	while (!probe_may_go())
		probe_sleep_ms(2);
}

/// Prints "<what>: ok" or "<what>: FAILED"; the exit code follows from it.
__attribute__((format(printf, 2, 3), unused)) static void probe_check(bool held, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	puts(held ? ": ok" : ": FAILED");
	if (!held)
		probe_failures++;
}

__attribute__((unused)) static int probe_end(void)
{
	puts(probe_failures == 0 ? "done" : "done with failures");
	fflush(stdout);
	return probe_failures == 0 ? 0 : 1;
}

__attribute__((unused)) static int64_t probe_now_ms(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/// Starts a thread or ends the probe.
__attribute__((unused)) static pthread_t probe_thread(void *(*body)(void *), void *argument)
{
	pthread_t thread;
	errno = pthread_create(&thread, NULL, body, argument);
	if (errno != 0)
		probe_die("pthread_create");
	return thread;
}

/// Waits until the kernel says that thread `tid` sleeps: it is inside the system call it was about to make.
__attribute__((unused)) static void probe_until_asleep(pid_t tid)
{
	char path[64], text[512];
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)tid);
	for (int quiet = 0; quiet < 3;) {
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
		if (fd >= 0)
			close(fd);
		text[got < 0 ? 0 : got] = 0;
		const char *after_name = strrchr(text, ')');
		quiet = after_name != NULL && after_name[1] == ' ' && after_name[2] == 'S' ? quiet + 1 : 0;
		probe_sleep_ms(5);
	}
}

/// A pattern that is different for each seed and index.
__attribute__((unused)) static uint64_t probe_pattern(uint64_t seed, uint64_t index)
{
	uint64_t mixed = (seed + 1) * 0x9e3779b97f4a7c15u ^ (index + 1) * 0xbf58476d1ce4e5b9u;
	mixed ^= mixed >> 29;
	return mixed * 0x94d049bb133111ebu;
}

#endif
