// Options of sockets: of each kind one on which everything is set that a program without privileges can set. Afterwards all numbers of all
// levels are read, so that nothing goes unseen. Filters, multicast groups and directions that are shut down are looked at by what they do.
#include "probe.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>

enum { IP = IPPROTO_IP, IP6 = IPPROTO_IPV6, TCP = IPPROTO_TCP, UDP = IPPROTO_UDP, SO = SOL_SOCKET };

struct option {
	int level, name, value;
};

static const struct option common[] = {
	{SO, 7, 12345}, {SO, 8, 54321}, {SO, 18, 17}, {SO, 12, 3}, {SO, 35, 1}, {SO, 37, 0x18}, {SO, 40, 1}, {SO, 45, 1}, {SO, 5, 1}, {SO, 11, 1},
	{SO, 9, 1}, {SO, 10, 1}, {SO, 2, 1}, {SO, 15, 1}, {SO, 6, 1}, {SO, 72, 3}, {SO, 47, 1000000},
};
static const struct option inet[] = {
	{SO, 49, 1}, {SO, 74, 0}, {SO, 60, 1}, {IP, 1, 0x10}, {IP, 2, 33}, {IP, 8, 1}, {IP, 10, 2}, {IP, 11, 1}, {IP, 12, 1}, {IP, 13, 1}, {IP, 15, 1},
	{IP, 20, 1}, {IP, 21, 5}, {IP, 24, 1}, {IP, 25, 1}, {IP, 6, 1}, {IP, 49, 0}, {IP, 51, 40000 | 41000 << 16},
	// After IP_TOS, which sets it as well.
	{SO, 12, 0},
};
static const struct option tcp_options[] = {
	{TCP, 1, 1}, {TCP, 2, 700}, {TCP, 3, 1}, {TCP, 4, 77}, {TCP, 5, 11}, {TCP, 6, 3}, {TCP, 7, 3}, {TCP, 8, 9}, {TCP, 9, 3}, {TCP, 10, 30000},
	{TCP, 12, 0}, {TCP, 16, 1}, {TCP, 18, 4321}, {TCP, 23, 5}, {TCP, 25, 4096}, {TCP, 27, 1}, {TCP, 34, 1}, {TCP, 36, 1}, {TCP, 44, 5000},
};
static const struct option udp_options[] = {
	{IP, 33, 4}, {IP, 34, 0}, {UDP, 101, 1}, {UDP, 102, 1}, {UDP, 103, 1200}, {UDP, 104, 1},
};
static const struct option inet6[] = {
	{IP6, 26, 1}, {IP6, 16, 44}, {IP6, 18, 7}, {IP6, 19, 0}, {IP6, 23, 2}, {IP6, 25, 1}, {IP6, 29, 0}, {IP6, 33, 1}, {IP6, 49, 1}, {IP6, 51, 1},
	{IP6, 53, 1}, {IP6, 56, 1}, {IP6, 58, 1}, {IP6, 60, 1}, {IP6, 62, 1}, {IP6, 66, 1}, {IP6, 67, 16}, {IP6, 70, 0}, {IP6, 72, 2}, {IP6, 73, 3},
	{IP6, 74, 1}, {IP6, 77, 1}, {IP6, 78, 1}, {IP6, 2, 1}, {IP6, 8, 1},
};
static const struct option unix_options[] = {{SO, 16, 1}, {SO, 42, 2}, {SO, 76, 1}};

#define SET(socket, list) set(socket, #list, list, sizeof list / sizeof list[0])

static void set(int socket, const char *what, const struct option *options, size_t count)
{
	for (size_t n = 0; n < count; n++) {
		int result = setsockopt(socket, options[n].level, options[n].name, &options[n].value, sizeof options[n].value);
		if (result != 0)
			printf("note: %s: level %d option %d cannot be set: %s\n", what, options[n].level, options[n].name, strerror(errno));
	}
}

static void set_larger(int socket)
{
	struct timeval receive = {5, 250000}, send = {7, 0};
	struct linger linger = {1, 7};
	if (setsockopt(socket, SO, SO_RCVTIMEO, &receive, sizeof receive) != 0 || setsockopt(socket, SO, SO_SNDTIMEO, &send, sizeof send) != 0 ||
	    setsockopt(socket, SO, SO_LINGER, &linger, sizeof linger) != 0)
		probe_die("setsockopt");
}

static int new_socket(int family, int kind)
{
	int fd = socket(family, kind | SOCK_CLOEXEC, 0);
	if (fd < 0)
		probe_die("socket");
	return fd;
}

/// What is another one in each socket or network, has an effect, or makes a descriptor.
static bool is_own(int level, int name)
{
	static const struct option own[] = {{SO, 4, 0}, {SO, 17, 0}, {SO, 55, 0}, {SO, 56, 0}, {SO, 57, 0}, {SO, 59, 0}, {SO, 71, 0}, {SO, 77, 0},
		{TCP, 11, 0}, {TCP, 24, 0}, {TCP, 26, 0}, {TCP, 33, 0}, {TCP, 35, 0}};
	for (size_t n = 0; n < sizeof own / sizeof own[0]; n++)
		if (own[n].level == level && own[n].name == name)
			return true;
	return false;
}

static void show(const char *what, int socket)
{
	static const int levels[] = {SO, IP, IP6, TCP, UDP};
	for (size_t level = 0; level < sizeof levels / sizeof levels[0]; level++)
		for (int name = 0; name < 128; name++) {
			unsigned char value[64] = {0};
			socklen_t length = sizeof value;
			if (is_own(levels[level], name) || getsockopt(socket, levels[level], name, value, &length) != 0)
				continue;
			printf("%s %d/%d:", what, levels[level], name);
			for (socklen_t n = 0; n < length && n < sizeof value; n++)
				printf(" %02x", value[n]);
			puts("");
		}
}

static struct sockaddr_in local(int port)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int bound_udp(int port)
{
	struct sockaddr_in address = local(port);
	int fd = new_socket(AF_INET, SOCK_DGRAM);
	if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0)
		probe_die("bind");
	return fd;
}

/// Takes only what begins with 'k', for good.
static void filter(int socket)
{
	// What a UDP filter sees begins with the header.
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 8),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 'k', 0, 1),
		BPF_STMT(BPF_RET | BPF_K, 0xffff),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	struct sock_fprog program = {4, code};
	int yes = 1;
	if (setsockopt(socket, SO, SO_ATTACH_FILTER, &program, sizeof program) != 0 || setsockopt(socket, SO, SO_LOCK_FILTER, &yes, sizeof yes) != 0)
		probe_die("SO_ATTACH_FILTER");
}

static void check_filter(int socket, int port)
{
	struct sockaddr_in address = local(port);
	int sender = new_socket(AF_INET, SOCK_DGRAM);
	char first[8] = "";
	sendto(sender, "drop", 4, 0, (struct sockaddr *)&address, sizeof address);
	sendto(sender, "keep", 4, 0, (struct sockaddr *)&address, sizeof address);
	probe_check(recv(socket, first, sizeof first, MSG_DONTWAIT) == 4 && first[0] == 'k', "filter drops");
	probe_check(setsockopt(socket, SO, SO_DETACH_FILTER, &(int){0}, sizeof(int)) == -1 && errno == EPERM, "filter is locked");
	close(sender);
}

static int in_group(int port, const char *group, const char *source)
{
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int fd = new_socket(AF_INET, SOCK_DGRAM), yes = 1, no = 0;
	if (setsockopt(fd, SO, SO_REUSEADDR, &yes, sizeof yes) != 0 || bind(fd, (struct sockaddr *)&any, sizeof any) != 0 ||
	    setsockopt(fd, IP, IP_MULTICAST_ALL, &no, sizeof no) != 0)
		probe_die("bind");
	struct ip_mreq_source request = {.imr_multiaddr = {inet_addr(group)}, .imr_interface = {htonl(INADDR_LOOPBACK)}};
	struct ip_mreq plain = {request.imr_multiaddr, request.imr_interface};
	if (source != NULL)
		request.imr_sourceaddr.s_addr = inet_addr(source);
	if (source == NULL ? setsockopt(fd, IP, IP_ADD_MEMBERSHIP, &plain, sizeof plain) != 0
	                   : setsockopt(fd, IP, IP_ADD_SOURCE_MEMBERSHIP, &request, sizeof request) != 0)
		probe_die("%s", group);
	return fd;
}

static void check_groups(int port, int *members)
{
	struct in_addr interface = {htonl(INADDR_LOOPBACK)};
	int sender = new_socket(AF_INET, SOCK_DGRAM);
	setsockopt(sender, IP, IP_MULTICAST_IF, &interface, sizeof interface);
	for (int group = 1; group <= 2; group++) {
		struct sockaddr_in to = local(port);
		char text[32];
		snprintf(text, sizeof text, "239.1.2.%d", group);
		to.sin_addr.s_addr = inet_addr(text);
		probe_check(sendto(sender, text, strlen(text), 0, (struct sockaddr *)&to, sizeof to) > 0, "send to %s", text);
	}
	for (int n = 0; n < 3; n++)
		for (char got[32] = ""; recv(members[n], got, sizeof got - 1, MSG_DONTWAIT) > 0; memset(got, 0, sizeof got))
			printf("member %d got %s\n", n, got);
	close(sender);
}

static int shut(int port, int how, bool connected)
{
	struct sockaddr_in peer = local(9);
	int fd = bound_udp(port);
	if (connected && connect(fd, (struct sockaddr *)&peer, sizeof peer) != 0)
		probe_die("connect");
	if (shutdown(fd, how) != 0 && errno != ENOTCONN)
		probe_die("shutdown");
	return fd;
}

static void check_shut(int n, int socket)
{
	struct sockaddr_in peer = local(9);
	struct pollfd polled = {.fd = socket, .events = POLLIN | POLLOUT | POLLRDHUP};
	char byte;
	poll(&polled, 1, 0);
	ssize_t received = recv(socket, &byte, 1, MSG_DONTWAIT);
	int receive_error = received < 0 ? errno : 0;
	ssize_t sent = sendto(socket, "x", 1, MSG_NOSIGNAL, (struct sockaddr *)&peer, sizeof peer);
	printf("shut %d: events %#x, receives %zd (%d), sends %zd (%d)\n", n, polled.revents, received, receive_error, sent, sent < 0 ? errno : 0);
}

/// A socket whose connect() was refused. The kernel has changed values of it, which are not the program's.
static int refused_once(void)
{
	struct sockaddr_in nobody = local(1);
	int fd = new_socket(AF_INET, SOCK_STREAM);
	if (connect(fd, (struct sockaddr *)&nobody, sizeof nobody) == 0 || errno != ECONNREFUSED)
		probe_die("connect");
	return fd;
}

static void show_segment(const char *what, int socket, int port)
{
	struct sockaddr_in to = local(port);
	int bytes = 0;
	socklen_t length = sizeof bytes;
	bool is_connected = connect(socket, (struct sockaddr *)&to, sizeof to) == 0;
	getsockopt(socket, TCP, 2, &bytes, &length);
	printf("%s: connects %d, segments of %d bytes\n", what, is_connected, bytes);
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	int tcp = new_socket(AF_INET, SOCK_STREAM), listener = new_socket(AF_INET, SOCK_STREAM), udp = new_socket(AF_INET, SOCK_DGRAM);
	int tcp6 = new_socket(AF_INET6, SOCK_STREAM), udp6 = new_socket(AF_INET6, SOCK_DGRAM), untouched = new_socket(AF_INET, SOCK_STREAM), pair[2], datagrams[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || socketpair(AF_UNIX, SOCK_DGRAM, 0, datagrams) != 0)
		probe_die("socketpair");
	const int all[] = {tcp, listener, udp, tcp6, udp6, pair[0], datagrams[0]};
	for (size_t n = 0; n < sizeof all / sizeof all[0]; n++) {
		SET(all[n], common);
		set_larger(all[n]);
	}
	SET(tcp, inet), SET(tcp6, inet), SET(listener, inet), SET(udp, inet), SET(udp6, inet);
	SET(tcp, tcp_options), SET(tcp6, tcp_options), SET(listener, tcp_options);
	SET(udp, udp_options), SET(udp6, udp_options);
	SET(tcp6, inet6), SET(udp6, inet6);
	SET(pair[0], unix_options), SET(datagrams[0], unix_options);
	struct in_addr interface = {htonl(INADDR_LOOPBACK)};
	if (setsockopt(tcp, TCP, 13, "reno", 4) != 0 || setsockopt(listener, TCP, 13, "reno", 4) != 0 || setsockopt(tcp, SO, SO_BINDTODEVICE, "lo", 3) != 0 ||
	    setsockopt(udp, IP, IP_MULTICAST_IF, &interface, sizeof interface) != 0)
		probe_die("setsockopt");
	struct sockaddr_in address = local(7099);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 7) != 0)
		probe_die("listen");
	int filtered = bound_udp(7090);
	filter(filtered);
	int members[] = {in_group(7091, "239.1.2.1", NULL), in_group(7091, "239.1.2.2", "127.0.0.1"), in_group(7091, "239.1.2.2", "127.0.0.9")};
	const int shut_down[] = {shut(7092, SHUT_RD, true), shut(7093, SHUT_WR, true), shut(7094, SHUT_RDWR, true), shut(7095, SHUT_WR, false)};
	int refused = refused_once(), plain = new_socket(AF_INET, SOCK_STREAM);
	struct sockaddr_in plain_address = local(7098);
	if (bind(plain, (struct sockaddr *)&plain_address, sizeof plain_address) != 0 || listen(plain, 7) != 0)
		probe_die("listen");
	probe_ready();
	probe_wait();
	show("tcp", tcp), show("tcp6", tcp6), show("listener", listener), show("udp", udp), show("udp6", udp6), show("untouched", untouched);
	show("unix stream", pair[0]), show("unix stream's peer", pair[1]), show("unix datagrams", datagrams[0]);
	check_filter(filtered, 7090);
	check_groups(7091, members);
	for (int n = 0; n < 4; n++)
		check_shut(n, shut_down[n]);
	show_segment("refused once", refused, 7098);
	return probe_end();
}
