// System calls in flight: one thread inside each call that can block. After the trigger each is completed by its
// event and reports what it returned.
//
// The kernel restarts most of them by itself after a stop. Some it ends with EINTR, as signal(7) documents, and a
// forked copy may see that once more often than the original: those are repeated here as any program has to, and
// counted in a note.
#include "probe.h"

#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

enum { LONG_S = 36000, SHORT_MS = 1500, TOLERANCE_MS = 120000 };

struct call {
	const char *name;
	long (*make)(struct call *); // returns when the event came; negative: -errno
	void (*complete)(struct call *);
	long expected;
	int fds[2], flag; // whatever the call needs
	uint32_t word;
	volatile pid_t tid;
	volatile bool released;
	volatile int interruptions;
	long result;
	pthread_t thread;
};

static void on_wake(int number)
{
	(void)number;
}

/// Whether the call has to be made again: interrupted, but not by the event.
static bool again(struct call *call, long result)
{
	if (result != -1 || errno != EINTR || call->released)
		return false;
	call->interruptions++;
	return true;
}

static long outcome(long result)
{
	return result == -1 ? -errno : result;
}

static void wake_by_signal(struct call *call)
{
	pthread_kill(call->thread, SIGUSR1);
}

static long in_nanosleep(struct call *call)
{
	struct timespec rest = {LONG_S, 0};
	int64_t started_ms = probe_now_ms(CLOCK_MONOTONIC);
	long result;
	do
		result = nanosleep(&rest, &rest);
	while (again(call, result));
	// What is left has to be what was asked for less what passed; a parked zygote's time may count or not.
	int64_t slept_ms = LONG_S * 1000L - (rest.tv_sec * 1000L + rest.tv_nsec / 1000000);
	int64_t passed_ms = probe_now_ms(CLOCK_MONOTONIC) - started_ms;
	return slept_ms <= passed_ms + 1 && slept_ms > passed_ms - TOLERANCE_MS ? outcome(result) : -EDOM;
}

static long in_short_nanosleep(struct call *call)
{
	int64_t started_ms = probe_now_ms(CLOCK_MONOTONIC);
	struct timespec rest = {SHORT_MS / 1000, SHORT_MS % 1000 * 1000000L};
	long result;
	do
		result = nanosleep(&rest, &rest);
	while (again(call, result));
	return probe_now_ms(CLOCK_MONOTONIC) - started_ms >= SHORT_MS ? outcome(result) : -EDOM;
}

static long in_clock_nanosleep(struct call *call)
{
	struct timespec deadline;
	clock_gettime(CLOCK_MONOTONIC, &deadline);
	deadline.tv_sec += LONG_S;
	do
		errno = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL);
	while (again(call, errno == 0 ? 0 : -1));
	return -errno;
}

static long futex_wait(struct call *call, int operation, const struct timespec *timeout)
{
	long result;
	do
		result = syscall(SYS_futex, &call->word, operation | FUTEX_PRIVATE_FLAG, 0, timeout, NULL, FUTEX_BITSET_MATCH_ANY);
	while (again(call, result));
	// EAGAIN: the word had changed before the repeated call slept again.
	return result == -1 && errno == EAGAIN && call->word == 1 ? 0 : outcome(result);
}

static long in_futex(struct call *call)
{
	return futex_wait(call, FUTEX_WAIT, NULL);
}

static long in_futex_with_timeout(struct call *call)
{
	return futex_wait(call, FUTEX_WAIT, &(struct timespec){LONG_S, 0});
}

static long in_futex_until(struct call *call)
{
	struct timespec deadline;
	clock_gettime(CLOCK_MONOTONIC, &deadline);
	deadline.tv_sec += LONG_S;
	return futex_wait(call, FUTEX_WAIT_BITSET, &deadline);
}

static void wake_futex(struct call *call)
{
	__atomic_store_n(&call->word, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &call->word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
}

static void write_byte(struct call *call)
{
	if (write(call->fds[1], "x", 1) != 1)
		probe_die("write");
}

static long in_epoll_wait(struct call *call)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x1122334455667788};
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, call->fds[0], &event) != 0)
		probe_die("epoll");
	event.data.u64 = 0;
	long result;
	do
		result = epoll_wait(epoll, &event, 1, -1);
	while (again(call, result));
	return event.data.u64 == 0x1122334455667788 ? outcome(result) : -EDOM;
}

static long in_poll(struct call *call)
{
	struct pollfd polled = {.fd = call->fds[0], .events = POLLIN};
	long result;
	do
		result = poll(&polled, 1, call->flag);
	while (again(call, result));
	return outcome(result);
}

static long in_select(struct call *call)
{
	fd_set set;
	long result;
	do {
		FD_ZERO(&set);
		FD_SET(call->fds[0], &set);
		result = select(call->fds[0] + 1, &set, NULL, NULL, NULL);
	} while (again(call, result));
	return outcome(result);
}

static long in_read(struct call *call)
{
	char byte;
	long result;
	do
		result = read(call->fds[0], &byte, 1);
	while (again(call, result));
	return outcome(result);
}

/// Writes to a full pipe; the event drains it.
static long in_write(struct call *call)
{
	char bytes[4096] = {0};
	long result;
	do
		result = write(call->fds[1], bytes, sizeof bytes);
	while (again(call, result));
	return outcome(result);
}

static void drain(struct call *call)
{
	char bytes[4096];
	for (int i = 0; i < 16; i++)
		if (read(call->fds[0], bytes, sizeof bytes) < 0)
			probe_die("read");
}

static long in_accept(struct call *call)
{
	long result;
	do
		result = accept(call->fds[0], NULL, NULL);
	while (again(call, result));
	return result >= 0 ? 0 : outcome(result);
}

static void connect_to(struct call *call)
{
	struct sockaddr_un address;
	socklen_t bytes = sizeof address;
	getsockname(call->fds[0], (struct sockaddr *)&address, &bytes);
	if (connect(call->fds[1], (struct sockaddr *)&address, bytes) != 0)
		probe_die("connect");
}

static long in_sigtimedwait(struct call *call)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	siginfo_t info;
	long result;
	do
		result = sigtimedwait(&set, &info, &(struct timespec){LONG_S, 0});
	while (again(call, result));
	return result == SIGRTMIN ? info.si_value.sival_int : outcome(result);
}

static void queue_value(struct call *call)
{
	pthread_sigqueue(call->thread, SIGRTMIN, (union sigval){.sival_int = 77});
}

static long in_pause(struct call *call)
{
	long result;
	do
		result = pause();
	while (again(call, result));
	return outcome(result);
}

static long in_sigsuspend(struct call *call)
{
	sigset_t none;
	sigemptyset(&none);
	long result;
	do
		result = sigsuspend(&none);
	while (again(call, result));
	return outcome(result);
}

static void nothing(struct call *call)
{
	(void)call;
}

static struct call calls[] = {
	{.name = "nanosleep", .make = in_nanosleep, .complete = wake_by_signal, .expected = -EINTR},
	{.name = "nanosleep to its end", .make = in_short_nanosleep, .complete = nothing},
	{.name = "clock_nanosleep absolute", .make = in_clock_nanosleep, .complete = wake_by_signal, .expected = -EINTR},
	{.name = "futex", .make = in_futex, .complete = wake_futex},
	{.name = "futex with timeout", .make = in_futex_with_timeout, .complete = wake_futex},
	{.name = "futex until", .make = in_futex_until, .complete = wake_futex},
	{.name = "epoll_wait", .make = in_epoll_wait, .complete = write_byte, .expected = 1},
	{.name = "poll", .make = in_poll, .complete = write_byte, .expected = 1, .flag = -1},
	{.name = "poll with timeout", .make = in_poll, .complete = write_byte, .expected = 1, .flag = LONG_S * 1000},
	{.name = "select", .make = in_select, .complete = write_byte, .expected = 1},
	{.name = "read on a pipe", .make = in_read, .complete = write_byte, .expected = 1},
	{.name = "recv on a socket", .make = in_read, .complete = write_byte, .expected = 1, .flag = 's'},
	{.name = "write to a full pipe", .make = in_write, .complete = drain, .expected = 4096, .flag = 'f'},
	{.name = "accept", .make = in_accept, .complete = connect_to, .flag = 'l'},
	{.name = "sigtimedwait", .make = in_sigtimedwait, .complete = queue_value, .expected = 77},
	{.name = "pause", .make = in_pause, .complete = wake_by_signal, .expected = -EINTR},
	{.name = "sigsuspend", .make = in_sigsuspend, .complete = wake_by_signal, .expected = -EINTR},
};
enum { CALLS = sizeof calls / sizeof *calls };

static void open_descriptors(struct call *call)
{
	int got = 0;
	if (call->flag == 's') {
		got = socketpair(AF_UNIX, SOCK_STREAM, 0, call->fds);
	} else if (call->flag == 'l') {
		struct sockaddr_un any = {.sun_family = AF_UNIX}; // bind by family alone picks an abstract name
		call->fds[0] = socket(AF_UNIX, SOCK_STREAM, 0);
		call->fds[1] = socket(AF_UNIX, SOCK_STREAM, 0);
		got = bind(call->fds[0], (struct sockaddr *)&any, sizeof any.sun_family) | listen(call->fds[0], 4);
	} else {
		got = pipe(call->fds);
	}
	if (got != 0)
		probe_die("%s", call->name);
	if (call->flag == 'f') {
		char bytes[4096] = {0};
		for (int i = 0; i < 16; i++)
			if (write(call->fds[1], bytes, sizeof bytes) < 0)
				probe_die("write");
	}
}

static void *run(void *argument)
{
	struct call *call = argument;
	call->tid = gettid();
	call->result = call->make(call);
	return NULL;
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	struct sigaction action = {.sa_handler = on_wake};
	sigaction(SIGUSR1, &action, NULL);
	for (int i = 0; i < CALLS; i++) {
		open_descriptors(&calls[i]);
		calls[i].thread = probe_thread(run, &calls[i]);
		while (calls[i].tid == 0)
			probe_sleep_ms(1);
		if (calls[i].make != in_short_nanosleep)
			probe_until_asleep(calls[i].tid);
	}
	probe_ready();
	probe_wait();
	for (int i = 0; i < CALLS; i++) {
		bool to_its_end = calls[i].make == in_short_nanosleep;
		if (!to_its_end)
			calls[i].released = true;
		calls[i].complete(&calls[i]);
		pthread_join(calls[i].thread, NULL);
		probe_check(calls[i].result == calls[i].expected, "%s returned %ld", calls[i].name, calls[i].result);
		if (calls[i].interruptions > 0)
			printf("note: %s was interrupted %d time(s) before\n", calls[i].name, calls[i].interruptions);
	}
	return probe_end();
}
