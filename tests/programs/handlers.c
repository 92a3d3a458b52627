// Signal handlers as a way in: timers fire for every signal that could reach a thread while a copy is made, with a handler that looks
// at what it may do, and memory wherever a stack of the fork's makers might be. No handler may ever run with more than the program has.
#define _GNU_SOURCE
#include "probe.h"

#include <linux/capability.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int privileged, ran;

static void on_signal(int number)
{
	(void)number;
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {0};
	syscall(SYS_capget, &header, data);
	ran = 1;
	if (syscall(SYS_geteuid) == 0 || (data[0].effective | data[0].permitted | data[1].effective | data[1].permitted) != 0)
		privileged = 1;
}

/// Reserves what is free where kernels put stacks: a signal frame of someone else's stack pointer would find memory there.
static void map_where_stacks_are(void)
{
	const uintptr_t first = 0x7ff000000000, last = 0x7ffffffff000, step = 1UL << 28, small = 1UL << 21;
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
	for (uintptr_t at = first; at < last; at += step) {
		size_t bytes = last - at < step ? last - at : step;
		if (mmap((void *)at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) != MAP_FAILED)
			continue;
		for (uintptr_t part = at; part < at + bytes; part += small)
			(void)mmap((void *)part, small, PROT_READ | PROT_WRITE, flags, -1, 0);
	}
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	map_where_stacks_are();
	const int signals[] = {SIGTRAP, SIGSEGV, SIGALRM, SIGURG, SIGWINCH, SIGCHLD, SIGRTMIN + 3};
	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
		struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
		sigaction(signals[i], &action, NULL);
		struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = signals[i]};
		// A pending trap cannot be forked; that of the others is no matter.
		long period_ns = signals[i] == SIGTRAP ? 20000000 : 300000;
		struct itimerspec every = {{0, period_ns}, {0, period_ns}};
		timer_t timer;
		if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &every, NULL) != 0)
			probe_die("timer");
	}
	probe_ready();
	probe_wait();
	ran = 0;
	for (int i = 0; i < 200 && !ran; i++)
		probe_sleep_ms(5);
	probe_check(ran, "handlers run");
	probe_check(!privileged, "no handler ran with privileges");
	return probe_end();
}
