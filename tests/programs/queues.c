// What waits in FIFOs and socket pairs in unusual amounts: a FIFO that is open twice, a stream queue as long as a raised send buffer
// allows, datagrams longer than the receive buffer, an empty datagram, and a program that itself uses SO_PEEK_OFF.
#include "probe.h"

#include <netinet/in.h>
#include <sys/socket.h>

static char expected[1 << 20];
static char found[1 << 20];

static void pattern(size_t length, uint64_t seed)
{
	for (size_t n = 0; n < length; n++)
		expected[n] = (char)probe_pattern(seed, n);
}

static void pair(int kind, int ends[2])
{
	int large = 1 << 19, small = 1;
	if (socketpair(AF_UNIX, kind | SOCK_NONBLOCK, 0, ends) != 0)
		probe_die("socketpair");
	for (int n = 0; n < 2; n++)
		if (setsockopt(ends[n], SOL_SOCKET, SO_SNDBUF, &large, sizeof large) != 0 ||
		    setsockopt(ends[n], SOL_SOCKET, SO_RCVBUF, &small, sizeof small) != 0)
			probe_die("setsockopt");
}

static int offset_of(int socket)
{
	int offset = -2;
	socklen_t length = sizeof offset;
	getsockopt(socket, SOL_SOCKET, SO_PEEK_OFF, &offset, &length);
	return offset;
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	char path[256];
	snprintf(path, sizeof path, "%s/queues-fifo", probe_dir);
	if (mkfifo(path, 0600) != 0)
		probe_die("mkfifo");
	int both = open(path, O_RDWR | O_NONBLOCK), reader = open(path, O_RDONLY | O_NONBLOCK);
	if (both < 0 || reader < 0 || write(both, "once", 4) != 4)
		probe_die("%s", path);

	int stream[2], datagrams[2], packets[2], peeked[2];
	pair(SOCK_STREAM, stream);
	pair(SOCK_DGRAM, datagrams);
	pair(SOCK_SEQPACKET, packets);
	pair(SOCK_STREAM, peeked);
	size_t queued[2] = {0, 0};
	pattern(sizeof expected, 1);
	for (int end = 0; end < 2; end++)
		for (ssize_t sent; (sent = send(stream[1 - end], expected + queued[end], 65536, 0)) > 0;)
			queued[end] += (size_t)sent;
	if (queued[0] < 400000 || queued[1] < 400000)
		probe_die("only %zu and %zu bytes were queued", queued[0], queued[1]);
	if (send(datagrams[1], "first", 5, 0) != 5 || send(datagrams[1], "", 0, 0) != 0 ||
	    send(datagrams[1], expected, 300000, 0) != 300000 || send(datagrams[1], "last", 4, 0) != 4)
		probe_die("send");
	if (send(packets[1], expected, 150000, 0) != 150000 || send(packets[1], "last", 4, 0) != 4)
		probe_die("send a packet");
	int offset = 3;
	char few[8];
	if (send(peeked[1], "0123456789", 10, 0) != 10 ||
	    setsockopt(peeked[0], SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset) != 0 ||
	    recv(peeked[0], few, 2, MSG_PEEK) != 2 || offset_of(peeked[0]) != 5)
		probe_die("SO_PEEK_OFF");
	probe_ready();
	probe_wait();

	ssize_t got = read(reader, found, sizeof found);
	probe_check(got == 4 && memcmp(found, "once", 4) == 0, "FIFO: its bytes once");
	pattern(sizeof expected, 1);
	for (int end = 0; end < 2; end++) {
		size_t read_back = 0;
		for (ssize_t part; (part = recv(stream[end], found + read_back, sizeof found - read_back, 0)) > 0;)
			read_back += (size_t)part;
		probe_check(read_back == queued[end] && memcmp(found, expected, read_back) == 0, "stream %d: all bytes", end);
	}
	probe_check(recv(datagrams[0], found, sizeof found, 0) == 5, "datagram: the first");
	probe_check(recv(datagrams[0], found, sizeof found, 0) == 0, "datagram: the empty one");
	got = recv(datagrams[0], found, sizeof found, 0);
	probe_check(got == 300000 && memcmp(found, expected, 300000) == 0, "datagram: the long one");
	probe_check(recv(datagrams[0], found, sizeof found, 0) == 4, "datagram: the last");
	got = recv(packets[0], found, sizeof found, 0);
	probe_check(got == 150000 && memcmp(found, expected, 150000) == 0, "packet: the long one");
	probe_check(recv(packets[0], found, sizeof found, 0) == 4, "packet: the last");
	probe_check(offset_of(peeked[0]) == 5, "peeked stream: where the next look begins");
	got = recv(peeked[0], found, sizeof found, 0);
	probe_check(got == 10 && memcmp(found, "0123456789", 10) == 0, "peeked stream: all bytes");
	return probe_end();
}
