// Begins a child all the time that ends a moment later: for captures in a row, which wait for it. It has no check of its own.
#include "probe.h"

#include <sys/wait.h>

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	probe_ready();
	while (!probe_may_go()) {
		pid_t child = fork();
		if (child == 0) {
			probe_sleep_ms(20);
			_exit(0);
		}
		if (child < 0 || waitpid(child, NULL, 0) != child)
			probe_die("fork");
		probe_sleep_ms(20);
	}
	return probe_end();
}
