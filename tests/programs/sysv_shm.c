// Uses System V shared memory, which cannot be forked by the native engine.
#include "probe.h"

#include <sys/ipc.h>
#include <sys/shm.h>

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	int segment = shmget(IPC_PRIVATE, 65536, IPC_CREAT | 0600);
	char *memory = segment < 0 ? (void *)-1 : shmat(segment, NULL, 0);
	if (memory == (void *)-1)
		probe_die("shared memory");
	// Marked at once: it lives as long as this process is attached, and no longer.
	shmctl(segment, IPC_RMID, NULL);
	strcpy(memory, "in the segment");
	probe_ready();
	probe_wait();
	probe_check(strcmp(memory, "in the segment") == 0, "segment content");
	return probe_end();
}
