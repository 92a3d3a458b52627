// Descriptors of processes: of itself, of a child, of a child that has ended, of one that is gone, and, in the child, of its parent.
#include "probe.h"

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

static volatile sig_atomic_t signals;

static void note_signal(int signal)
{
	(void)signal;
	signals++;
}

static int open_process(pid_t pid, int flags)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, flags);
	if (fd < 0)
		probe_die("pidfd_open");
	return fd;
}

static int tell(int fd, int signal)
{
	return (int)syscall(SYS_pidfd_send_signal, fd, signal, NULL, 0);
}

static bool has_ended(int fd)
{
	struct pollfd polled = {.fd = fd, .events = POLLIN};
	return poll(&polled, 1, 0) == 1;
}

static pid_t ended(int status)
{
	pid_t pid = fork();
	if (pid == 0)
		_exit(status);
	siginfo_t info;
	if (pid < 0 || waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) != 0)
		probe_die("a child that ends");
	return pid;
}

// Answers, when it is asked, whether its descriptor is still its parent's.
static void be_child(int asks, int answers)
{
	int parent = open_process(getppid(), 0);
	char byte = 'h';
	while (write(answers, &byte, 1) == 1 && read(asks, &byte, 1) == 1)
		byte = !has_ended(parent) && tell(parent, SIGUSR2) == 0 ? 'y' : 'n';
	_exit(0);
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	signal(SIGUSR1, note_signal);
	signal(SIGUSR2, note_signal);
	int asks[2], answers[2];
	if (pipe(asks) != 0 || pipe(answers) != 0)
		probe_die("pipe");
	pid_t pid = fork();
	if (pid == 0)
		be_child(asks[0], answers[1]);
	char byte = 0;
	if (pid < 0 || read(answers[0], &byte, 1) != 1)
		probe_die("a child");
	int child = open_process(pid, O_NONBLOCK), own = open_process(getpid(), 0);
	int second = fcntl(child, F_DUPFD, 40);
	int zombie = open_process(ended(7), 0);
	pid_t other = ended(0);
	int gone = open_process(other, 0);
	if (second < 0 || waitpid(other, NULL, 0) != other)
		probe_die("waitpid");
	int set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event of_child = {.events = EPOLLIN, .data.u64 = 1}, of_zombie = {.events = EPOLLIN, .data.u64 = 2};
	if (epoll_ctl(set, EPOLL_CTL_ADD, child, &of_child) != 0 || epoll_ctl(set, EPOLL_CTL_ADD, zombie, &of_zombie) != 0)
		probe_die("epoll_ctl");
	probe_ready();
	probe_wait();

	probe_check(tell(own, SIGUSR1) == 0 && signals == 1 && !has_ended(own), "its own");
	siginfo_t info = {0};
	bool waits = waitid(P_PIDFD, (id_t)child, &info, WEXITED) == -1 && errno == EAGAIN;
	probe_check(waits && !has_ended(child) && tell(child, 0) == 0, "a child's, which does not block");
	probe_check(fcntl(child, F_GETFD) == FD_CLOEXEC && fcntl(second, F_GETFD) == 0, "its duplicate");
	bool asked = write(asks[1], "?", 1) == 1 && read(answers[0], &byte, 1) == 1;
	probe_check(asked && byte == 'y' && signals == 2, "the child's, of its parent: %c", byte);
	struct epoll_event found[2];
	int events = epoll_wait(set, found, 2, 0);
	probe_check(events == 1 && found[0].data.u64 == 2, "%d in the set", events);
	probe_check(has_ended(gone) && tell(gone, 0) == -1 && errno == ESRCH, "one that is gone");
	bool waited = has_ended(zombie) && waitid(P_PIDFD, (id_t)zombie, &info, WEXITED) == 0;
	probe_check(waited && info.si_code == CLD_EXITED && info.si_status == 7, "one that has ended: %d", info.si_status);
	epoll_ctl(set, EPOLL_CTL_DEL, zombie, NULL);
	bool killed = tell(second, SIGKILL) == 0 && epoll_wait(set, found, 2, -1) == 1 && found[0].data.u64 == 1;
	waited = waitid(P_PIDFD, (id_t)child, &info, WEXITED) == 0 && info.si_pid == pid;
	probe_check(killed && waited && info.si_status == SIGKILL, "the child ends");
	return probe_end();
}
