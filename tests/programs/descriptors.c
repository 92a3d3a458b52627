// Descriptors of files, pipes, counters and sockets, with what is queued in them, and what two of them share.
// (Those that watch others are in descriptors_watch.c.)
#include "probe.h"

#include <dirent.h>
#include <netinet/in.h>
#include <stddef.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { FIFO_BYTES = 5, DIRECTORY_FILES = 20 };

static int file, duplicate, again_opened, appending, directory_fd, null_fd, zero_fd, random_fd, counter, semaphore;
static int pipe_ends[2], packet_pipe[2], fifo_reader, fifo_writer, sealed, memory_file, path_only;
static int stream[2], datagram[2], packets[2], unix_path, unix_abstract, tcp_listener, tcp_ended, tcp_closed, netlink, udp, udp6;
#define CLOSED_BYTES 30000
#define HIGH_GROUP 33
static int tcp_client, tcp_server, passed_holder[2];
static unsigned char *mapped_memory_file;
static DIR *directory;
static struct sockaddr_in tcp_address, udp_address;
static struct sockaddr_nl netlink_address;
static char first_name[256];
static int object, unreadable, neither, closed_directory, closed_fifo;
static char *unwritable;

static int checked(int fd, const char *what)
{
	if (fd < 0)
		probe_die("%s", what);
	return fd;
}

static int open_in_dir(const char *name, int flags)
{
	char path[512];
	snprintf(path, sizeof path, "%s/probe-descriptors/%s", probe_dir, name);
	return checked(open(path, flags, 0644), path);
}

static void open_files(void)
{
	char path[512];
	snprintf(path, sizeof path, "%s/probe-descriptors", probe_dir);
	if (mkdir(path, 0755) != 0 && errno != EEXIST)
		probe_die("%s", path);
	for (int i = 0; i < DIRECTORY_FILES; i++) {
		char name[32];
		snprintf(name, sizeof name, "entry-%02d", i);
		close(open_in_dir(name, O_CREAT | O_WRONLY));
	}
	file = open_in_dir("regular", O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC);
	checked((int)write(file, "0123456789abcdef", 16), "write");
	lseek(file, 4, SEEK_SET);
	duplicate = checked(dup(file), "dup");
	again_opened = open_in_dir("regular", O_RDONLY);
	lseek(again_opened, 10, SEEK_SET);
	appending = open_in_dir("appended", O_CREAT | O_TRUNC | O_WRONLY | O_APPEND);
	checked((int)write(appending, "one ", 4), "write");
	path_only = open_in_dir("regular", O_PATH | O_CLOEXEC);
	directory = opendir(path);
	directory_fd = directory == NULL ? -1 : dirfd(directory);
	for (int i = 0; i < 5; i++)
		snprintf(first_name, sizeof first_name, "%s", readdir(directory)->d_name);
	null_fd = checked(open("/dev/null", O_RDWR), "/dev/null");
	zero_fd = checked(open("/dev/zero", O_RDONLY), "/dev/zero");
	random_fd = checked(open("/dev/urandom", O_RDONLY), "/dev/urandom");
}

static int with_mode(const char *name, int flags, int first, int later, char *path)
{
	snprintf(path, 512, "%s/probe-modes/%s", probe_dir, name);
	int fd = checked(open(path, flags | O_CREAT | O_EXCL | O_CLOEXEC, first), path);
	checked(fchmod(fd, (mode_t)later), "fchmod");
	return fd;
}

/// Files whose modes forbid their owner to open them as they are open.
static void open_with_modes(void)
{
	char path[512];
	snprintf(path, sizeof path, "%s/probe-modes", probe_dir);
	checked(mkdir(path, 0755), path);
	object = with_mode("object", O_WRONLY, 0444, 0444, path);
	checked((int)write(object, "first ", 6), "write");
	neither = with_mode("neither", O_RDWR, 0, 04000, path);
	checked((int)write(neither, "neither", 7), "write");
	checked((int)lseek(neither, 2, SEEK_SET), "lseek");
	close(with_mode("unreadable", O_WRONLY, 0600, 0604, path));
	unreadable = checked(open(path, O_RDONLY | O_CLOEXEC), path);
	checked(chmod(path, 0240), path);
	int fd = with_mode("mapped", O_RDWR, 0600, 0440, path);
	checked(ftruncate(fd, 4096), "ftruncate");
	unwritable = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (unwritable == MAP_FAILED)
		probe_die("mmap");
	close(fd);
	snprintf(path, sizeof path, "%s/probe-modes/directory", probe_dir);
	checked(mkdir(path, 0700), path);
	closed_directory = checked(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), path);
	checked(chmod(path, 0), path);
	snprintf(path, sizeof path, "%s/probe-modes/fifo", probe_dir);
	checked(mkfifo(path, 0600), path);
	closed_fifo = checked(open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC), path);
	checked((int)write(closed_fifo, "waits", 5), "write");
	checked(chmod(path, 0), path);
}

static void open_pipes(void)
{
	char path[512];
	checked(pipe2(pipe_ends, O_NONBLOCK | O_CLOEXEC), "pipe");
	checked(fcntl(pipe_ends[0], F_SETPIPE_SZ, 16384), "F_SETPIPE_SZ");
	checked((int)write(pipe_ends[1], "queued bytes", 12), "write");
	checked(pipe2(packet_pipe, O_DIRECT), "packet pipe");
	checked((int)write(packet_pipe[1], "one", 3), "write");
	checked((int)write(packet_pipe[1], "three", 5), "write");
	snprintf(path, sizeof path, "%s/probe-descriptors/fifo", probe_dir);
	if (mkfifo(path, 0644) != 0 && errno != EEXIST)
		probe_die("%s", path);
	fifo_reader = open_in_dir("fifo", O_RDONLY | O_NONBLOCK);
	fifo_writer = open_in_dir("fifo", O_WRONLY);
	checked((int)write(fifo_writer, "fifo!", FIFO_BYTES), "write");
	counter = checked(eventfd(41, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
	semaphore = checked(eventfd(3, EFD_NONBLOCK | EFD_SEMAPHORE), "eventfd");
}

static void open_memory_files(void)
{
	sealed = checked(memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd");
	checked((int)write(sealed, "cannot change", 13), "write");
	checked(fcntl(sealed, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL), "F_ADD_SEALS");
	memory_file = checked(memfd_create("mapped", MFD_CLOEXEC), "memfd");
	checked(ftruncate(memory_file, 8192), "ftruncate");
	mapped_memory_file = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, memory_file, 0);
	if (mapped_memory_file == MAP_FAILED)
		probe_die("mmap");
	memcpy(mapped_memory_file + 4096, "through the mapping", 20);
}

static int bound(int family, int type, const void *address, socklen_t bytes)
{
	int fd = checked(socket(family, type | SOCK_CLOEXEC, 0), "socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
	checked(bind(fd, address, bytes), "bind");
	return fd;
}

static void open_unix_sockets(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	checked(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, stream), "socketpair");
	checked((int)write(stream[0], "stream bytes", 12), "write");
	checked(socketpair(AF_UNIX, SOCK_DGRAM, 0, datagram), "socketpair");
	checked((int)write(datagram[0], "first", 5), "write");
	checked((int)write(datagram[0], "second one", 10), "write");
	checked(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packets), "socketpair");
	checked((int)write(packets[1], "packet", 6), "write");
	checked((int)write(packets[1], "p", 1), "write");
	checked(socketpair(AF_UNIX, SOCK_STREAM, 0, passed_holder), "socketpair");
	checked(shutdown(passed_holder[0], SHUT_WR), "shutdown");
	snprintf(address.sun_path, sizeof address.sun_path, "%s/probe-descriptors/s", probe_dir);
	unlink(address.sun_path);
	unix_path = bound(AF_UNIX, SOCK_STREAM, &address, sizeof address);
	checked(listen(unix_path, 8), "listen");
	memset(address.sun_path, 0, sizeof address.sun_path);
	memcpy(address.sun_path + 1, "probe-descriptors", 17);
	unix_abstract = bound(AF_UNIX, SOCK_SEQPACKET, &address, offsetof(struct sockaddr_un, sun_path) + 18);
	checked(listen(unix_abstract, 8), "listen");
}

static void open_inet_sockets(void)
{
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
	socklen_t bytes = sizeof any;
	tcp_listener = bound(AF_INET, SOCK_STREAM, &any, sizeof any);
	checked(listen(tcp_listener, 16), "listen");
	getsockname(tcp_listener, (struct sockaddr *)&tcp_address, &bytes);
	tcp_client = checked(socket(AF_INET, SOCK_STREAM, 0), "socket");
	checked(connect(tcp_client, (struct sockaddr *)&tcp_address, sizeof tcp_address), "connect");
	tcp_server = checked(accept(tcp_listener, NULL, NULL), "accept");
	// Accepted, then reset by the other side: it still names the listener's port as its own.
	int gone = checked(socket(AF_INET, SOCK_STREAM, 0), "socket");
	checked(connect(gone, (struct sockaddr *)&tcp_address, sizeof tcp_address), "connect");
	tcp_ended = checked(accept(tcp_listener, NULL, NULL), "accept");
	setsockopt(gone, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
	close(gone);
	// Its peer has sent more than was read, and is closed.
	int closed = checked(socket(AF_INET, SOCK_STREAM, 0), "socket");
	checked(connect(closed, (struct sockaddr *)&tcp_address, sizeof tcp_address), "connect");
	tcp_closed = checked(accept(tcp_listener, NULL, NULL), "accept");
	char last[CLOSED_BYTES];
	memset(last, 'e', sizeof last);
	checked(send(closed, last, sizeof last, 0), "send");
	checked(recv(tcp_closed, last, sizeof last / 3, MSG_WAITALL), "recv");
	close(closed);
	udp = bound(AF_INET, SOCK_DGRAM, &any, sizeof any);
	bytes = sizeof udp_address;
	getsockname(udp, (struct sockaddr *)&udp_address, &bytes);
	struct sockaddr_nl groups = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR};
	netlink = bound(AF_NETLINK, SOCK_RAW, &groups, sizeof groups);
	int high_group = HIGH_GROUP, on = 1;
	checked(setsockopt(netlink, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &high_group, sizeof high_group), "a high group");
	checked(setsockopt(netlink, SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof on), "NETLINK_EXT_ACK");
	bytes = sizeof netlink_address;
	getsockname(netlink, (struct sockaddr *)&netlink_address, &bytes);
	udp6 = socket(AF_INET6, SOCK_DGRAM, 0); // a host without IPv6 has none: not a failure
	if (udp6 >= 0 && bind(udp6, (struct sockaddr *)&any6, sizeof any6) != 0)
		udp6 = -1;
}

static bool reads(int fd, const char *expected)
{
	char bytes[64] = {0};
	return read(fd, bytes, sizeof bytes - 1) == (ssize_t)strlen(expected) && strcmp(bytes, expected) == 0;
}

static bool reads_counter(int fd, uint64_t expected)
{
	uint64_t value = 0;
	return read(fd, &value, sizeof value) == sizeof value && value == expected;
}

static void check_files(void)
{
	char bytes[16];
	probe_check(lseek(file, 0, SEEK_CUR) == 4, "file offset");
	probe_check(read(duplicate, bytes, 3) == 3 && memcmp(bytes, "456", 3) == 0, "read by the duplicate");
	probe_check(lseek(file, 0, SEEK_CUR) == 7, "a duplicate shares its offset");
	probe_check(lseek(again_opened, 0, SEEK_CUR) == 10, "another open has its own offset");
	probe_check(write(appending, "two", 3) == 3, "append");
	int reread = open_in_dir("appended", O_RDONLY);
	probe_check(reads(reread, "one two"), "appended at the end");
	close(reread);
	struct stat status;
	probe_check(fstat(path_only, &status) == 0 && S_ISREG(status.st_mode) && read(path_only, bytes, 1) == -1, "O_PATH");
	int entries = 0;
	bool repeated = false;
	for (struct dirent *entry; (entry = readdir(directory)) != NULL; entries++)
		repeated |= strcmp(entry->d_name, first_name) == 0;
	probe_check(!repeated && entries >= DIRECTORY_FILES - 3, "directory goes on at its position");
	probe_check(lseek(directory_fd, 0, SEEK_CUR) != 0, "directory position");
	probe_check(write(null_fd, "x", 1) == 1 && read(null_fd, bytes, 1) == 0, "/dev/null");
	probe_check(read(zero_fd, bytes, 4) == 4 && memcmp(bytes, "\0\0\0\0", 4) == 0, "/dev/zero");
	probe_check(read(random_fd, bytes, 16) == 16, "/dev/urandom");
}

static void show_mode(const char *name)
{
	char path[512];
	struct stat status;
	snprintf(path, sizeof path, "%s/probe-modes/%s", probe_dir, name);
	checked(lstat(path, &status), path);
	printf("%s: mode %o, opens: %d\n", name, status.st_mode, access(path, R_OK | W_OK));
}

static void check_modes(void)
{
	char bytes[16] = "";
	probe_check(write(object, "second", 6) == 6 && read(object, bytes, 1) == -1, "a file of mode 0444 is written");
	probe_check(reads(neither, "ither") && pwrite(neither, "N", 1, 0) == 1, "a file of mode 0 is read and written");
	probe_check(read(unreadable, bytes, 1) == 0 && write(unreadable, "x", 1) == -1, "a file of mode 0240 is read");
	unwritable[0] = 'x';
	probe_check(msync(unwritable, 4096, MS_SYNC) == 0, "a file of mode 0440 is written through its mapping");
	probe_check(getdents64(closed_directory, (char[512]){0}, 512) > 0, "a directory of mode 0 is listed");
	probe_check(reads(closed_fifo, "waits"), "a FIFO of mode 0 is read");
	for (const char **name = (const char *[]){"object", "neither", "unreadable", "mapped", "directory", "fifo", NULL}; *name != NULL; name++)
		show_mode(*name);
	struct stat status;
	probe_check(fstat(object, &status) == 0 && status.st_size == 12, "a file of mode 0444 goes on at its offset");
}

static void check_pipes(void)
{
	probe_check(reads(pipe_ends[0], "queued bytes"), "pipe bytes");
	probe_check(read(pipe_ends[0], &(char){0}, 1) == -1 && errno == EAGAIN, "pipe O_NONBLOCK");
	probe_check(fcntl(pipe_ends[0], F_GETPIPE_SZ) == 16384, "pipe size");
	probe_check(write(pipe_ends[1], "more", 4) == 4 && reads(pipe_ends[0], "more"), "pipe goes on");
	probe_check(reads(packet_pipe[0], "one") && reads(packet_pipe[0], "three"), "packet pipe boundaries");
	probe_check(reads(fifo_reader, "fifo!"), "FIFO bytes");
	probe_check(write(fifo_writer, "on", 2) == 2 && reads(fifo_reader, "on"), "FIFO goes on");
	probe_check(reads_counter(counter, 41), "eventfd counter");
	probe_check(read(counter, &(uint64_t){0}, 8) == -1 && errno == EAGAIN, "eventfd empty then");
	bool one_by_one = reads_counter(semaphore, 1) && reads_counter(semaphore, 1) && reads_counter(semaphore, 1);
	probe_check(one_by_one && read(semaphore, &(uint64_t){0}, 8) == -1, "eventfd semaphore");
}

static void check_memory_files(void)
{
	lseek(sealed, 0, SEEK_SET);
	probe_check(reads(sealed, "cannot change"), "sealed memfd");
	probe_check(fcntl(sealed, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL), "memfd seals");
	probe_check(write(sealed, "x", 1) == -1 && errno == EPERM, "seals hold");
	char bytes[20] = "";
	probe_check(pread(memory_file, bytes, 20, 4096) == 20 && strcmp(bytes, "through the mapping") == 0, "memfd content");
	probe_check(pwrite(memory_file, "M", 1, 0) == 1 && mapped_memory_file[0] == 'M', "memfd and its mapping are one");
}

static bool accepts(int listener, int family, int type, const void *address, socklen_t bytes)
{
	int client = socket(family, type, 0);
	bool connected = client >= 0 && connect(client, address, bytes) == 0;
	int server = connected ? accept(listener, NULL, NULL) : -1;
	bool served = server >= 0 && write(client, "hello", 5) == 5 && reads(server, "hello");
	close(client);
	close(server);
	return served;
}

static void check_sockets(void)
{
	struct sockaddr_storage address;
	probe_check(reads(stream[1], "stream bytes"), "unix stream bytes");
	probe_check(read(stream[1], &(char){0}, 1) == -1 && errno == EAGAIN, "unix stream O_NONBLOCK");
	probe_check(write(stream[1], "back", 4) == 4 && reads(stream[0], "back"), "unix stream goes on");
	probe_check(reads(datagram[1], "first") && reads(datagram[1], "second one"), "unix datagram boundaries");
	probe_check(reads(packets[0], "packet") && reads(packets[0], "p"), "unix seqpacket boundaries");
	probe_check(read(passed_holder[1], &(char){0}, 1) == 0, "unix stream shut down one way");
	socklen_t bytes = sizeof address;
	getsockname(unix_path, (struct sockaddr *)&address, &bytes);
	probe_check(accepts(unix_path, AF_UNIX, SOCK_STREAM, &address, bytes), "unix listener at a path");
	bytes = sizeof address;
	getsockname(unix_abstract, (struct sockaddr *)&address, &bytes);
	probe_check(accepts(unix_abstract, AF_UNIX, SOCK_SEQPACKET, &address, bytes), "unix listener, abstract");
	struct sockaddr_in now;
	bytes = sizeof now;
	getsockname(tcp_listener, (struct sockaddr *)&now, &bytes);
	probe_check(now.sin_port == tcp_address.sin_port, "TCP listener keeps its port");
	probe_check(accepts(tcp_listener, AF_INET, SOCK_STREAM, &tcp_address, sizeof tcp_address), "TCP listener");
	bool sent = sendto(tcp_client >= 0 ? udp : -1, "datagram", 8, 0, (void *)&udp_address, sizeof udp_address) == 8;
	probe_check(sent && reads(udp, "datagram"), "UDP socket at its port");
	bytes = sizeof address;
	probe_check(udp6 < 0 || getsockname(udp6, (struct sockaddr *)&address, &bytes) == 0, "UDP over IPv6");
}

/// It has its port and its groups, and the kernel answers it.
static void check_netlink(void)
{
	struct sockaddr_nl now = {0};
	uint32_t groups[8] = {0};
	int on = 0;
	socklen_t bytes = sizeof now, all = sizeof groups, one = sizeof on;
	getsockname(netlink, (struct sockaddr *)&now, &bytes);
	probe_check(now.nl_pid == netlink_address.nl_pid && now.nl_groups == netlink_address.nl_groups, "netlink address");
	getsockopt(netlink, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, groups, &all);
	probe_check(groups[(HIGH_GROUP - 1) / 32] == 1u << (HIGH_GROUP - 1) % 32, "netlink group beyond those of the address");
	getsockopt(netlink, SOL_NETLINK, NETLINK_EXT_ACK, &on, &one);
	probe_check(on == 1, "netlink option");
	struct {
		struct nlmsghdr head;
		struct ifinfomsg about;
	} question = {{.nlmsg_len = sizeof question, .nlmsg_type = RTM_GETLINK, .nlmsg_flags = NLM_F_REQUEST}, {.ifi_index = 1}};
	char answer[8192];
	bool sent = send(netlink, &question, sizeof question, 0) == sizeof question;
	ssize_t got = sent ? recv(netlink, answer, sizeof answer, 0) : -1;
	probe_check(got > 0 && ((struct nlmsghdr *)answer)->nlmsg_type == RTM_NEWLINK, "netlink answer");
}

/// The one with both ends here goes on.
static void check_connection(void)
{
	char byte;
	bool whole = send(tcp_client, "x", 1, MSG_NOSIGNAL) == 1 && recv(tcp_server, &byte, 1, MSG_DONTWAIT) == 1;
	probe_check(whole, "TCP connection");
	ssize_t at_ended = recv(tcp_ended, &byte, 1, MSG_DONTWAIT);
	probe_check(at_ended == 0 || (at_ended == -1 && errno != EAGAIN && errno != EBADF), "TCP connection that had ended");
	char last[CLOSED_BYTES];
	ssize_t left = recv(tcp_closed, last, sizeof last, MSG_WAITALL);
	probe_check(left == CLOSED_BYTES - CLOSED_BYTES / 3 && last[left - 1] == 'e', "TCP connection whose peer is closed");
	probe_check(recv(tcp_closed, &byte, 1, 0) == 0, "its end");
	probe_check(send(tcp_closed, "x", 1, MSG_NOSIGNAL) == 1, "it still takes a byte");
}

static void check_flags(void)
{
	probe_check(fcntl(file, F_GETFD) == FD_CLOEXEC && fcntl(duplicate, F_GETFD) == 0, "O_CLOEXEC per descriptor");
	probe_check((fcntl(file, F_GETFL) & O_ACCMODE) == O_RDWR && (fcntl(appending, F_GETFL) & O_APPEND) != 0, "open flags");
	int lowest = open("/dev/null", O_RDONLY);
	struct stat status;
	int holes = 0;
	for (int fd = 0; fd < lowest; fd++)
		holes += fstat(fd, &status) != 0;
	probe_check(holes == 0, "no descriptor lost below the lowest free one");
	printf("lowest free descriptor %d\n", lowest);
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	open_files();
	open_with_modes();
	open_pipes();
	open_memory_files();
	open_unix_sockets();
	open_inet_sockets();
	probe_ready();
	probe_wait();
	check_files();
	check_modes();
	check_pipes();
	check_memory_files();
	check_sockets();
	check_netlink();
	check_connection();
	check_flags();
	return probe_end();
}
