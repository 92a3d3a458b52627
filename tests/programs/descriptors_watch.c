// Descriptors that watch others: epoll (nested, edge-triggered, one-shot), signalfd, timerfd, inotify.
#include "probe.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

// Where no program watches: far down in a search for it.
static const char far_away[] = "/usr/share/doc";

enum { DATA_PIPE = 0x1001, DATA_EDGE = 0x2002, DATA_ONCE = 0x3003, DATA_INNER = 0x4004, DATA_TIMER = 0x5005, DATA_DUPLICATE = 0x6006 };

static int outer, inner, pipe_ends[2], edge, once, timer, signals, notify, watches[3], duplicate, original;

static int checked(int fd, const char *what)
{
	if (fd < 0)
		probe_die("%s", what);
	return fd;
}

static void watch(int epoll, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = {.events = events, .data.u64 = data << 32 | data};
	checked(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "EPOLL_CTL_ADD");
}

static void add_bytes(int fd)
{
	checked((int)write(fd, "x", 1), "write");
}

static void add_count(int fd)
{
	checked((int)write(fd, &(uint64_t){1}, 8), "write");
}

/// Waits up to 200 ms at `epoll` and tells which of the registrations reported, as a set of their data's top digits.
static unsigned reported(int epoll)
{
	struct epoll_event events[8];
	unsigned set = 0;
	int got;
	do
		got = epoll_wait(epoll, events, 8, 200);
	while (got == -1 && errno == EINTR);
	for (int i = 0; i < got; i++)
		set |= 1u << (events[i].data.u64 >> 44 & 0xf);
	return set;
}

static void make_directory(const char *name, char *path, size_t bytes)
{
	snprintf(path, bytes, "%s/%s", probe_dir, name);
	if (mkdir(path, 0755) != 0 && errno != EEXIST)
		probe_die("%s", path);
}

static void touch(const char *name)
{
	char path[512];
	snprintf(path, sizeof path, "%s/%s", probe_dir, name);
	close(checked(open(path, O_CREAT | O_WRONLY | O_TRUNC, 0644), path));
}

static void set_up(void)
{
	char path[512];
	sigset_t set;
	outer = checked(epoll_create1(EPOLL_CLOEXEC), "epoll");
	inner = checked(epoll_create1(0), "epoll");
	checked(pipe(pipe_ends), "pipe");
	edge = checked(eventfd(1, EFD_NONBLOCK), "eventfd");
	once = checked(eventfd(1, EFD_NONBLOCK), "eventfd");
	timer = checked(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), "timerfd");
	checked(timerfd_settime(timer, 0, &(struct itimerspec){{0, 50000000}, {0, 50000000}}, NULL), "timerfd");
	watch(outer, pipe_ends[0], EPOLLIN, DATA_PIPE);
	watch(outer, edge, EPOLLIN | EPOLLET, DATA_EDGE);
	watch(outer, once, EPOLLIN | EPOLLONESHOT, DATA_ONCE);
	watch(outer, inner, EPOLLIN, DATA_INNER);
	watch(inner, timer, EPOLLIN, DATA_TIMER);
	// Counted up later through a duplicate with another number: both have to be one open file still.
	original = checked(eventfd(0, EFD_NONBLOCK), "eventfd");
	watch(outer, original, EPOLLIN | EPOLLET, DATA_DUPLICATE);
	duplicate = checked(fcntl(original, F_DUPFD, 100), "dup");
	reported(outer); // takes the edge and the one shot
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGRTMIN);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signals = checked(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC), "signalfd");
	kill(getpid(), SIGUSR1);
	sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 99});
	notify = checked(inotify_init1(IN_NONBLOCK | IN_CLOEXEC), "inotify");
	make_directory("probe-watched-0", path, sizeof path);
	watches[0] = checked(inotify_add_watch(notify, path, IN_CREATE), path);
	make_directory("probe-watched-1", path, sizeof path);
	watches[1] = checked(inotify_add_watch(notify, path, IN_CREATE | IN_CLOSE_WRITE), path);
	watches[2] = checked(inotify_add_watch(notify, far_away, IN_CREATE), far_away);
}

static void check_epoll(void)
{
	probe_sleep_ms(120);
	unsigned quiet = reported(outer);
	// A rebuilt registration may report the readiness that it finds once more, as after EPOLL_CTL_MOD.
	printf("note: edge-triggered registration %s\n", quiet & 1u << 2 ? "reports again" : "stays quiet");
	probe_check((quiet & ~(1u << 2)) == 1u << 4, "only the nested epoll is ready");
	probe_check(reported(inner) == 1u << 5, "nested epoll reports the timer");
	add_bytes(pipe_ends[1]);
	add_count(edge);
	add_count(once);
	add_count(duplicate);
	unsigned all = reported(outer);
	probe_check(all & 1u << 1, "level-triggered registration");
	probe_check(all & 1u << 2, "edge-triggered registration");
	probe_check(!(all & 1u << 3), "spent one-shot registration stays quiet");
	probe_check(all & 1u << 6, "registration reached through a duplicate");
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)DATA_ONCE << 32};
	probe_check(epoll_ctl(outer, EPOLL_CTL_MOD, once, &event) == 0 && reported(outer) & 1u << 3, "one-shot armed again");
	probe_check(!(reported(outer) & 1u << 2), "edge reported once only");
	probe_check(epoll_ctl(outer, EPOLL_CTL_ADD, edge, &event) == -1 && errno == EEXIST, "registration known by its number");
}

static void check_signalfd(void)
{
	struct signalfd_siginfo info[4];
	ssize_t got = read(signals, info, sizeof info);
	bool both = got == 2 * (ssize_t)sizeof *info && info[0].ssi_signo == SIGUSR1 && info[1].ssi_signo == (uint32_t)SIGRTMIN;
	probe_check(both, "signalfd yields both pending signals");
	probe_check(both && info[1].ssi_int == 99 && info[1].ssi_pid == (uint32_t)getpid(), "signalfd value and sender");
	kill(getpid(), SIGUSR1);
	probe_check(read(signals, info, sizeof info) == sizeof *info, "signalfd goes on");
}

static void check_inotify(void)
{
	char bytes[4096] __attribute__((aligned(8)));
	touch("probe-watched-0/first");
	touch("probe-watched-1/second");
	ssize_t got = read(notify, bytes, sizeof bytes);
	for (ssize_t at = 0; at < got;) {
		const struct inotify_event *event = (const void *)(bytes + at);
		printf("inotify watch %d mask %#x name %s\n", event->wd, event->mask, event->name);
		at += (ssize_t)(sizeof *event + event->len);
	}
	probe_check(got > 0, "inotify reports");
	for (int n = 0; n < 3; n++)
		probe_check(inotify_rm_watch(notify, watches[n]) == 0, "inotify watch number %d", n);
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	set_up();
	probe_ready();
	probe_wait();
	check_epoll();
	check_signalfd();
	check_inotify();
	return probe_end();
}
