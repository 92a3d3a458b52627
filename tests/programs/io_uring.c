// Uses io_uring, which cannot be forked. Where the sandbox does not allow it, says so and exits 3.
#include "probe.h"

#include <linux/io_uring.h>
#include <sys/syscall.h>

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	struct io_uring_params parameters = {0};
	long ring = syscall(SYS_io_uring_setup, 8, &parameters);
	if (ring < 0) {
		printf("io_uring_setup: errno %d (%s)\n", errno, strerror(errno));
		return 3;
	}
	printf("io_uring_setup: ok\n");
	probe_ready();
	probe_wait();
	return probe_end();
}
