// Shared memory of the unusual kinds: anonymous with a name, a view for reading of a file that is open for writing, which becomes writable
// later, views for reading of files that are written in other ways; and watches in a deep tree of directories, as many instances as there are directories.
#include "probe.h"

#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define PAGE 4096
#define DEPTH 12

static unsigned char *map(int protection, int flags, int fd)
{
	unsigned char *memory = mmap(NULL, PAGE, protection, flags, fd, 0);
	if (memory == MAP_FAILED)
		probe_die("mmap");
	return memory;
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	unsigned char *named = map(PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
	if (prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, named, PAGE, "counters") != 0)
		puts("note: memory cannot be named here");
	strcpy((char *)named, "named");

	char path[512];
	snprintf(path, sizeof path, "%s/shared.data", probe_dir);
	int file = open(path, O_RDWR | O_CREAT, 0600);
	if (file < 0 || ftruncate(file, PAGE) != 0 || write(file, "content", 7) != 7)
		probe_die("%s", path);
	unsigned char *view = map(PROT_READ, MAP_SHARED, file);
	close(file);

	// Views for reading of one that is written by another view, and of one that is written by a descriptor.
	int readers[2], writers[2];
	unsigned char *seen[2];
	for (int n = 0; n < 2; n++) {
		snprintf(path, sizeof path, "%s/shared.seen.%d", probe_dir, n);
		writers[n] = open(path, O_RDWR | O_CREAT, 0600);
		readers[n] = open(path, O_RDONLY);
		if (writers[n] < 0 || readers[n] < 0 || ftruncate(writers[n], PAGE) != 0)
			probe_die("%s", path);
		seen[n] = map(PROT_READ, MAP_SHARED, readers[n]);
	}
	unsigned char *written = map(PROT_READ | PROT_WRITE, MAP_SHARED, writers[0]);
	close(writers[0]);

	int watches[DEPTH];
	size_t length = (size_t)snprintf(path, sizeof path, "%s/shared-tree", probe_dir);
	for (int depth = 0; depth < DEPTH; depth++) {
		if (mkdir(path, 0700) != 0)
			probe_die("%s", path);
		watches[depth] = inotify_init1(IN_NONBLOCK);
		if (watches[depth] < 0 || inotify_add_watch(watches[depth], path, IN_CREATE) < 0)
			probe_die("inotify");
		length += (size_t)snprintf(path + length, sizeof path - length, "/d%d", depth);
	}
	// The watches of the directories above have seen the next one be made.
	char events[4096];
	for (int depth = 0; depth < DEPTH; depth++)
		while (read(watches[depth], events, sizeof events) > 0)
			continue;
	probe_ready();
	probe_wait();

	probe_check(strcmp((char *)named, "named") == 0, "named memory: content");
	pid_t child = fork();
	if (child == 0) {
		strcpy((char *)named, "child");
		_exit(0);
	}
	waitpid(child, NULL, 0);
	probe_check(strcmp((char *)named, "child") == 0, "named memory: still shared with children");

	probe_check(memcmp(view, "content", 7) == 0, "view: content");
	bool writable = mprotect(view, PAGE, PROT_READ | PROT_WRITE) == 0;
	probe_check(writable, "view: may be made writable");
	if (writable) {
		char back[4] = "";
		memcpy(view, "new", 3);
		snprintf(path, sizeof path, "%s/shared.data", probe_dir);
		file = open(path, O_RDONLY);
		probe_check(pread(file, back, 3, 0) == 3 && memcmp(back, "new", 3) == 0, "view: is the file");
	}

	memcpy(written, "mapped", 6);
	probe_check(memcmp(seen[0], "mapped", 6) == 0, "view: sees what another view writes");
	probe_check(pwrite(writers[1], "written", 7, 0) == 7 && memcmp(seen[1], "written", 7) == 0, "view: sees what a descriptor writes");

	length = (size_t)snprintf(path, sizeof path, "%s/shared-tree", probe_dir);
	for (int depth = 0; depth < DEPTH; depth++) {
		char made[600];
		snprintf(made, sizeof made, "%s/made", path);
		close(open(made, O_CREAT | O_WRONLY, 0600));
		ssize_t got = read(watches[depth], events, sizeof events);
		const struct inotify_event *event = (const void *)events;
		probe_check(got > 0 && strcmp(event->name, "made") == 0, "watch %d", depth);
		length += (size_t)snprintf(path + length, sizeof path - length, "/d%d", depth);
	}
	return probe_end();
}
