/*
 * An OpenSSL provider (3.0 and newer) whose random numbers are the kernel's, each time. OpenSSL's own generator keeps a state in memory, which all
 * copies of a program would go on from.
 *
 * The types and numbers are those of openssl/core.h and openssl/core_dispatch.h, which need not be installed.
 */

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>

#define EXPORTED __attribute__((visibility("default")))

struct dispatch {
	int id;
	void (*function)(void);
};

struct algorithm {
	const char *names, *properties;
	const struct dispatch *functions;
	const char *description;
};

struct param {
	const char *key;
	unsigned int type;
	void *data;
	size_t size, returned;
};

enum { INTEGER = 1, UNSIGNED_INTEGER = 2 };
enum { PROVIDER_TEARDOWN = 1024, PROVIDER_QUERY_OPERATION = 1027, OPERATION_RAND = 5 };
enum {
	RAND_NEWCTX = 1, RAND_FREECTX, RAND_INSTANTIATE, RAND_UNINSTANTIATE, RAND_GENERATE, RAND_RESEED,
	RAND_ENABLE_LOCKING = 8, RAND_LOCK, RAND_UNLOCK, RAND_GETTABLE_CTX_PARAMS = 12, RAND_GET_CTX_PARAMS = 15
};
enum { STATE_READY = 1, STRENGTH_BITS = 256 };

/* A context holds nothing: any address will do. */
static char context;

static void *new_context(void *provider, void *parent, const struct dispatch *parents)
{
	(void)provider, (void)parent, (void)parents;
	return &context;
}

static void free_context(void *it)
{
	(void)it;
}

static int instantiate(void *it, unsigned int strength, int resistance, const unsigned char *text, size_t length,
                       const struct param params[])
{
	(void)it, (void)resistance, (void)text, (void)length, (void)params;
	return strength <= STRENGTH_BITS;
}

static int uninstantiate(void *it)
{
	(void)it;
	return 1;
}

static int generate(void *it, unsigned char *out, size_t length, unsigned int strength, int resistance,
                    const unsigned char *added, size_t added_length)
{
	(void)it, (void)resistance, (void)added, (void)added_length;
	if (strength > STRENGTH_BITS)
		return 0;
	while (length > 0) {
		ssize_t got = getrandom(out, length, 0);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return 0;
		out += got;
		length -= (size_t)got;
	}
	return 1;
}

static int reseed(void *it, int resistance, const unsigned char *entropy, size_t entropy_length,
                  const unsigned char *added, size_t added_length)
{
	(void)it, (void)resistance, (void)entropy, (void)entropy_length, (void)added, (void)added_length;
	return 1;
}

static int lock(void *it)
{
	(void)it;
	return 1;
}

static void unlock(void *it)
{
	(void)it;
}

static const struct param *gettable(void *it, void *provider)
{
	static const struct param all[] = {
		{"state", INTEGER, NULL, sizeof(int), 0},
		{"strength", UNSIGNED_INTEGER, NULL, sizeof(unsigned int), 0},
		{"max_request", UNSIGNED_INTEGER, NULL, sizeof(size_t), 0},
		{NULL, 0, NULL, 0, 0},
	};
	(void)it, (void)provider;
	return all;
}

static int get(void *it, struct param params[])
{
	(void)it;
	for (struct param *param = params; param && param->key; param++) {
		unsigned long long value;
		if (!strcmp(param->key, "state"))
			value = STATE_READY;
		else if (!strcmp(param->key, "strength"))
			value = STRENGTH_BITS;
		else if (!strcmp(param->key, "max_request"))
			value = INT_MAX;
		else
			continue;
		if (!param->data || param->size > sizeof(value))
			return 0;
		memcpy(param->data, &value, param->size); /* x86-64: the low bytes come first */
		param->returned = param->size;
	}
	return 1;
}

static const struct dispatch rand_functions[] = {
	{RAND_NEWCTX, (void (*)(void))new_context},
	{RAND_FREECTX, (void (*)(void))free_context},
	{RAND_INSTANTIATE, (void (*)(void))instantiate},
	{RAND_UNINSTANTIATE, (void (*)(void))uninstantiate},
	{RAND_GENERATE, (void (*)(void))generate},
	{RAND_RESEED, (void (*)(void))reseed},
	{RAND_ENABLE_LOCKING, (void (*)(void))lock},
	{RAND_LOCK, (void (*)(void))lock},
	{RAND_UNLOCK, (void (*)(void))unlock},
	{RAND_GETTABLE_CTX_PARAMS, (void (*)(void))gettable},
	{RAND_GET_CTX_PARAMS, (void (*)(void))get},
	{0, NULL},
};

static const struct algorithm *query(void *provider, int operation, int *may_not_be_kept)
{
	static const struct algorithm all[] = {
		{"KERNEL", "provider=pando", rand_functions, "getrandom(2)"},
		{NULL, NULL, NULL, NULL},
	};
	(void)provider;
	*may_not_be_kept = 0;
	return operation == OPERATION_RAND ? all : NULL;
}

static void tear_down(void *provider)
{
	(void)provider;
}

EXPORTED int OSSL_provider_init(const void *handle, const struct dispatch *in, const struct dispatch **out,
                                void **provider)
{
	static const struct dispatch functions[] = {
		{PROVIDER_TEARDOWN, (void (*)(void))tear_down},
		{PROVIDER_QUERY_OPERATION, (void (*)(void))query},
		{0, NULL},
	};
	(void)in;
	*out = functions;
	*provider = (void *)handle;
	return 1;
}
