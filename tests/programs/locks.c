// Locks on files: flock, and those of ranges, of the process and of an open file. Who else asks finds them held, and finds them free when
// they are given up.
#include "probe.h"

#include <sys/file.h>
#include <sys/wait.h>

enum { WHOLE, SHARED_WHOLE, PROCESS, OPEN_FILE, FILES };

static const char *const names[FILES] = {"whole", "shared-whole", "process", "open-file"};

static int open_file(int which, int flags)
{
	char path[256];
	snprintf(path, sizeof path, "%s/locks-%s", probe_dir, names[which]);
	int fd = open(path, flags | O_CLOEXEC, 0600);
	if (fd < 0)
		probe_die("%s", path);
	return fd;
}

static bool range(int fd, int command, short type, off_t start, off_t length)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
	return fcntl(fd, command, &lock) == 0;
}

// What another process is refused, a character for each question: '-' if it is free, 's' if it may be shared, 'x' if not.
static char whole(int fd)
{
	return flock(fd, LOCK_EX | LOCK_NB) == 0 ? '-' : flock(fd, LOCK_SH | LOCK_NB) == 0 ? 's' : 'x';
}

static char part(int fd, off_t at)
{
	return range(fd, F_SETLK, F_WRLCK, at, 1) ? '-' : range(fd, F_SETLK, F_RDLCK, at, 1) ? 's' : 'x';
}

static void look(const char *when)
{
	fflush(stdout);
	if (fork() == 0) {
		int process = open_file(PROCESS, O_RDWR), open_files = open_file(OPEN_FILE, O_RDWR);
		printf("%s: whole %c, shared %c, process %c%c%c%c, open file %c%c%c\n", when, whole(open_file(WHOLE, O_RDWR)),
		       whole(open_file(SHARED_WHOLE, O_RDWR)), part(process, 0), part(process, 10), part(process, 15),
		       part(process, 1000000), part(open_files, 0), part(open_files, 100), part(open_files, 200));
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	int fds[FILES];
	for (int which = 0; which < FILES; which++)
		fds[which] = open_file(which, O_CREAT | O_RDWR);
	int reader = open_file(PROCESS, O_RDONLY);
	// Two open files of one file, of which one holds the lock; and a duplicate, which is the same one.
	int other = open_file(OPEN_FILE, O_RDWR), again = dup(fds[OPEN_FILE]);
	if (flock(fds[WHOLE], LOCK_EX) != 0 || flock(fds[SHARED_WHOLE], LOCK_SH) != 0 || !range(fds[PROCESS], F_SETLK, F_WRLCK, 10, 5)
	    || !range(reader, F_SETLK, F_RDLCK, 15, 5) || !range(fds[PROCESS], F_SETLK, F_WRLCK, 1000000, 0)
	    || !range(fds[OPEN_FILE], F_OFD_SETLK, F_WRLCK, 0, 100) || !range(other, F_OFD_SETLK, F_RDLCK, 100, 100))
		probe_die("lock");
	probe_ready();
	probe_wait();

	look("held");
	probe_check(!range(other, F_OFD_SETLK, F_WRLCK, 0, 1), "open file: its lock is its own");
	probe_check(range(again, F_OFD_SETLK, F_UNLCK, 0, 100), "open file: a duplicate gives its lock up");
	probe_check(range(fds[PROCESS], F_SETLK, F_UNLCK, 1000000, 0), "process: one of its locks is given up");
	probe_check(flock(fds[WHOLE], LOCK_SH) == 0, "whole: from exclusive to shared");
	look("some given up");
	close(reader);
	close(other);
	close(fds[SHARED_WHOLE]);
	look("closed");
	puts("done");
	return 0;
}
