// Handles its own system calls (syscall user dispatch): a call that is injected into it would never reach the kernel.
#include "probe.h"

#include <sys/prctl.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#define PR_SYS_DISPATCH_ON 1
#endif

static volatile char selector; // SYSCALL_DISPATCH_FILTER_ALLOW

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	if (prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &selector) != 0)
		probe_die("PR_SET_SYSCALL_USER_DISPATCH");
	probe_ready();
	probe_wait();
	return probe_end();
}
