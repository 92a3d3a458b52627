// Forks a child that stays, and ends it.
#include "probe.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	pid_t parent = getpid(), child = fork();
	if (child < 0)
		probe_die("fork");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (getppid() == parent)
			probe_sleep_ms(100);
		_exit(0);
	}
	probe_ready();
	probe_wait();
	probe_check(waitpid(child, NULL, WNOHANG) == 0, "child lives");
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return probe_end();
}
