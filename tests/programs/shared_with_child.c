// Shares anonymous memory with a child process, which counts in it.
#include "probe.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	volatile uint64_t *counter = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (counter == MAP_FAILED)
		probe_die("mmap");
	pid_t parent = getpid(), child = fork();
	if (child < 0)
		probe_die("fork");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (; getppid() == parent; probe_sleep_ms(5))
			(*counter)++;
		_exit(0);
	}
	while (*counter == 0)
		probe_sleep_ms(1);
	probe_ready();
	probe_wait();
	uint64_t before = *counter;
	probe_sleep_ms(500);
	probe_check(*counter > before, "the child counts in shared memory");
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return probe_end();
}
