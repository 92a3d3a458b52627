// Unix sockets with names: connections within the program, to listeners that are there and to one that is gone, and datagram sockets with
// what waits at them.
#include "probe.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

static const int yes = 1;

/// Names that begin with '@' are abstract, others are files below the directory.
static socklen_t address(const char *name, struct sockaddr_un *to)
{
	*to = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (name[0] == '@')
		memcpy(to->sun_path + 1, name + 1, strlen(name + 1));
	else
		snprintf(to->sun_path, sizeof to->sun_path, "%s/%s", probe_dir, name);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (name[0] == '@' ? strlen(name) : strlen(to->sun_path) + 1));
}

static int new_socket(int kind)
{
	int fd = socket(AF_UNIX, kind | SOCK_CLOEXEC, 0);
	if (fd < 0)
		probe_die("socket");
	return fd;
}

static int bound(int fd, const char *name)
{
	struct sockaddr_un to;
	socklen_t bytes = address(name, &to);
	if (bind(fd, (struct sockaddr *)&to, bytes) != 0)
		probe_die("bind %s", name);
	return fd;
}

static int connected(int fd, const char *name)
{
	struct sockaddr_un to;
	socklen_t bytes = address(name, &to);
	if (connect(fd, (struct sockaddr *)&to, bytes) != 0)
		probe_die("connect to %s", name);
	return fd;
}

static int listener(int kind, const char *name)
{
	int fd = bound(new_socket(kind), name);
	if (listen(fd, 5) != 0)
		probe_die("listen");
	return fd;
}

static int accepted(int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		probe_die("accept");
	return fd;
}

static void send_to(int from, const char *name, const char *text)
{
	struct sockaddr_un to;
	socklen_t bytes = address(name, &to);
	if (sendto(from, text, strlen(text), 0, (struct sockaddr *)&to, bytes) < 0)
		probe_die("send to %s", name);
}

static void print_name(const char *what, const struct sockaddr_un *name, socklen_t bytes)
{
	const size_t head = offsetof(struct sockaddr_un, sun_path);
	printf(" %s %u ", what, bytes);
	for (size_t n = head; n < bytes && (n == head || name->sun_path[n - head] != 0); n++)
		putchar(name->sun_path[n - head] == 0 ? '@' : name->sun_path[n - head]);
}

static void show(const char *what, int fd)
{
	struct sockaddr_un name = {0};
	socklen_t bytes = sizeof name;
	printf("%s:", what);
	if (getsockname(fd, (struct sockaddr *)&name, &bytes) == 0)
		print_name("is", &name, bytes);
	bytes = sizeof name;
	memset(&name, 0, sizeof name);
	if (getpeername(fd, (struct sockaddr *)&name, &bytes) == 0)
		print_name("of", &name, bytes);
	struct ucred peer = {0};
	bytes = sizeof peer;
	getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
	printf(" peer is this process: %d\n", peer.pid == getpid());
}

static void show_waiting(const char *what, int fd)
{
	for (;;) {
		char text[64] = "";
		struct sockaddr_un from = {0};
		socklen_t bytes = sizeof from;
		ssize_t got = recvfrom(fd, text, sizeof text - 1, MSG_DONTWAIT, (struct sockaddr *)&from, &bytes);
		if (got < 0)
			return;
		printf("%s: %zd %s", what, got, text);
		print_name("from", &from, bytes);
		puts("");
	}
}

static void show_file(const char *name)
{
	char path[128];
	struct stat status = {0};
	snprintf(path, sizeof path, "%s/%s", probe_dir, name);
	if (lstat(path, &status) != 0)
		printf("%s: none\n", name);
	else
		printf("%s: mode %o of %d\n", name, status.st_mode, (int)status.st_uid);
}

static void talk(const char *what, int a, int b)
{
	char byte[2] = "";
	bool there = write(a, "x", 1) == 1 && read(b, byte, 1) == 1, back = write(b, "y", 1) == 1 && read(a, byte, 1) == 1;
	probe_check(there && back, "%s: goes on", what);
}

/// A socket takes any number of datagrams from its peer, and few from others.
static int crowded(int *count)
{
	int source = bound(new_socket(SOCK_DGRAM), "@n-source"), early = bound(new_socket(SOCK_DGRAM), "@n-early");
	int fd = bound(new_socket(SOCK_DGRAM), "@n-crowded");
	send_to(source, "@n-crowded", "peer, before");
	send_to(early, "@n-crowded", "other, before");
	connected(fd, "@n-source");
	struct sockaddr_un to;
	socklen_t bytes = address("@n-crowded", &to);
	while (*count < 100 && sendto(source, "peer", 4, MSG_DONTWAIT, (struct sockaddr *)&to, bytes) == 4)
		++*count;
	if (*count < 30)
		probe_die("only %d datagrams were taken", *count);
	return fd;
}

/// Each sends to the one before. The first was connected last: from then on it takes nothing from the second.
static void chain(int *links)
{
	for (int n = 0; n < 3; n++) {
		char name[16];
		snprintf(name, sizeof name, "@n-chain-%d", n);
		links[n] = bound(new_socket(SOCK_DGRAM), name);
	}
	connected(links[2], "@n-chain-1");
	send_to(links[2], "@n-chain-1", "from the last");
	connected(links[1], "@n-chain-0");
}

/// Two that have each other, and three that were connected to one of them before, one of these through another: they may not send to it.
static void mutual(int *sockets)
{
	for (int n = 0; n < 5; n++) {
		char name[16];
		snprintf(name, sizeof name, n == 1 ? "n-mutual-%d" : "@n-mutual-%d", n);
		sockets[n] = bound(new_socket(SOCK_DGRAM), name);
	}
	connected(sockets[4], "@n-mutual-3");
	connected(sockets[0], "n-mutual-1"), connected(sockets[3], "n-mutual-1");
	connected(sockets[1], "@n-mutual-2"), connected(sockets[2], "n-mutual-1");
	send_to(sockets[1], "@n-mutual-2", "of the pair");
	char path[128];
	snprintf(path, sizeof path, "%s/n-mutual-1", probe_dir);
	if (unlink(path) != 0)
		probe_die("%s", path);
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	char path[128];
	// The client has a lower number than the listener, and the listener a mode of its own.
	int by_path[2] = {new_socket(SOCK_STREAM), -1}, own_name[2], abstract[2], gone[2], gone_too[2], stale[2], packets[2];
	int path_listener = listener(SOCK_STREAM, "n-listener");
	snprintf(path, sizeof path, "%s/n-listener", probe_dir);
	if (chmod(path, 0640) != 0)
		probe_die("chmod");
	connected(by_path[0], "n-listener");
	by_path[1] = accepted(path_listener);
	own_name[0] = connected(bound(new_socket(SOCK_STREAM), "n-client"), "n-listener");
	own_name[1] = accepted(path_listener);
	int abstract_listener = listener(SOCK_STREAM, "@n-abstract");
	abstract[0] = connected(bound(new_socket(SOCK_STREAM), "@n-abstract-client"), "@n-abstract");
	abstract[1] = accepted(abstract_listener);
	int ends = listener(SOCK_STREAM, "n-removed");
	gone[0] = connected(new_socket(SOCK_STREAM), "n-removed"), gone[1] = accepted(ends);
	gone_too[0] = connected(new_socket(SOCK_STREAM), "n-removed"), gone_too[1] = accepted(ends);
	snprintf(path, sizeof path, "%s/n-removed", probe_dir);
	if (unlink(path) != 0 || close(ends) != 0)
		probe_die("%s", path);
	ends = listener(SOCK_STREAM, "n-stale");
	stale[0] = connected(new_socket(SOCK_STREAM), "n-stale"), stale[1] = accepted(ends);
	close(ends);
	int packet_listener = listener(SOCK_SEQPACKET, "n-packets");
	packets[0] = connected(new_socket(SOCK_SEQPACKET), "n-packets"), packets[1] = accepted(packet_listener);
	if (write(packets[0], "one", 3) != 3 || write(packets[0], "three", 5) != 5 || write(by_path[0], "waits", 5) != 5)
		probe_die("write");

	// Datagrams: from a socket with a name, from one without, an empty one; more in a socket that asks who sent them.
	int receiver = bound(new_socket(SOCK_DGRAM), "n-receiver"), sender = bound(new_socket(SOCK_DGRAM), "@n-sender"), nameless = new_socket(SOCK_DGRAM);
	send_to(sender, "n-receiver", "named");
	send_to(nameless, "n-receiver", "nameless");
	send_to(sender, "n-receiver", "");
	close(nameless);
	int one_way = connected(new_socket(SOCK_DGRAM), "n-receiver");
	send_to(one_way, "n-receiver", "one way");
	int asks = bound(new_socket(SOCK_DGRAM), "@n-asks"), long_sender = new_socket(SOCK_DGRAM);
	if (setsockopt(asks, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0)
		probe_die("SO_PASSCRED");
	send_to(long_sender, "@n-asks", "who");
	int two_ways[2] = {bound(new_socket(SOCK_DGRAM), "n-left"), bound(new_socket(SOCK_DGRAM), "n-right")};
	connected(two_ways[0], "n-right"), connected(two_ways[1], "n-left");
	send_to(two_ways[0], "n-right", "to the right");
	// It takes no more, but what came before.
	int closed = bound(new_socket(SOCK_DGRAM), "@n-closed");
	send_to(sender, "@n-closed", "before");
	if (shutdown(closed, SHUT_RD) != 0 && errno != ENOTCONN)
		probe_die("shutdown");
	int count = 0, crowd = crowded(&count), links[3];
	chain(links);
	int pair[5], itself = bound(new_socket(SOCK_DGRAM), "@n-itself"), to_itself = connected(new_socket(SOCK_DGRAM), "@n-itself");
	mutual(pair);
	send_to(to_itself, "@n-itself", "before"), connected(itself, "@n-itself"), send_to(itself, "@n-itself", "by itself");
	probe_ready();
	probe_wait();

	show("by path", by_path[0]), show("by path, accepted", by_path[1]);
	show("own name", own_name[0]), show("own name, accepted", own_name[1]);
	show("abstract", abstract[0]), show("abstract, accepted", abstract[1]);
	show("gone", gone[0]), show("gone, accepted", gone[1]), show("gone too, accepted", gone_too[1]);
	show("stale", stale[0]), show("stale, accepted", stale[1]);
	show("packets", packets[0]), show("packets, accepted", packets[1]);
	show("one way", one_way), show("left", two_ways[0]), show("right", two_ways[1]);
	show_waiting("waits", by_path[1]), show_waiting("packets", packets[1]);
	show_waiting("receiver", receiver), show_waiting("asks", asks), show_waiting("right", two_ways[1]), show_waiting("closed", closed);
	for (const char **file = (const char *[]){"n-listener", "n-client", "n-removed", "n-stale", "n-receiver", "n-left", NULL}; *file != NULL; file++)
		show_file(*file);
	talk("by path", by_path[0], by_path[1]), talk("own name", own_name[0], own_name[1]), talk("gone", gone[0], gone[1]);
	talk("left and right", two_ways[0], two_ways[1]), talk("gone too", gone_too[0], gone_too[1]);
	int late = connected(new_socket(SOCK_STREAM), "n-listener");
	talk("late", late, accepted(path_listener));
	show("crowded", crowd), show_waiting("crowded", crowd);
	for (int n = 0; n < 3; n++)
		show("chain", links[n]), show_waiting("chain", links[n]);
	for (int n = 0; n < 5; n++) {
		show("mutual", pair[n]), show_waiting("mutual", pair[n]);
		ssize_t sent = send(pair[n], "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		printf("by mutual: %zd (%d)\n", sent, sent < 0 ? errno : 0);
	}
	talk("mutual", pair[1], pair[2]);
	show("itself", itself), show_waiting("itself", itself), show("to itself", to_itself);
	talk("itself", itself, itself);
	show_file("n-mutual-1");
	struct sockaddr_un to;
	socklen_t bytes = address("@n-closed", &to);
	ssize_t sent = sendto(sender, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&to, bytes);
	printf("to closed: %zd (%d)\n", sent, sent < 0 ? errno : 0);
	return probe_end();
}
