// Sockets at addresses that were free only by leave of an option: SO_REUSEPORT, SO_REUSEADDR and IP_FREEBIND, kept or switched off since.
#include "probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

static const int yes = 1, no = 0;

static int bound(int family, int kind, const char *text, int port, int level, int name)
{
	union {
		struct sockaddr_in four;
		struct sockaddr_in6 six;
	} address = {0};
	int fd = socket(family, kind | SOCK_CLOEXEC, 0);
	address.four.sin_family = (sa_family_t)family;
	address.four.sin_port = htons((uint16_t)port);
	inet_pton(family, text, family == AF_INET ? (void *)&address.four.sin_addr : (void *)&address.six.sin6_addr);
	if (fd < 0 || (name != 0 && setsockopt(fd, level, name, &yes, sizeof yes) != 0) ||
	    bind(fd, (struct sockaddr *)&address, family == AF_INET ? sizeof address.four : sizeof address.six) != 0)
		probe_die("%s:%d", text, port);
	return fd;
}

static int switched_off(int fd, int level, int name)
{
	if (setsockopt(fd, level, name, &no, sizeof no) != 0)
		probe_die("setsockopt");
	return fd;
}

static int listening(int fd)
{
	if (listen(fd, 64) != 0)
		probe_die("listen");
	return fd;
}

static void show(const char *what, int fd)
{
	union {
		struct sockaddr plain;
		struct sockaddr_in four;
		struct sockaddr_in6 six;
	} address;
	socklen_t bytes = sizeof address;
	char text[64] = "";
	if (getsockname(fd, &address.plain, &bytes) != 0)
		probe_die("getsockname");
	bool is_four = address.plain.sa_family == AF_INET;
	inet_ntop(address.plain.sa_family, is_four ? (void *)&address.four.sin_addr : (void *)&address.six.sin6_addr, text, sizeof text);
	int flags[4] = {0};
	const int names[4][2] = {{SOL_SOCKET, SO_REUSEADDR}, {SOL_SOCKET, SO_REUSEPORT}, {IPPROTO_IP, IP_FREEBIND}, {SOL_SOCKET, SO_ACCEPTCONN}};
	for (int n = 0; n < 4; n++)
		getsockopt(fd, names[n][0], names[n][1], &flags[n], &(socklen_t){sizeof flags[n]});
	printf("%s: %s port %d, reuse address %d, reuse port %d, free bind %d, listens %d\n", what, text, ntohs(address.four.sin_port), flags[0], flags[1],
	       flags[2], flags[3]);
}

/// The address, without its port, that a socket connects from.
static void show_source(const char *what, int fd, int port)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, own = {0};
	socklen_t bytes = sizeof own;
	bool is_connected = connect(fd, (struct sockaddr *)&to, sizeof to) == 0;
	getsockname(fd, (struct sockaddr *)&own, &bytes);
	printf("%s: connects %d, from %s\n", what, is_connected, inet_ntoa(own.sin_addr));
	close(fd);
}

/// How many of some connections each listener of a port has.
static void share(const char *what, int port, int *listeners)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int accepted[2] = {0, 0}, clients[16];
	for (int n = 0; n < 16; n++) {
		clients[n] = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(clients[n], (struct sockaddr *)&address, sizeof address) != 0)
			printf("FAILED to connect to %d\n", port);
	}
	for (int n = 0; n < 2; n++) {
		fcntl(listeners[n], F_SETFL, O_NONBLOCK);
		for (int fd; (fd = accept(listeners[n], NULL, NULL)) >= 0; accepted[n]++)
			close(fd);
	}
	for (int n = 0; n < 16; n++)
		close(clients[n]);
	probe_check(accepted[0] + accepted[1] <= 16 && accepted[0] + accepted[1] > 0, "%s: connections come", what);
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	// What sends last is heard first; all bound before any listens, or the second could not be.
	int kept[2], off[2], addresses[2], datagrams[2], shared[2];
	for (int n = 0; n < 2; n++) {
		kept[n] = listening(bound(AF_INET, SOCK_STREAM, "127.0.0.1", 7101, SOL_SOCKET, SO_REUSEPORT));
		off[n] = listening(bound(AF_INET, SOCK_STREAM, "127.0.0.1", 7102, SOL_SOCKET, SO_REUSEPORT));
		addresses[n] = bound(AF_INET, SOCK_STREAM, "127.0.0.1", 7103, SOL_SOCKET, SO_REUSEADDR);
		datagrams[n] = bound(AF_INET, SOCK_DGRAM, "127.0.0.1", 7104, SOL_SOCKET, SO_REUSEADDR);
		shared[n] = bound(AF_INET, SOCK_DGRAM, "127.0.0.1", 7105, SOL_SOCKET, SO_REUSEPORT);
	}
	for (int n = 0; n < 2; n++)
		switched_off(off[n], SOL_SOCKET, SO_REUSEPORT), switched_off(datagrams[n], SOL_SOCKET, SO_REUSEADDR);
	switched_off(shared[0], SOL_SOCKET, SO_REUSEPORT);
	listening(addresses[0]);
	int free_four = bound(AF_INET, SOCK_STREAM, "192.0.2.7", 7106, IPPROTO_IP, IP_FREEBIND);
	int free_six = listening(bound(AF_INET6, SOCK_STREAM, "2001:db8::1", 7107, IPPROTO_IPV6, 78 /* IPV6_FREEBIND */));
	int was_free = switched_off(listening(bound(AF_INET, SOCK_STREAM, "192.0.2.8", 7108, IPPROTO_IP, IP_FREEBIND)), IPPROTO_IP, IP_FREEBIND);
	int udp_free = switched_off(bound(AF_INET6, SOCK_DGRAM, "2001:db8::2", 7109, IPPROTO_IPV6, 78), IPPROTO_IPV6, 78);
	int no_port = bound(AF_INET, SOCK_STREAM, "127.0.0.2", 0, IPPROTO_IP, 24 /* IP_BIND_ADDRESS_NO_PORT */);
	int was_no_port = switched_off(bound(AF_INET, SOCK_STREAM, "127.0.0.3", 0, IPPROTO_IP, 24), IPPROTO_IP, 24);
	int no_port_six = bound(AF_INET6, SOCK_STREAM, "::1", 0, IPPROTO_IP, 24), no_port_udp = bound(AF_INET, SOCK_DGRAM, "127.0.0.4", 0, IPPROTO_IP, 24);
	probe_ready();
	probe_wait();
	for (int n = 0; n < 2; n++)
		show("kept", kept[n]), show("off", off[n]), show("addresses", addresses[n]), show("datagrams", datagrams[n]), show("shared", shared[n]);
	show("free", free_four), show("free, IPv6", free_six), show("was free", was_free), show("was free, datagrams", udp_free);
	show("no port", no_port), show("was no port", was_no_port), show("no port, IPv6", no_port_six), show("no port, datagrams", no_port_udp);
	show_source("no port", no_port, 7103), show_source("was no port", was_no_port, 7103);
	share("kept", 7101, kept);
	share("off", 7102, off);
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(7104), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int sender = socket(AF_INET, SOCK_DGRAM, 0), first = 0, second = 0;
	for (int n = 0; n < 8; n++)
		sendto(sender, "x", 1, 0, (struct sockaddr *)&to, sizeof to);
	for (char byte; recv(datagrams[0], &byte, 1, MSG_DONTWAIT) == 1; first++)
		continue;
	for (char byte; recv(datagrams[1], &byte, 1, MSG_DONTWAIT) == 1; second++)
		continue;
	printf("datagrams: %d and %d\n", first, second);
	return probe_end();
}
