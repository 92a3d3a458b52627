// Futex state: a robust mutex whose holder dies, and threads blocked in every kind of pthread wait.
#include "probe.h"

static pthread_mutex_t robust, plain = PTHREAD_MUTEX_INITIALIZER, inheriting, held = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t monotonic_condition, untimed_condition = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t barrier;
static bool signalled_monotonic, signalled_untimed;
static volatile bool owner_may_exit, owner_holds;
static volatile pid_t tids[8];
static int results[8];

enum { ROBUST_WAITER, TIMED, UNTIMED, WRITER, JOINER, INHERITING, PLAIN, BARRIER };
static const char *const names[8] = {
	"robust mutex, holder exited", "pthread_cond_timedwait", "pthread_cond_wait", "pthread_rwlock_wrlock",
	"pthread_join", "priority-inheriting mutex", "plain mutex", "pthread_barrier_wait",
};

static pthread_t owner;

static void *own(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&robust);
	owner_holds = true;
	while (!owner_may_exit)
		probe_sleep_ms(2);
	return NULL; // with the mutex held: the kernel walks this thread's robust list
}

static int wait_timed(void)
{
	struct timespec deadline;
	clock_gettime(CLOCK_MONOTONIC, &deadline);
	deadline.tv_sec += 36000;
	int result = 0;
	pthread_mutex_lock(&plain);
	while (!signalled_monotonic && result == 0)
		result = pthread_cond_timedwait(&monotonic_condition, &plain, &deadline);
	pthread_mutex_unlock(&plain);
	return result;
}

static int wait_untimed(void)
{
	pthread_mutex_lock(&plain);
	while (!signalled_untimed)
		pthread_cond_wait(&untimed_condition, &plain);
	return pthread_mutex_unlock(&plain);
}

static int lock_robust(void)
{
	int result = pthread_mutex_lock(&robust);
	if (result == EOWNERDEAD && pthread_mutex_consistent(&robust) != 0)
		return EPROTO;
	pthread_mutex_unlock(&robust);
	return result;
}

static int lock_and_unlock(pthread_mutex_t *mutex)
{
	int result = pthread_mutex_lock(mutex);
	return result == 0 ? pthread_mutex_unlock(mutex) : result;
}

static int write_lock(void)
{
	int result = pthread_rwlock_wrlock(&rwlock);
	return result == 0 ? pthread_rwlock_unlock(&rwlock) : result;
}

static int wait_barrier(void)
{
	int result = pthread_barrier_wait(&barrier);
	return result == PTHREAD_BARRIER_SERIAL_THREAD ? 0 : result;
}

static void *block(void *argument)
{
	intptr_t kind = (intptr_t)argument;
	tids[kind] = gettid();
	switch (kind) {
	case ROBUST_WAITER: results[kind] = lock_robust(); break;
	case TIMED: results[kind] = wait_timed(); break;
	case UNTIMED: results[kind] = wait_untimed(); break;
	case WRITER: results[kind] = write_lock(); break;
	case JOINER: results[kind] = pthread_join(owner, NULL); break;
	case INHERITING: results[kind] = lock_and_unlock(&inheriting); break;
	case PLAIN: results[kind] = lock_and_unlock(&held); break;
	case BARRIER: results[kind] = wait_barrier(); break;
	}
	return NULL;
}

static void make_locks(void)
{
	pthread_mutexattr_t mutex_attributes;
	pthread_mutexattr_init(&mutex_attributes);
	pthread_mutexattr_setrobust(&mutex_attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&robust, &mutex_attributes);
	pthread_mutexattr_init(&mutex_attributes);
	pthread_mutexattr_setprotocol(&mutex_attributes, PTHREAD_PRIO_INHERIT);
	pthread_mutex_init(&inheriting, &mutex_attributes);
	pthread_condattr_t condition_attributes;
	pthread_condattr_init(&condition_attributes);
	pthread_condattr_setclock(&condition_attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&monotonic_condition, &condition_attributes);
	pthread_barrier_init(&barrier, NULL, 2);
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	make_locks();
	owner = probe_thread(own, NULL);
	while (!owner_holds)
		probe_sleep_ms(1);
	pthread_mutex_lock(&inheriting);
	pthread_mutex_lock(&held);
	pthread_rwlock_rdlock(&rwlock);
	pthread_t threads[8];
	for (intptr_t i = 0; i < 8; i++) {
		threads[i] = probe_thread(block, (void *)i);
		while (tids[i] == 0)
			probe_sleep_ms(1);
		probe_until_asleep(tids[i]);
	}
	probe_ready();
	probe_wait();
	owner_may_exit = true;
	pthread_mutex_lock(&plain);
	signalled_monotonic = signalled_untimed = true;
	pthread_cond_signal(&monotonic_condition);
	pthread_cond_signal(&untimed_condition);
	pthread_mutex_unlock(&plain);
	pthread_rwlock_unlock(&rwlock);
	pthread_mutex_unlock(&inheriting);
	pthread_mutex_unlock(&held);
	wait_barrier();
	for (int i = 0; i < 8; i++) {
		pthread_join(threads[i], NULL);
		probe_check(results[i] == (i == ROBUST_WAITER ? EOWNERDEAD : 0), "%s", names[i]);
	}
	probe_check(pthread_mutex_trylock(&robust) == 0, "robust mutex usable again");
	return probe_end();
}
