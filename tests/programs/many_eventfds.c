// 4,000 eventfds, the most of one kind that a program may have: all have one name in /proc, and only comparing open files tells which of
// them are duplicates. Every second one has a duplicate.
#include "probe.h"

#include <sys/eventfd.h>
#include <sys/resource.h>

#define DIFFERENT 2000

int main(int argc, char **argv)
{
	static int first[DIFFERENT], second[DIFFERENT];
	probe_begin(argc, argv);
	struct rlimit limit = {8192, 8192};
	if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
		probe_die("setrlimit");
	for (int n = 0; n < DIFFERENT; n++) {
		first[n] = eventfd((unsigned)n + 1, EFD_NONBLOCK | EFD_CLOEXEC);
		second[n] = n % 2 == 0 ? dup(first[n]) : eventfd(7, EFD_NONBLOCK);
		if (first[n] < 0 || second[n] < 0)
			probe_die("eventfd");
	}
	probe_ready();
	probe_wait();
	int right = 0;
	for (int n = 0; n < DIFFERENT; n++) {
		eventfd_t one = 0, other = 0;
		bool read_one = eventfd_read(first[n], &one) == 0 && one == (eventfd_t)n + 1;
		bool read_other = eventfd_read(second[n], &other) == 0;
		right += read_one && (n % 2 == 0 ? !read_other : read_other && other == 7);
	}
	probe_check(right == DIFFERENT, "counts and duplicates");
	return probe_end();
}
