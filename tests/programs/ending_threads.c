// Threads that end as soon as they have begun, all the time: whoever lists them meets some that are not there any more.
#include "probe.h"

#include <pthread.h>

static void *end_at_once(void *unused)
{
	return unused;
}

static void *begin_others(void *unused)
{
	for (;;) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, end_at_once, NULL) == 0)
			pthread_join(thread, NULL);
	}
	return unused;
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	pthread_t thread;
	if (pthread_create(&thread, NULL, begin_others, NULL) != 0)
		probe_die("pthread_create");
	probe_ready();
	probe_wait();
	return probe_end();
}
