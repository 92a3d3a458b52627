// System V shared memory, semaphores and message queues: of a process and its child, with keys and without, attached and not.
#include "probe.h"

#include <signal.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/wait.h>

#define KEY 0x5065
#define LARGE (64l << 20)

struct message {
	long type;
	char text[32];
};

struct segments {
	int counted, kept, large, moved;
};

static int segment(key_t key, size_t bytes, int mode)
{
	int number = shmget(key, bytes, IPC_CREAT | IPC_EXCL | mode);
	if (number < 0)
		probe_die("shmget");
	return number;
}

static void *attach(int number, void *where, int flags)
{
	void *memory = shmat(number, where, flags);
	if (memory == (void *)-1)
		probe_die("shmat");
	return memory;
}

static int readers(int number)
{
	struct shmid_ds status;
	return shmctl(number, IPC_STAT, &status) == 0 ? (int)status.shm_nattch : -1;
}

static void count(volatile uint64_t *counter, int sets, pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	// The second semaphore says how far the child may count.
	struct sembuf take = { .sem_num = 1, .sem_op = -1 };
	while (getppid() == parent)
		if (semop(sets, &take, 1) == 0)
			(*counter)++;
	_exit(0);
}

static void check_segments(struct segments all, volatile uint64_t *counter, char *kept)
{
	probe_check(readers(all.counted) == 2, "the counter is attached twice");
	probe_check(shmget(KEY, 0, 0) == all.kept, "a key names its segment");
	probe_check(strcmp(kept, "kept") == 0, "a segment for reading");
	probe_check(mprotect(kept, 4096, PROT_READ | PROT_WRITE) != 0, "that stays one for reading");
	struct shmid_ds status;
	shmctl(all.kept, IPC_STAT, &status);
	probe_check((status.shm_perm.mode & 0777) == 0640 && status.shm_segsz == 5000, "its mode and size");
	probe_check(status.shm_perm.cuid == geteuid() && status.shm_perm.uid == geteuid(), "its owner and creator");
	probe_check(shmctl(all.counted, IPC_STAT, &status) == 0 && (status.shm_perm.mode & SHM_DEST) != 0,
		    "the counter goes with its processes");
	probe_check(readers(all.large) == 0, "nothing has the large one");
	char *large = attach(all.large, NULL, 0);
	probe_check(large[LARGE - 1] == 'z' && large[LARGE / 2] == 0, "a large one has what was written");
	shmdt(large);
	(void)counter;
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	struct segments all = { .moved = -1 };
	// A number that is not the first free one.
	for (int i = 0; i < 3; i++) {
		int unused = segment(IPC_PRIVATE, 4096, 0600);
		if (i < 2)
			shmctl(unused, IPC_RMID, NULL);
		else
			all.moved = unused;
	}
	all.counted = segment(IPC_PRIVATE, 4096, 0600);
	all.kept = segment(KEY, 5000, 0640);
	all.large = segment(IPC_PRIVATE, LARGE, 0600);
	shmctl(all.moved, IPC_RMID, NULL);
	volatile uint64_t *counter = attach(all.counted, NULL, 0);
	shmctl(all.counted, IPC_RMID, NULL);
	char *kept = attach(all.kept, NULL, 0);
	strcpy(kept, "kept");
	shmdt(kept);
	kept = attach(all.kept, NULL, SHM_RDONLY);
	char *large = attach(all.large, NULL, 0);
	large[LARGE - 1] = 'z';
	shmdt(large);

	int sets = semget(KEY, 3, IPC_CREAT | IPC_EXCL | 0600), queue = msgget(KEY, IPC_CREAT | IPC_EXCL | 0600);
	unsigned short values[3] = { 7, 0, 40 };
	if (sets < 0 || queue < 0 || semctl(sets, 0, SETALL, values) != 0)
		probe_die("semaphores or queue");
	struct message sent[2] = { { 3, "first" }, { 9, "second" } };
	for (int i = 0; i < 2; i++)
		if (msgsnd(queue, &sent[i], sizeof sent[i].text - i, 0) != 0)
			probe_die("msgsnd");

	pid_t parent = getpid(), child = fork();
	if (child < 0)
		probe_die("fork");
	if (child == 0) {
		shmdt(kept);
		count(counter, sets, parent);
	}
	while (readers(all.kept) != 1)
		probe_sleep_ms(1);
	probe_ready();
	probe_wait();

	check_segments(all, counter, kept);
	probe_check(semctl(sets, 0, GETVAL) == 7 && semctl(sets, 2, GETVAL) == 40, "values of semaphores");
	struct sembuf give = { .sem_num = 1, .sem_op = 25 };
	semop(sets, &give, 1);
	for (int i = 0; *counter < 25 && i < 2000; i++)
		probe_sleep_ms(5);
	probe_check(*counter == 25, "the child counts as far as it may");
	struct message got = { 0 };
	probe_check(msgget(KEY, 0) == queue, "a key names its queue");
	ssize_t length = msgrcv(queue, &got, sizeof got.text, 0, IPC_NOWAIT);
	probe_check(length == 32 && got.type == 3 && strcmp(got.text, "first") == 0, "the first message");
	length = msgrcv(queue, &got, sizeof got.text, 0, IPC_NOWAIT);
	probe_check(length == 31 && got.type == 9 && strcmp(got.text, "second") == 0, "the second message");
	probe_check(msgrcv(queue, &got, sizeof got.text, 0, IPC_NOWAIT) < 0 && errno == ENOMSG, "no other");
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	probe_check(readers(all.counted) == 1, "the child's attachment went with it");
	shmdt((void *)counter);
	probe_check(readers(all.counted) < 0, "the counter is gone");
	return probe_end();
}
