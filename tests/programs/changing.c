// Processes that are others in the next moment, for captures in the middle of that. No check of its own but that it goes on: `count` grows.
//
// --way exec: a child executes this program again and again. thread: the same from a thread that is not the first. crash: children with threads die
// of a signal. vfork: a thread waits for a child of vfork(2) that executes nothing for `--for` milliseconds.
#include "probe.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static char **arguments;

__attribute__((noreturn)) static void *execute(void *nothing)
{
	(void)nothing;
	execv("/proc/self/exe", arguments);
	probe_die("exec");
}

__attribute__((noreturn)) static void *idle(void *nothing)
{
	(void)nothing;
	for (;;)
		pause();
}

/// What a child of the storms does, which has been executed or forked just now.
static void change(const char *way, int generation)
{
	pthread_t threads[4];
	int count = strcmp(way, "exec") == 0 ? 0 : 4;
	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, i == 0 && strcmp(way, "thread") == 0 ? execute : idle, NULL);
	if (strcmp(way, "crash") == 0) {
		probe_sleep_ms(generation % 7);
		kill(getpid(), SIGKILL);
	}
	if (strcmp(way, "exec") == 0)
		execute(NULL);
	idle(NULL);
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	arguments = argv;
	const char *way = probe_option(argc, argv, "--way", "exec");
	long milliseconds = atol(probe_option(argc, argv, "--for", "5000"));
	if (getenv("CHANGING_CHILD") != NULL) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		probe_sleep_ms(1);
		change(way, 0);
	}
	if (strcmp(way, "vfork") == 0) {
		probe_ready();
		for (;;) {
			pid_t child = vfork();
			if (child == 0) {
				usleep((useconds_t)milliseconds * 1000);
				_exit(0);
			}
			waitpid(child, NULL, 0);
			probe_sleep_ms(milliseconds / 5);
		}
	}
	bool is_crash = strcmp(way, "crash") == 0;
	pid_t child = 0;
	setenv("CHANGING_CHILD", "1", 1);
	for (int generation = 0;; generation++) {
		if (child == 0 || is_crash) {
			child = fork();
			if (child == 0 && is_crash)
				change(way, generation);
			if (child == 0)
				execute(NULL);
		}
		if (generation == 0)
			probe_ready();
		if (is_crash)
			waitpid(child, NULL, 0);
		else
			probe_sleep_ms(5);
		FILE *file = fopen("/tmp/count.new", "w");
		if (file == NULL || fprintf(file, "%d\n", generation) < 0 || fclose(file) != 0 ||
		    rename("/tmp/count.new", "/tmp/count") != 0)
			probe_die("count");
	}
}
