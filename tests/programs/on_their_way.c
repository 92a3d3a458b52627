// Descriptors on their way (SCM_RIGHTS): beside bytes of a stream, with packets and datagrams; of files that are open elsewhere too and of
// files that are not; a socket at which another one waits; and one that a child has sent.
#include "probe.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { MOST = 4 };

static void pair(int kind, int ends[2])
{
	if (socketpair(AF_UNIX, kind, 0, ends) != 0)
		probe_die("socketpair");
}

static void pass(int by, const char *bytes, const int *fds, size_t count)
{
	char control[CMSG_SPACE(MOST * sizeof(int))] __attribute__((aligned(8))) = {0};
	struct iovec vector = {(void *)bytes, strlen(bytes)};
	struct msghdr message = {
		.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(count * sizeof(int))};
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	*rights = (struct cmsghdr){
		.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(count * sizeof(int))};
	memcpy(CMSG_DATA(rights), fds, count * sizeof(int));
	if (sendmsg(by, &message, 0) != (ssize_t)strlen(bytes))
		probe_die("sendmsg");
}

// Says whether just these bytes come, with so many descriptors.
static bool taken(int by, const char *bytes, int *fds, size_t count)
{
	char control[CMSG_SPACE(MOST * sizeof(int))] __attribute__((aligned(8)));
	char found[64];
	struct iovec vector = {found, sizeof found};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	ssize_t got = recvmsg(by, &message, MSG_DONTWAIT);
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	size_t come = rights == NULL || got < 0 ? 0 : (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	if (come > 0 && come <= MOST)
		memcpy(fds, CMSG_DATA(rights), come * sizeof(int));
	return got == (ssize_t)strlen(bytes) && memcmp(found, bytes, (size_t)got) == 0 && come == count;
}

static bool reads(int fd, const char *bytes)
{
	char found[64];
	ssize_t got = read(fd, found, sizeof found);
	return got == (ssize_t)strlen(bytes) && memcmp(found, bytes, (size_t)got) == 0;
}

static bool has_ended(int socket)
{
	char byte;
	return recv(socket, &byte, 1, MSG_DONTWAIT) == 0;
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) != -1;
}

// A child that has sent what it alone had, and what it still has.
static pid_t begin_child(int *from_child)
{
	int pairs[2], answers[2];
	pair(SOCK_STREAM, pairs);
	if (pipe(answers) != 0)
		probe_die("pipe");
	pid_t child = fork();
	if (child == 0) {
		int own[2], kept = eventfd(0, EFD_NONBLOCK);
		if (pipe(own) != 0 || write(own[1], "of the child", 12) != 12)
			probe_die("child");
		pass(pairs[0], "child", (int[]){own[0], kept}, 2);
		close(own[0]);
		close(own[1]);
		if (write(answers[1], "r", 1) != 1)
			probe_die("child");
		struct pollfd polled = {.fd = kept, .events = POLLIN};
		poll(&polled, 1, -1);
		_exit(9);
	}
	close(pairs[0]);
	if (child < 0 || !reads(answers[0], "r"))
		probe_die("child");
	*from_child = pairs[1];
	return child;
}

static void check_child(pid_t child, int from_child)
{
	int got[MOST], status = 0;
	probe_check(taken(from_child, "child", got, 2) && reads(got[0], "of the child"), "what the child alone had");
	probe_check(reads(got[0], ""), "and its end");
	bool woken = write(got[1], &(uint64_t){1}, 8) == 8 && waitpid(child, &status, 0) == child;
	probe_check(woken && WIFEXITED(status) && WEXITSTATUS(status) == 9, "what it has, too");
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	char path[256];
	snprintf(path, sizeof path, "%s/on-their-way", probe_dir);

	// A stream: bytes without, with two, without, and with one descriptor.
	int stream[2], ends[2], event = eventfd(3, EFD_NONBLOCK), file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	pair(SOCK_STREAM, stream);
	if (pipe(ends) != 0 || event < 0 || file < 0 || write(ends[1], "in the pipe", 11) != 11 || write(file, "0123456789", 10) != 10)
		probe_die("files");
	if (send(stream[0], "abc", 3, 0) != 3)
		probe_die("send");
	pass(stream[0], "two", (int[]){ends[0], event}, 2);
	if (send(stream[0], "def", 3, 0) != 3)
		probe_die("send");
	pass(stream[0], "file", &file, 1);
	close(ends[0]);
	lseek(file, 4, SEEK_SET);

	// Packets whose sender has gone, with memory and an end of a socket at which a descriptor waits itself.
	int packets[2], inner[2], memory = memfd_create("on its way", 0), again[2];
	pair(SOCK_SEQPACKET, packets);
	pair(SOCK_STREAM, inner);
	if (memory < 0 || pwrite(memory, "memory", 6, 1 << 20) != 6 || pipe(again) != 0)
		probe_die("memory");
	pass(inner[0], "deeper", &again[1], 1);
	close(again[1]);
	pass(packets[0], "memory", &memory, 1);
	pass(packets[0], "socket", &inner[1], 1);
	close(memory);
	close(inner[1]);
	close(packets[0]);

	// A datagram with an end of its own pair.
	int datagrams[2];
	pair(SOCK_DGRAM, datagrams);
	pass(datagrams[0], "own end", &datagrams[0], 1);
	close(datagrams[0]);

	bool alone = probe_option(argc, argv, "--alone", NULL) != NULL;
	int from_child = -1;
	pid_t child = alone ? -1 : begin_child(&from_child);
	probe_ready();
	probe_wait();

	int got[MOST] = {-1, -1, -1, -1};
	char few[4] = {0};
	probe_check(recv(stream[1], few, 2, 0) == 2 && memcmp(few, "ab", 2) == 0, "the bytes before");
	probe_check(taken(stream[1], "ctwo", got, 2), "two on a stream");
	probe_check(reads(got[0], "in the pipe"), "a pipe that nothing else has");
	uint64_t count = 0;
	bool shared = write(got[1], &(uint64_t){4}, 8) == 8 && read(event, &count, 8) == 8;
	probe_check(shared && count == 7, "an eventfd that is open here, too: %llu", (unsigned long long)count);
	probe_check(taken(stream[1], "deffile", got, 1), "one more, behind other bytes");
	probe_check(lseek(got[0], 0, SEEK_CUR) == 4 && lseek(got[0], 2, SEEK_CUR) == 6 && lseek(file, 0, SEEK_CUR) == 6, "one open file");
	write(ends[1], "x", 1);

	char bytes[8] = {0};
	probe_check(taken(packets[1], "memory", got, 1) && pread(got[0], bytes, 6, 1 << 20) == 6 && memcmp(bytes, "memory", 6) == 0, "memory");
	probe_check(taken(packets[1], "socket", got, 1), "a socket");
	int socket = got[0];
	probe_check(has_ended(packets[1]), "its sender has gone");
	probe_check(taken(socket, "deeper", got, 1), "what waited there");
	probe_check(write(got[0], "deep", 4) == 4 && reads(again[0], "deep"), "is the pipe's end");
	probe_check(write(inner[0], "still", 5) == 5 && reads(socket, "still"), "it is connected");

	probe_check(taken(datagrams[1], "own end", got, 1), "its own peer");
	probe_check(send(got[0], "to it", 5, 0) == 5 && reads(datagrams[1], "to it"), "which sends to it");

	if (!alone)
		check_child(child, from_child);
	int next = dup(0);
	for (int fd = next; fd < next + 64; fd++)
		if (fd != next && is_open(fd))
			printf("open: %d\n", fd);
	return probe_end();
}
