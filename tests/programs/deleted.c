// Files that were deleted while they were open, and memfds: content, mode, times, extended attributes; a deleted directory; descriptors that only
// name a file (O_PATH); a memfd that is executed; a file that has another name than the one it was opened by. With --keep yes the files are left for somebody else to delete.
#include "probe.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <sys/xattr.h>

static int file, named, directory, directory_path, program, memfd, read_only, write_only, read_only_mode, linked;
static char *linked_memory;

static int checked(int result, const char *what)
{
	if (result < 0)
		probe_die("%s", what);
	return result;
}

static void path_of(const char *name, char *path)
{
	snprintf(path, 256, "%s/deleted/%s", probe_dir, name);
}

static void make(const char *name, const char *content)
{
	char path[256];
	path_of(name, path);
	int fd = checked(open(path, O_CREAT | O_WRONLY | O_EXCL, 0600), path);
	if (write(fd, content, strlen(content)) != (ssize_t)strlen(content))
		probe_die("write");
	// No filesystem of a sandbox refuses these; one that did would be noted.
	if (fsetxattr(fd, "user.colour", "green", 5, 0) != 0)
		printf("note: no extended attributes: %s\n", strerror(errno));
	checked(fchmod(fd, 0604), "fchmod");
	checked(futimens(fd, (struct timespec[]){{1000, 5}, {2000, 6}}), "futimens");
	close(fd);
}

static void set_up(bool keep)
{
	char path[256];
	path_of("", path);
	checked(mkdir(path, 0700), path);
	make("file", "of the file");
	make("named", "only named");
	path_of("directory", path);
	checked(mkdir(path, 0750), path);
	directory = checked(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), path);
	directory_path = checked(open(path, O_PATH | O_CLOEXEC), path);
	if (!keep)
		checked(rmdir(path), path);
	path_of("named", path);
	named = checked(open(path, O_PATH | O_CLOEXEC), path);
	if (!keep)
		checked(unlink(path), path);
	if (!keep) {
		path_of("write-only", path);
		write_only = checked(open(path, O_CREAT | O_WRONLY | O_EXCL | O_CLOEXEC, 0600), path);
		fsetxattr(write_only, "user.colour", "blue", 4, 0);
		checked(fchmod(write_only, 0444), "fchmod");
		checked(unlink(path), path);
	}
	read_only_mode = checked(memfd_create("read-only mode", 0), "memfd");
	fsetxattr(read_only_mode, "user.colour", "black", 5, 0);
	checked(fchmod(read_only_mode, 0400), "fchmod");
	checked(futimens(read_only_mode, (struct timespec[]){{5000, 9}, {6000, 10}}), "futimens");
	path_of("file", path);
	file = checked(open(path, O_RDONLY | O_NOATIME | O_CLOEXEC), path);
	checked((int)lseek(file, 3, SEEK_SET), "lseek");
	if (!keep)
		checked(unlink(path), path);
	program = checked(memfd_create("program", MFD_ALLOW_SEALING), "memfd");
	if (write(program, "#!/bin/true\n", 12) != 12)
		probe_die("write");
	memfd = checked(memfd_create("kept", 0), "memfd");
	if (write(memfd, "of the memfd", 12) != 12)
		probe_die("write");
	checked(fchmod(memfd, 0640), "fchmod");
	if (fsetxattr(memfd, "user.colour", "red", 3, 0) != 0)
		printf("note: no extended attributes of memfds: %s\n", strerror(errno));
	snprintf(path, sizeof path, "/proc/self/fd/%d", memfd);
	read_only = checked(open(path, O_RDONLY | O_CLOEXEC), path);
	checked(futimens(memfd, (struct timespec[]){{3000, 7}, {4000, 8}}), "futimens");
}

// As sem_open makes semaphores.
static void make_linked(void)
{
	char first[256], second[256];
	path_of("first", first), path_of("linked", second);
	linked = checked(open(first, O_CREAT | O_RDWR | O_EXCL | O_CLOEXEC, 0600), first);
	checked(ftruncate(linked, 4096), "ftruncate");
	linked_memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, linked, 0);
	if (linked_memory == MAP_FAILED)
		probe_die("mmap");
	checked(link(first, second), second);
	checked(unlink(first), first);
}

static void check_linked(void)
{
	char path[256], found[2] = "";
	path_of("linked", path);
	int again = checked(open(path, O_RDONLY), path);
	linked_memory[0] = 'm';
	probe_check(pwrite(linked, "d", 1, 1) == 1, "linked: is written");
	probe_check(pread(again, found, 2, 0) == 2 && memcmp(found, "md", 2) == 0, "linked: is the file that its other name names");
}

static void show(const char *what, int fd)
{
	struct stat status;
	char colour[16] = "";
	checked(fstat(fd, &status), what);
	if (fgetxattr(fd, "user.colour", colour, sizeof colour - 1) < 0)
		snprintf(colour, sizeof colour, "(%d)", errno);
	printf("%s: mode %o, %lld bytes, read %lld.%ld, changed %lld.%ld, %s\n", what, status.st_mode, (long long)status.st_size, (long long)status.st_atim.tv_sec,
	       status.st_atim.tv_nsec, (long long)status.st_mtim.tv_sec, status.st_mtim.tv_nsec, colour);
}

static void execute(void)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", program);
	pid_t child = fork();
	if (child == 0) {
		execl(path, path, (char *)NULL);
		_exit(errno);
	}
	int status = 0;
	waitpid(child, &status, 0);
	printf("program: ended with %d\n", WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	set_up(strcmp(probe_option(argc, argv, "--keep", "no"), "yes") == 0);
	make_linked();
	probe_ready();
	probe_wait();

	char text[64] = "";
	show("file", file), show("memfd", memfd), show("read only", read_only);
	show("read-only mode", read_only_mode);
	probe_check(pwrite(read_only_mode, "x", 1, 0) == 1, "read-only mode: is written");
	struct stat status;
	if (write_only != 0) {
		probe_check(write(write_only, "x", 1) == 1 && read(write_only, text, 1) == -1, "write only: is written");
		checked(futimens(write_only, (struct timespec[]){{7000, 0}, {8000, 0}}), "futimens");
		show("write only", write_only);
	}
	probe_check(fstat(named, &status) == 0 && S_ISREG(status.st_mode) && status.st_size == 10 && status.st_mtim.tv_sec == 2000, "named: is the file");
	probe_check(read(named, text, 1) == -1 && errno == EBADF && (fcntl(named, F_GETFL) & O_PATH) != 0, "named: only names it");
	probe_check(lseek(file, 0, SEEK_CUR) == 3 && read(file, text, sizeof text) == 8 && strcmp(text, "the file") == 0, "file: content");
	probe_check(write(file, "x", 1) == -1 && errno == EBADF, "file: for reading");
	memset(text, 0, sizeof text);
	probe_check(pread(read_only, text, sizeof text, 0) == 12 && strcmp(text, "of the memfd") == 0, "memfd: content");
	probe_check(pwrite(memfd, "O", 1, 0) == 1 && pread(read_only, text, 1, 0) == 1 && text[0] == 'O', "memfd: one file");
	printf("memfd: seals %d, program: seals %d\n", fcntl(memfd, F_GET_SEALS), fcntl(program, F_GET_SEALS));
	struct stat of_directory;
	probe_check(fstat(directory, &status) == 0 && S_ISDIR(status.st_mode) && (status.st_mode & 07777) == 0750, "directory: mode");
	probe_check(fstat(directory_path, &of_directory) == 0 && S_ISDIR(of_directory.st_mode), "directory: named");
	probe_check(openat(directory, "new", O_CREAT | O_WRONLY, 0600) == -1 && errno == ENOENT, "directory: takes nothing");
	path_of("directory", text);
	probe_check(access(text, F_OK) == -1, "directory: is gone");
	check_linked();
	execute();
	return probe_end();
}
