// Begins a child all the time that ends a moment later: for captures in a row, which wait for it. It has no check of its own.
// With --siblings yes the children are its parent's (CLONE_PARENT).
#include "probe.h"

#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	bool siblings = strcmp(probe_option(argc, argv, "--siblings", "no"), "yes") == 0;
	probe_ready();
	while (!probe_may_go()) {
		pid_t child = siblings ? (pid_t)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0) : fork();
		if (child == 0) {
			// Siblings: some live when a capture looks for the last time and not when it looks for the first.
			probe_sleep_ms(siblings ? 12 : 20);
			_exit(0);
		}
		if (child < 0 || (!siblings && waitpid(child, NULL, 0) != child))
			probe_die("fork");
		probe_sleep_ms(siblings ? 18 : 20);
	}
	return probe_end();
}
