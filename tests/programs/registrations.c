// Whom descriptors tell of what happens: epoll sets that know a number by another file, watches of files and links and of what is open, owners
// of signals.
#include "probe.h"

#include <linux/limits.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { NUMBER = 702, GONE_NUMBER = 1003, SET_NUMBER = 803, PIPES = 4, OWNED = 4 };

static int checked(int result, const char *what)
{
	if (result < 0)
		probe_die("%s", what);
	return result;
}

static int epoll, pipes[PIPES][2];

static void add(int number, int events, uint64_t data)
{
	struct epoll_event event = {.events = (uint32_t)events, .data.u64 = data};
	checked(epoll_ctl(epoll, EPOLL_CTL_ADD, number, &event), "EPOLL_CTL_ADD");
}

/// All are registered by the same number; the last has it still. One more by a number that nothing has now.
static void set_up_epoll(void)
{
	epoll = checked(epoll_create1(EPOLL_CLOEXEC), "epoll");
	for (int n = 0; n < PIPES; n++) {
		checked(pipe2(pipes[n], O_CLOEXEC), "pipe");
		checked(dup3(pipes[n][0], n == 0 ? GONE_NUMBER : NUMBER, O_CLOEXEC), "dup3");
		add(n == 0 ? GONE_NUMBER : NUMBER, EPOLLIN, 0x100u + (unsigned)n);
	}
	close(GONE_NUMBER);
	checked(fcntl(NUMBER, F_SETFD, 0), "F_SETFD");
}

static int under_set[2];

/// A set that has the number by which it knows a file.
static void set_up_set(void)
{
	checked(pipe2(under_set, O_CLOEXEC), "pipe");
	checked(dup3(under_set[0], SET_NUMBER, O_CLOEXEC), "dup3");
	int set = checked(epoll_create1(EPOLL_CLOEXEC), "epoll");
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x200};
	checked(epoll_ctl(set, EPOLL_CTL_ADD, SET_NUMBER, &event), "EPOLL_CTL_ADD");
	checked(dup3(set, SET_NUMBER, O_CLOEXEC), "dup3");
	close(set);
}

static void check_set(void)
{
	struct epoll_event event;
	probe_check(epoll_wait(SET_NUMBER, &event, 1, 0) == 0, "set of its own number: nothing yet");
	if (write(under_set[1], "x", 1) != 1)
		probe_die("write");
	probe_check(epoll_wait(SET_NUMBER, &event, 1, 100) == 1 && event.data.u64 == 0x200, "set of its own number: the pipe");
	probe_check(fcntl(SET_NUMBER, F_GETFD) == FD_CLOEXEC, "set of its own number: flags");
}

static void check_epoll(void)
{
	struct epoll_event events[8];
	probe_check(epoll_wait(epoll, events, 8, 0) == 0, "epoll: nothing yet");
	for (int n = 0; n < PIPES; n++) {
		char byte;
		if (write(pipes[n][1], "x", 1) != 1)
			probe_die("write");
		int got = epoll_wait(epoll, events, 8, 100);
		probe_check(got == 1 && events[0].data.u64 == 0x100u + (unsigned)n, "epoll: pipe %d", n);
		probe_check(read(n == PIPES - 1 ? NUMBER : pipes[n][0], &byte, 1) == 1, "pipe %d", n);
	}
	probe_check(fcntl(GONE_NUMBER, F_GETFD) == -1 && fcntl(NUMBER, F_GETFD) == 0, "numbers");
	struct epoll_event event = {.events = EPOLLIN};
	probe_check(epoll_ctl(epoll, EPOLL_CTL_ADD, NUMBER, &event) == -1 && errno == EEXIST, "epoll: the number's own file");
}

static int opened, image, changes, anything;
static char watched[PATH_MAX], link_path[PATH_MAX];

static void set_up_inotify(void)
{
	char directory[PATH_MAX - 16];
	snprintf(directory, sizeof directory, "%s/registrations", probe_dir);
	checked(mkdir(directory, 0700), directory);
	snprintf(watched, sizeof watched, "%s/file", directory);
	snprintf(link_path, sizeof link_path, "%s/registrations-link", probe_dir);
	opened = checked(open(watched, O_CREAT | O_RDWR | O_CLOEXEC, 0600), watched);
	checked(symlink("registrations/file", link_path), link_path);
	image = checked(inotify_init1(IN_NONBLOCK | IN_CLOEXEC), "inotify");
	checked(inotify_add_watch(image, "/etc/passwd", IN_OPEN | IN_CLOSE), "/etc/passwd");
	changes = checked(inotify_init1(IN_NONBLOCK | IN_CLOEXEC), "inotify");
	checked(inotify_add_watch(changes, watched, IN_MODIFY | IN_ATTRIB), watched);
	checked(inotify_add_watch(changes, link_path, IN_DELETE_SELF | IN_ATTRIB | IN_DONT_FOLLOW), link_path);
	// All events, while its file and itself are open.
	anything = checked(inotify_init1(IN_NONBLOCK | IN_CLOEXEC), "inotify");
	checked(inotify_add_watch(anything, directory, IN_ALL_EVENTS), directory);
}

static void show_events(const char *what, int instance)
{
	char events[4096] __attribute__((aligned(8)));
	ssize_t got = read(instance, events, sizeof events);
	printf("%s:", what);
	for (ssize_t at = 0; at < got;) {
		const struct inotify_event *event = (const void *)(events + at);
		printf(" %d %#x %s", event->wd, event->mask, event->len > 0 ? event->name : "");
		at += (ssize_t)(sizeof *event + event->len);
	}
	puts(got < 0 ? " none" : "");
}

static void check_inotify(void)
{
	show_events("anything, before", anything);
	show_events("image, before", image);
	close(checked(open("/etc/passwd", O_RDONLY), "/etc/passwd"));
	show_events("image", image);
	checked((int)write(opened, "x", 1), "write");
	checked(unlink(link_path), link_path);
	show_events("changes", changes);
	show_events("anything", anything);
}

static int owned[OWNED][2];
static volatile sig_atomic_t told[OWNED], by_thread[OWNED];
static pid_t other_thread;
static volatile bool other_is_there;

static void on_signal(int number, siginfo_t *info, void *context)
{
	(void)context;
	for (int n = 0; n < OWNED; n++)
		if ((info->si_code > 0 || info->si_code == SI_SIGIO) && info->si_fd == owned[n][0] && number != SIGIO)
			told[n] = number, by_thread[n] = gettid() == other_thread;
	if (number == SIGIO)
		told[OWNED - 1] = number;
}

static void *other(void *unused)
{
	(void)unused;
	other_thread = gettid();
	other_is_there = true;
	while (true)
		pause();
	return NULL;
}

/// Of a process, of a thread, of the group; and of a process with the usual signal. F_SETOWN alone goes last.
static void set_up_owners(void)
{
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
	sigaction(SIGRTMIN + 6, &action, NULL);
	sigaction(SIGIO, &action, NULL);
	probe_thread(other, NULL);
	while (!other_is_there)
		probe_sleep_ms(1);
	const int kinds[OWNED] = {F_OWNER_PID, F_OWNER_TID, F_OWNER_PID, F_OWNER_PID};
	for (int n = 0; n < OWNED; n++) {
		struct f_owner_ex owner = {kinds[n], kinds[n] == F_OWNER_TID ? other_thread : getpid()};
		checked(n == 1 ? socketpair(AF_UNIX, SOCK_STREAM, 0, owned[n]) : pipe(owned[n]), "pipe");
		checked(fcntl(owned[n][0], F_SETOWN_EX, &owner), "F_SETOWN_EX");
		if (n < 3)
			checked(fcntl(owned[n][0], F_SETSIG, SIGRTMIN + 6), "F_SETSIG");
		// The third has an owner, and sends nothing.
		if (n != 2)
			checked(fcntl(owned[n][0], F_SETFL, O_ASYNC | O_NONBLOCK), "O_ASYNC");
	}
}

static void check_owners(void)
{
	for (int n = 0; n < OWNED; n++) {
		struct f_owner_ex owner = {-1, -1};
		fcntl(owned[n][0], F_GETOWN_EX, &owner);
		printf("owner %d: %d is %s, signal %d, flags %#x\n", n, owner.type, owner.pid == getpid() ? "the process" : owner.pid == other_thread ? "the thread" : "another",
		       fcntl(owned[n][0], F_GETSIG), fcntl(owned[n][0], F_GETFL));
		if (write(owned[n][1], "x", 1) != 1)
			probe_die("write");
		// The thread that is told may get to it late; the third tells nobody.
		for (int ms = 0; ms < (n == 2 ? 30 : 2000) && told[n] == 0; ms += 10)
			probe_sleep_ms(10);
		printf("owner %d: told by %d, in the thread %d\n", n, told[n], by_thread[n]);
	}
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	set_up_epoll();
	set_up_set();
	set_up_inotify();
	set_up_owners();
	probe_ready();
	probe_wait();
	check_epoll();
	check_set();
	check_inotify();
	check_owners();
	return probe_end();
}
