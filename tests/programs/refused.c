// Holds one thing that a copy would lose or get wrong, by name: refused WHAT. Each must be refused with a message that names it.
#include "probe.h"

#include <linux/filter.h>
#include <linux/memfd.h>
#include <linux/seccomp.h>
#include <mqueue.h>
#include <sched.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

static int made(const char *name)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", probe_dir, name);
	int fd = open(path, O_CREAT | O_RDWR, 0600);
	if (fd < 0 || write(fd, "content", 7) != 7)
		probe_die("%s", path);
	return fd;
}

static void many_locks(void)
{
	int fd = made("locked");
	for (int at = 0; at < 5000; at++) {
		struct flock one = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2 * at, .l_len = 1};
		if (fcntl(fd, F_SETLK, &one) != 0)
			probe_die("fcntl");
	}
}

// One page more than what becomes a copy's memory.
static void gone_file(void)
{
	const size_t bytes = (1UL << 30) + 4096;
	int fd = memfd_create("gone", 0);
	if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0 || mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED)
		probe_die("memfd");
	close(fd);
}

static void lease(void)
{
	int fd = made("leased");
	close(fd);
	char path[256];
	snprintf(path, sizeof path, "%s/leased", probe_dir);
	fd = open(path, O_RDONLY);
	if (fcntl(fd, F_SETLEASE, F_RDLCK) != 0)
		probe_die("F_SETLEASE");
}

static void *apart(void *flags)
{
	if (unshare((int)(intptr_t)flags) != 0)
		probe_die("unshare");
	for (;;)
		pause();
}

static void thread_directory(void)
{
	probe_thread(apart, (void *)(intptr_t)CLONE_FS);
	probe_sleep_ms(100);
}

static void thread_files(void)
{
	probe_thread(apart, (void *)(intptr_t)CLONE_FILES);
	probe_sleep_ms(100);
}

static void deleted_directory(void)
{
	char path[256];
	snprintf(path, sizeof path, "%s/gone", probe_dir);
	if (mkdir(path, 0700) != 0 || chdir(path) != 0 || rmdir(path) != 0)
		probe_die("%s", path);
}

static void replaced_directory(void)
{
	char path[256];
	deleted_directory();
	snprintf(path, sizeof path, "%s/gone", probe_dir);
	if (mkdir(path, 0700) != 0)
		probe_die("%s", path);
	// A name that looks like the kernel's mark of a deleted one.
	snprintf(path, sizeof path, "%s/gone (deleted)", probe_dir);
	if (mkdir(path, 0700) != 0)
		probe_die("%s", path);
}

static void bound_socket(bool replace)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0), other = socket(AF_UNIX, SOCK_STREAM, 0);
	snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", probe_dir);
	if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || unlink(address.sun_path) != 0)
		probe_die("bind");
	if (!replace)
		made("socket");
	else if (bind(other, (struct sockaddr *)&address, sizeof address) != 0 || close(other) != 0)
		probe_die("bind again");
}

static void replaced_socket(void)
{
	bound_socket(true);
}

static void socket_is_a_file(void)
{
	bound_socket(false);
}

static void many_guards(void)
{
	const size_t page = 4096, guards = 65531;
	char *memory = mmap(NULL, guards * 2 * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		probe_die("mmap");
	for (size_t n = 0; n < guards; n++)
		if (madvise(memory + n * 2 * page, page, 102 /* MADV_GUARD_INSTALL */) != 0)
			probe_die("MADV_GUARD_INSTALL");
}

/// A second process that is no child of this one, and no other process's in the sandbox.
static void sibling(void)
{
	long child = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
	if (child < 0)
		probe_die("CLONE_PARENT");
	// In a session of its own it looks like a process that was started from outside.
	while (child == 0 && setsid() != 0)
		pause();
	probe_sleep_ms(50);
}

/// A child that stays, and a descriptor that is refused by itself.
static void child_and_lease(void)
{
	pid_t child = fork();
	while (child == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0)
		pause();
	lease();
}

static void *ask_to_be_traced(void *unused)
{
	(void)unused;
	if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0)
		probe_die("PTRACE_TRACEME");
	for (;;)
		probe_sleep_ms(1000);
	return NULL;
}

static void traced(void)
{
	if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0)
		probe_die("PTRACE_TRACEME");
}

static void traced_thread(void)
{
	probe_thread(ask_to_be_traced, NULL);
	probe_sleep_ms(100);
}

static void part_of_segment(void)
{
	int segment = shmget(IPC_PRIVATE, 3 * 4096, 0600);
	char *memory = segment < 0 ? (void *)-1 : shmat(segment, NULL, 0);
	if (memory == (void *)-1 || munmap(memory + 4096, 4096) != 0)
		probe_die("shared memory");
}

static mqd_t posix_queue(void)
{
	mqd_t queue = mq_open("/kept", O_CREAT | O_RDWR, 0600, NULL);
	if (queue == (mqd_t)-1 || mq_send(queue, "x", 1, 0) != 0)
		probe_die("mq_open");
	return queue;
}

static void named_queue(void)
{
	mq_close(posix_queue());
}

static void open_queue(void)
{
	posix_queue();
}

static void nameless_queue(void)
{
	posix_queue();
	if (mq_unlink("/kept") != 0)
		probe_die("mq_unlink");
}

static void shared_memory(void)
{
	// Together more than is carried; each by itself less.
	for (int n = 0; n < 3; n++) {
		char *memory = mmap(NULL, 100 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED)
			probe_die("mmap");
		memset(memory, n + 1, 100 << 20);
	}
}

static struct sockaddr_un named(const char *name)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", probe_dir, name);
	return address;
}

/// What is written by the descriptor is read by the name that is left.
static void other_name(void)
{
	char path[256], other[256];
	made("first");
	snprintf(path, sizeof path, "%s/first", probe_dir);
	snprintf(other, sizeof other, "%s/elsewhere", probe_dir);
	if (mkdir(other, 0700) != 0)
		probe_die("%s", other);
	snprintf(other, sizeof other, "%s/elsewhere/second", probe_dir);
	if (link(path, other) != 0 || unlink(path) != 0)
		probe_die("%s", other);
}

/// Sends a descriptor on its way.
static void pass(int by, int fd)
{
	char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0}, byte = 'x';
	struct iovec bytes = {&byte, 1};
	struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	*rights = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
	memcpy(CMSG_DATA(rights), &fd, sizeof(int));
	if (sendmsg(by, &message, 0) != 1)
		probe_die("sendmsg");
}

/// With a descriptor on its way.
static void waiting_connection(void)
{
	struct sockaddr_un address = named("waiting");
	int listener = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 3) != 0 ||
	    connect(client, (struct sockaddr *)&address, sizeof address) != 0)
		probe_die("connect");
	pass(client, STDERR_FILENO);
}

/// A locked file that nothing but a message has.
static void lock_on_its_way(void)
{
	int way[2], file = made("locked");
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, way) != 0 || flock(file, LOCK_EX) != 0)
		probe_die("flock");
	pass(way[0], file);
	close(file);
}

static void message_of_closed(void)
{
	struct sockaddr_un address = named("receiver"), own = named("closed");
	int receiver = socket(AF_UNIX, SOCK_DGRAM, 0), sender = socket(AF_UNIX, SOCK_DGRAM, 0);
	if (bind(receiver, (struct sockaddr *)&address, sizeof address) != 0 || bind(sender, (struct sockaddr *)&own, sizeof own) != 0 ||
	    sendto(sender, "x", 1, 0, (struct sockaddr *)&address, sizeof address) != 1 || close(sender) != 0)
		probe_die("sendto");
}

static void peer_of_closed(void)
{
	struct sockaddr_un address[3] = {named("first"), named("second"), named("third")};
	int sockets[3];
	for (int n = 0; n < 3; n++) {
		sockets[n] = socket(AF_UNIX, SOCK_DGRAM, 0);
		if (bind(sockets[n], (struct sockaddr *)&address[n], sizeof address[n]) != 0)
			probe_die("bind");
	}
	for (int n = 0; n < 2; n++)
		if (connect(sockets[n], (struct sockaddr *)&address[n + 1], sizeof address[n]) != 0)
			probe_die("connect");
	close(sockets[2]);
}

static void foreign_owner(void)
{
	int ends[2];
	if (pipe(ends) != 0 || fcntl(ends[0], F_SETOWN, 1) != 0)
		probe_die("F_SETOWN");
}

static void urgent_byte(void)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || send(ends[0], "abc", 3, 0) != 3 || send(ends[0], "!", 1, MSG_OOB) != 1)
		probe_die("MSG_OOB");
}

static int watching(const char *name)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", probe_dir, name);
	int instance = inotify_init1(IN_NONBLOCK);
	if (inotify_add_watch(instance, path, IN_MODIFY) < 0)
		probe_die("%s", path);
	return instance;
}

static void inotify_events(void)
{
	int fd = made("watched");
	watching("watched");
	if (write(fd, "x", 1) != 1)
		probe_die("write");
}

/// What is watched is open, and has no name.
static void inotify_gone(void)
{
	char path[256];
	made("watched");
	watching("watched");
	snprintf(path, sizeof path, "%s/watched", probe_dir);
	unlink(path);
}

/// What is registered is in a message that waits, and has no descriptor else.
static void registered_elsewhere(void)
{
	int ends[2], way[2], epoll = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN};
	if (pipe(ends) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, way) != 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) != 0)
		probe_die("epoll");
	pass(way[0], ends[0]);
	close(ends[0]);
}

/// Gives the calling thread a filter of its own that refuses this system call; none other does anything.
static void refuse_call(int number)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0)
		probe_die("seccomp");
}

static void *filtered(void *unused)
{
	(void)unused;
	refuse_call(SYS_acct);
	while (true)
		pause();
	return NULL;
}

static void own_filter(void)
{
	refuse_call(SYS_acct);
}

static void *gives_up_privileges(void *nothing)
{
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	for (;;)
		pause();
	return nothing;
}

static void thread_privileges(void)
{
	probe_thread(gives_up_privileges, NULL);
	probe_sleep_ms(100);
}

static void thread_filter(void)
{
	probe_thread(filtered, NULL);
	probe_sleep_ms(100);
}

/// For a program that runs without a sandbox, whose only filter this is, and with whatever its parent left open.
static void clone_filter(void)
{
	if (close_range(3, ~0U, 0) != 0)
		probe_die("close_range");
	refuse_call(SYS_clone);
}

static char **arguments;

/// Goes on as a copy of this program, which it then removes.
static void replaced_program(void)
{
	char path[256], self[256] = {0};
	snprintf(path, sizeof path, "%s/self", probe_dir);
	if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
		probe_die("/proc/self/exe");
	if (strcmp(self, path) != 0) {
		int from = open(self, O_RDONLY), to = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0755);
		struct stat status;
		if (from < 0 || to < 0 || fstat(from, &status) != 0 ||
		    sendfile(to, from, NULL, (size_t)status.st_size) != status.st_size)
			probe_die("%s", path);
		close(from);
		close(to);
		execv(path, arguments);
		probe_die("%s", path);
	}
	if (unlink(path) != 0)
		probe_die("%s", path);
	close(made("self"));
}

static void huge_mapping(void)
{
	char *memory = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (memory == MAP_FAILED)
		probe_die("MAP_HUGETLB");
	memset(memory, 1, 2 << 20);
}

static void huge_memfd(void)
{
	int fd = memfd_create("huge", MFD_HUGETLB);
	if (fd < 0 || ftruncate(fd, 2 << 20) != 0)
		probe_die("MFD_HUGETLB");
}

/// Its own directory, which it cannot search any more.
static void closed_directory(void)
{
	char path[512];
	snprintf(path, sizeof path, "%s/closed", probe_dir);
	if (mkdir(path, 0700) != 0)
		probe_die("%s", path);
	made("closed/file");
	if (chmod(path, 0600) != 0)
		probe_die("chmod");
}

static const struct {
	const char *name;
	void (*make)(void);
} kinds[] = {
	{"many_locks", many_locks}, {"gone_file", gone_file}, {"lease", lease},
	{"thread_directory", thread_directory}, {"thread_files", thread_files},
	{"deleted_directory", deleted_directory}, {"replaced_directory", replaced_directory},
	{"replaced_socket", replaced_socket}, {"socket_is_a_file", socket_is_a_file},
	{"many_guards", many_guards}, {"shared_memory", shared_memory},
	{"waiting_connection", waiting_connection}, {"lock_on_its_way", lock_on_its_way}, {"message_of_closed", message_of_closed}, {"peer_of_closed", peer_of_closed}, {"foreign_owner", foreign_owner},
	{"urgent_byte", urgent_byte}, {"other_name", other_name},
	{"inotify_events", inotify_events}, {"inotify_gone", inotify_gone}, {"registered_elsewhere", registered_elsewhere}, {"own_filter", own_filter}, {"thread_filter", thread_filter}, {"thread_privileges", thread_privileges},
	{"clone_filter", clone_filter}, {"replaced_program", replaced_program}, {"huge_mapping", huge_mapping},
	{"huge_memfd", huge_memfd}, {"sibling", sibling}, {"child_and_lease", child_and_lease}, {"traced", traced},
	{"traced_thread", traced_thread}, {"part_of_segment", part_of_segment},
	{"named_queue", named_queue}, {"open_queue", open_queue},
	{"nameless_queue", nameless_queue}, {"closed_directory", closed_directory},
};

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	arguments = argv;
	for (size_t n = 0; argc > 1 && n < sizeof kinds / sizeof kinds[0]; n++)
		if (strcmp(argv[1], kinds[n].name) == 0) {
			kinds[n].make();
			probe_ready();
			probe_wait();
			return probe_end();
		}
	probe_die("usage: refused WHAT");
}
