// A small family: a parent, a child that leads a session, a grandchild, a child that has ended, and two that have lost their parents, one of them
// the leader of its session, too. They hold what processes share: pipes, a socket pair, TCP
// connections, memory with a lock in it, an open file.
#include "probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

struct shared {
	pthread_mutex_t lock;
	int counter;
	pid_t parent, child, grandchild, orphan, daemon, session;
};

static struct shared *shared;
static volatile int own = 1;
static volatile sig_atomic_t children_ended;

static void child_ended(int signal)
{
	(void)signal;
	children_ended++;
}

static void count(int by)
{
	if (pthread_mutex_lock(&shared->lock) != 0)
		probe_die("lock");
	shared->counter += by;
	pthread_mutex_unlock(&shared->lock);
}

static void send_text(int fd, const char *text)
{
	if (write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		probe_die("write");
}

static void expect(const char *what, int fd, const char *text)
{
	char found[64] = {0};
	ssize_t length = read(fd, found, sizeof found - 1);
	probe_check(length == (ssize_t)strlen(text) && strcmp(found, text) == 0, "%s: %s", what, found);
	fflush(stdout);
}

// Waits for a question at `asks`, and ends by the signal that follows.
static void be_grandchild(int asks, int answers)
{
	own = 3;
	count(100);
	send_text(answers, "here");
	char question[8] = {0};
	if (read(asks, question, sizeof question - 1) != 4)
		_exit(2);
	bool right = own == 3 && getpid() == shared->grandchild && getppid() == shared->child && getpgrp() == getpid()
		&& getsid(0) == shared->child;
	count(1000);
	send_text(answers, right ? "right" : "wrong");
	for (;;)
		pause();
}

// Says to the parent, when it is asked, whether it is what it was.
static void be_orphan(pid_t *self, pid_t session, int asks, int answers)
{
	while (getppid() != 1)
		probe_sleep_ms(1);
	*self = getpid();
	pid_t group = getpgrp();
	own = 4;
	send_text(answers, "here");
	char question[8] = {0};
	if (read(asks, question, sizeof question - 1) != 4)
		_exit(2);
	bool right = own == 4 && getpid() == *self && getppid() == 1 && getsid(0) == session && getpgrp() == group;
	count(10000);
	send_text(answers, right ? "right" : "wrong");
	pause();
	_exit(0);
}

static void expect_of_orphan(const char *what, pid_t pid, int asks, int answers)
{
	send_text(asks, "ask?");
	expect(what, answers, "right");
	kill(pid, SIGKILL);
}

#define ON_ITS_WAY 300000

/// A connection to a listener on loopback, which is closed if it is not wanted.
static void connect_both(int ends[2], int *listener)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof address;
	int accepts = socket(AF_INET, SOCK_STREAM, 0);
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(accepts, (struct sockaddr *)&address, length) != 0 || listen(accepts, 4) != 0
		|| getsockname(accepts, (struct sockaddr *)&address, &length) != 0
		|| connect(ends[0], (struct sockaddr *)&address, length) != 0 || (ends[1] = accept(accepts, NULL, NULL)) < 0)
		probe_die("connect");
	if (listener != NULL)
		*listener = accepts;
	else
		close(accepts);
}

static void check_numbers(const char *what, int fd, int count)
{
	int right = 0;
	for (uint32_t number; right < count && recv(fd, &number, 4, MSG_WAITALL) == 4 && number == (uint32_t)right; right++)
		;
	probe_check(right == count, "%s: %d", what, right);
	fflush(stdout);
}

static void send_numbers(int fd, int count)
{
	for (uint32_t number = 0; number < (uint32_t)count; number++)
		if (send(fd, &number, 4, MSG_DONTWAIT) != 4)
			probe_die("send number %u", number);
}

static void be_child(int asks, int answers, int file, int pair, int tcp)
{
	own = 2;
	if (setsid() != getpid())
		probe_die("setsid");
	int down[2], up[2];
	if (pipe(down) != 0 || pipe2(up, O_CLOEXEC) != 0)
		probe_die("pipe");
	pid_t pid = fork();
	if (pid == 0) {
		setpgid(0, 0);
		shared->grandchild = getpid();
		be_grandchild(down[0], up[1]);
	}
	char text[16] = {0};
	if (read(up[0], text, 4) != 4)
		probe_die("grandchild");
	send_text(answers, "here");
	if (read(asks, text, 4) != 4)
		_exit(2);
	bool right = own == 2 && getpid() == shared->child && getppid() == shared->parent && getsid(0) == getpid();
	probe_check(right, "the child is what it was");
	fflush(stdout);
	send_text(down[1], "ask?");
	expect("the grandchild is", up[0], "right");
	send_text(file, "child ");
	expect("by the socket pair", pair, "packet");
	check_numbers("by TCP", tcp, ON_ITS_WAY / 4);
	send_text(tcp, "back");
	char end;
	probe_check(read(tcp, &end, 1) == 1 && end == '.' && read(tcp, &end, 1) == 0, "TCP ends");
	fflush(stdout);
	kill(pid, SIGTERM);
	int status = 0;
	probe_check(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM,
		"the grandchild ended by a signal");
	fflush(stdout);
	count(10);
	send_text(answers, "done");
	_exit(probe_failures == 0 ? 7 : 8);
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_t attributes;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&shared->lock, &attributes);
	shared->parent = getpid();
	signal(SIGCHLD, child_ended);
	pid_t zombie = fork();
	if (zombie == 0)
		_exit(3);
	char path[256];
	snprintf(path, sizeof path, "%s/tree.txt", probe_dir);
	int file = open(path, O_CREAT | O_TRUNC | O_RDWR, 0644);
	int down[2], up[2], pair[2];
	if (file < 0 || pipe(down) != 0 || pipe(up) != 0 || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0)
		probe_die("set-up");
	send_text(file, "parent ");
	int tcp[2], ended[2], listener;
	connect_both(tcp, &listener);
	connect_both(ended, NULL);
	int large = 1 << 20;
	setsockopt(tcp[0], SOL_SOCKET, SO_SNDBUF, &large, sizeof large);
	int orphan[4], daemon[4];
	if (pipe(orphan) != 0 || pipe(orphan + 2) != 0 || pipe(daemon) != 0 || pipe(daemon + 2) != 0)
		probe_die("set-up");
	pid_t session = getsid(0), between = fork();
	if (between == 0) {
		if (fork() == 0)
			be_orphan(&shared->orphan, session, orphan[0], orphan[3]);
		shared->session = setsid();
		if (fork() == 0)
			be_orphan(&shared->daemon, shared->session, daemon[0], daemon[3]);
		_exit(0);
	}
	char here[8];
	if (waitpid(between, NULL, 0) != between || read(orphan[2], here, 4) != 4 || read(daemon[2], here, 4) != 4)
		probe_die("orphans");
	children_ended = 0;
	pid_t child = fork();
	if (child == 0) {
		shared->child = getpid();
		close(down[1]);
		close(up[0]);
		close(pair[0]);
		be_child(down[0], up[1], file, pair[1], tcp[1]);
	}
	close(down[0]);
	close(up[1]);
	close(pair[1]);
	close(tcp[1]);
	char text[16] = {0};
	if (read(up[0], text, 4) != 4)
		probe_die("child");
	siginfo_t of_zombie;
	if (waitid(P_PID, (id_t)zombie, &of_zombie, WEXITED | WNOWAIT) != 0)
		probe_die("waitid");
	children_ended = 0;
	// On its way while the family is forked.
	if (send(pair[0], "packet", 6, 0) != 6)
		probe_die("send");
	send_numbers(tcp[0], ON_ITS_WAY / 4);
	send_text(ended[0], "last");
	shutdown(ended[0], SHUT_WR);
	send_text(ended[1], "other");
	count(1);
	probe_ready();
	probe_wait();
	probe_check(own == 1 && getpid() == shared->parent && child == shared->child, "the parent is what it was");
	probe_check(children_ended == 0, "nobody was told of an end");
	fflush(stdout);
	expect("before its end", ended[1], "last");
	probe_check(read(ended[1], text, 1) == 0, "its end");
	expect("from the one that hears", ended[0], "other");
	struct sockaddr_in address = {0};
	socklen_t length = sizeof address;
	int again = socket(AF_INET, SOCK_STREAM, 0);
	probe_check(getsockname(listener, (struct sockaddr *)&address, &length) == 0
			&& connect(again, (struct sockaddr *)&address, length) == 0 && accept(listener, NULL, NULL) >= 0,
		"the listener accepts");
	fflush(stdout);
	send_text(tcp[0], ".");
	shutdown(tcp[0], SHUT_WR);
	send_text(down[1], "ask?");
	expect("the child is", up[0], "done");
	expect("and by TCP", tcp[0], "back");
	expect_of_orphan("one without a parent is", shared->orphan, orphan[1], orphan[2]);
	expect_of_orphan("one without a session leader is", shared->daemon, daemon[1], daemon[2]);
	int status = 0;
	probe_check(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child ended");
	probe_check(children_ended == 1, "and its parent was told");
	probe_check(waitpid(zombie, &status, 0) == zombie && WIFEXITED(status) && WEXITSTATUS(status) == 3, "the first one, too");
	probe_check(waitpid(-1, &status, 0) == -1 && errno == ECHILD, "there is no other child");
	probe_check(shared->counter == 21111, "all counted: %d", shared->counter);
	probe_check(lseek(file, 0, SEEK_CUR) == 13, "the file was written by two");
	char found[32] = {0};
	probe_check(pread(file, found, 31, 0) == 13 && strcmp(found, "parent child ") == 0, "it has %s", found);
	unlink(path);
	return probe_end();
}
