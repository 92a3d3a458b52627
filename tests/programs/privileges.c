// Root of a sandbox that has given up a part of what it may: groups, sets of capabilities, an effective user that is not root, in all threads.
//
// A program that does not begin as root shows what it has.
#include "probe.h"

#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { CHOWN = 0, DAC_OVERRIDE = 1, SETUID = 7, NET_BIND_SERVICE = 10, AUDIT_WRITE = 29 };

static volatile bool go, shown;

static void must(long result, const char *what)
{
	if (result < 0)
		probe_die("%s", what);
}

static uint32_t bit(int capability)
{
	return 1u << capability;
}

static void set(uint32_t effective, uint32_t permitted, uint32_t inheritable)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct sets[2] = {{effective, permitted, inheritable}};
	must(syscall(SYS_capset, &header, sets), "capset");
}

static void give_up(void)
{
	const gid_t groups[] = {27, 100};
	must(setgroups(2, groups), "setgroups");
	must(prctl(PR_CAPBSET_DROP, AUDIT_WRITE, 0, 0, 0), "PR_CAPBSET_DROP");
	must(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), "PR_SET_KEEPCAPS");
	must(setresgid(1001, 1001, 0), "setresgid");
	must(setresuid(1001, 1001, 0), "setresuid");
	set(bit(NET_BIND_SERVICE) | bit(DAC_OVERRIDE), bit(NET_BIND_SERVICE) | bit(DAC_OVERRIDE) | bit(SETUID) | bit(CHOWN), bit(NET_BIND_SERVICE) | bit(CHOWN));
	must(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, NET_BIND_SERVICE, 0, 0), "PR_CAP_AMBIENT_RAISE");
}

static void show(const char *who)
{
	char path[64], line[256];
	snprintf(path, sizeof path, "/proc/self/task/%ld/status", syscall(SYS_gettid));
	FILE *status = fopen(path, "re");
	if (status == NULL)
		probe_die("%s", path);
	while (fgets(line, sizeof line, status) != NULL)
		if (strncmp(line, "Uid:", 4) == 0 || strncmp(line, "Gid:", 4) == 0 || strncmp(line, "Groups:", 7) == 0 || strncmp(line, "Cap", 3) == 0 ||
		    strncmp(line, "NoNewPrivs:", 11) == 0)
			printf("%s: %s", who, line);
	fclose(status);
}

static void *thread(void *nothing)
{
	while (!go)
		probe_sleep_ms(1);
	show("thread");
	shown = true;
	return nothing;
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	bool root = geteuid() == 0;
	// What only its owner may read, and the program by a capability: a copy opens it again.
	int secret = open("secret", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	must(secret, "secret");
	if (root)
		give_up();
	pthread_t other;
	must(-pthread_create(&other, NULL, thread, NULL), "pthread_create");
	probe_ready();
	probe_wait();

	show("main");
	go = true;
	while (!shown)
		probe_sleep_ms(1);
	pthread_join(other, NULL);
	probe_check(pwrite(secret, "x", 1, 0) == 1, "secret: is written");
	probe_check((open("secret", O_RDONLY | O_CLOEXEC) >= 0), "secret: is opened again");
	if (root) {
		set(bit(SETUID), bit(SETUID), 0);
		probe_check(setresuid(-1, 0, -1) == 0 && geteuid() == 0, "root: is taken again");
	} else {
		probe_check(setresuid(-1, 0, -1) == -1 && errno == EPERM, "root: is not taken");
	}
	return probe_end();
}
