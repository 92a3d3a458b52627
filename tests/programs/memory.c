// Memory of every kind: sparse, wiped on fork, left out of forks, shared, protected, executable, file-backed, a deep
// stack and the heap's end.
#include "probe.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { PAGE = 4096, STACK_MIB = 6, FRAME_BYTES = 8192, REGION_PAGES = 64 };
static const size_t SPARSE_BYTES = 4UL << 30, SPARSE_STEP = (64UL << 20) + 7 * PAGE;

struct regions {
	unsigned char *sparse, *wiped, *undumped, *apart, *shared, *hidden, *code, *file, *heap, *advised, *file_shared;
};

static unsigned char *break_at_ready;

static unsigned char *map(size_t bytes, int protection, int flags, int fd)
{
	void *address = mmap(NULL, bytes, protection, flags, fd, 0);
	if (address == MAP_FAILED)
		probe_die("mmap");
	return address;
}

static void fill(unsigned char *region, uint64_t seed)
{
	for (size_t i = 0; i < REGION_PAGES * PAGE / sizeof(uint64_t); i++)
		((uint64_t *)region)[i] = probe_pattern(seed, i);
}

static bool holds(const unsigned char *region, uint64_t seed)
{
	for (size_t i = 0; i < REGION_PAGES * PAGE / sizeof(uint64_t); i++)
		if (((const uint64_t *)region)[i] != probe_pattern(seed, i))
			return false;
	return true;
}

static bool all_zero(const unsigned char *region, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (region[i] != 0)
			return false;
	return true;
}

static unsigned char *map_private(uint64_t seed, int advice)
{
	unsigned char *region = map(REGION_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	if (advice >= 0 && madvise(region, REGION_PAGES * PAGE, advice) != 0)
		probe_die("madvise %d", advice);
	fill(region, seed);
	return region;
}

static void fill_sparse(unsigned char *sparse)
{
	for (size_t at = 0; at < SPARSE_BYTES - PAGE; at += SPARSE_STEP)
		*(uint64_t *)(sparse + at) = probe_pattern(1, at);
}

static bool sparse_holds(const unsigned char *sparse)
{
	for (size_t at = 0; at < SPARSE_BYTES - PAGE; at += SPARSE_STEP)
		if (*(const uint64_t *)(sparse + at) != probe_pattern(1, at) || *(const uint64_t *)(sparse + at + PAGE) != 0)
			return false;
	return true;
}

/// A function written at run time: returns its argument plus 42.
static unsigned char *make_code(void)
{
	static const unsigned char machine_code[] = {0x8d, 0x47, 42, 0xc3}; // lea 42(%rdi), %eax; ret
	unsigned char *code = map(PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	memcpy(code, machine_code, sizeof machine_code);
	if (mprotect(code, PAGE, PROT_READ | PROT_EXEC) != 0)
		probe_die("mprotect");
	return code;
}

static int call(const unsigned char *code, int argument)
{
	int (*function)(int);
	memcpy(&function, &code, sizeof function);
	return function(argument);
}

/// A private mapping of a file: the second page modified, the others read from the file.
static void map_file(struct regions *regions)
{
	char path[512];
	unsigned char content[4 * PAGE];
	snprintf(path, sizeof path, "%s/probe-memory.data", probe_dir);
	for (size_t i = 0; i < sizeof content; i++)
		content[i] = (unsigned char)(i / PAGE + 1);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0 || write(fd, content, sizeof content) != (ssize_t)sizeof content)
		probe_die("%s", path);
	regions->file = map(sizeof content, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd);
	regions->file_shared = map(sizeof content, PROT_READ, MAP_SHARED, fd);
	memset(regions->file + PAGE, 0xee, PAGE);
	close(fd);
}

static bool file_holds(const struct regions *regions)
{
	for (int page = 0; page < 4; page++) {
		unsigned char expected = page == 1 ? 0xee : (unsigned char)(page + 1);
		if (regions->file[page * PAGE] != expected || regions->file[page * PAGE + PAGE - 1] != expected)
			return false;
	}
	return true;
}

static struct regions set_up(void)
{
	struct regions regions;
	regions.sparse = map(SPARSE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	fill_sparse(regions.sparse);
	regions.wiped = map_private(2, MADV_WIPEONFORK);
	regions.undumped = map_private(3, MADV_DONTFORK);
	// Neighbours with a hole between them.
	regions.apart = map_private(9, MADV_DONTFORK);
	munmap(regions.apart + PAGE, PAGE);
	regions.advised = map_private(4, MADV_DONTDUMP);
	regions.hidden = map_private(5, -1);
	mprotect(regions.hidden, REGION_PAGES * PAGE, PROT_NONE);
	regions.shared = map(REGION_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
	fill(regions.shared, 6);
	regions.code = make_code();
	map_file(&regions);
	regions.heap = sbrk(REGION_PAGES * PAGE);
	fill(regions.heap, 7);
	return regions;
}

static bool is_mapped(unsigned char *page)
{
	return msync(page, PAGE, MS_ASYNC) == 0;
}

/// Whether the regions that are kept from forks are.
static bool kept_from_forks(const struct regions *regions)
{
	pid_t child = fork();
	if (child == 0)
		_exit(is_mapped(regions->undumped) || is_mapped(regions->apart) || is_mapped(regions->apart + 2 * PAGE));
	int status = -1;
	return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static void check(const struct regions *regions)
{
	probe_check(sparse_holds(regions->sparse), "4 GB sparse mapping");
	bool zero = all_zero(regions->wiped, REGION_PAGES * PAGE);
	printf("note: MADV_WIPEONFORK region %s\n", zero ? "wiped" : "kept");
	probe_check(zero || holds(regions->wiped, 2), "MADV_WIPEONFORK region is whole");
	fill(regions->wiped, 8);
	probe_check(holds(regions->wiped, 8), "MADV_WIPEONFORK region writable");
	probe_check(holds(regions->undumped, 3), "MADV_DONTFORK region");
	probe_check(*(uint64_t *)regions->apart == probe_pattern(9, 0), "MADV_DONTFORK region before a hole");
	size_t behind = 2 * PAGE / sizeof(uint64_t);
	probe_check(((uint64_t *)regions->apart)[behind] == probe_pattern(9, behind), "MADV_DONTFORK region behind a hole");
	probe_check(!is_mapped(regions->apart + PAGE), "a hole between MADV_DONTFORK regions");
	probe_check(kept_from_forks(regions), "MADV_DONTFORK regions are kept from forks");
	probe_check(holds(regions->advised, 4), "MADV_DONTDUMP region");
	mprotect(regions->hidden, REGION_PAGES * PAGE, PROT_READ);
	probe_check(holds(regions->hidden, 5), "data under PROT_NONE");
	probe_check(holds(regions->shared, 6), "MAP_SHARED anonymous region");
	probe_check(call(regions->code, 8) == 50, "executable page");
	probe_check(file_holds(regions), "private file mapping");
	probe_check(regions->file_shared[0] == 1 && regions->file_shared[3 * PAGE] == 4, "shared read-only file mapping");
	probe_check(holds(regions->heap, 7), "heap below the break");
	unsigned char *grown = sbrk(1 << 20);
	probe_check(grown == break_at_ready, "the break continues where it was");
	memset(grown, 1, 1 << 20);
	mprotect(regions->code, PAGE, PROT_READ | PROT_WRITE);
	regions->code[2] = 1;
	mprotect(regions->code, PAGE, PROT_READ | PROT_EXEC);
	probe_check(call(regions->code, 8) == 9, "executable page rewritten");
}

/// The trigger is awaited at the bottom of a deep stack; each frame checks itself on the way up.
__attribute__((noinline)) static int descend(const struct regions *regions, int depth)
{
	volatile uint64_t frame[FRAME_BYTES / sizeof(uint64_t)];
	for (size_t i = 0; i < FRAME_BYTES / sizeof(uint64_t); i++)
		frame[i] = probe_pattern((uint64_t)depth, i);
	int bad = 0;
	if (depth * FRAME_BYTES < STACK_MIB << 20) {
		bad = descend(regions, depth + 1);
	} else if (regions != NULL) {
		probe_ready();
		break_at_ready = sbrk(0);
		probe_wait();
		check(regions);
	}
	for (size_t i = 0; i < FRAME_BYTES / sizeof(uint64_t); i++)
		bad += frame[i] != probe_pattern((uint64_t)depth, i);
	return bad;
}

/// The stack must be able to grow further after the fork.
__attribute__((noinline)) static int grow(int frames)
{
	volatile char frame[FRAME_BYTES];
	frame[0] = (char)frames;
	return frames == 0 ? 0 : grow(frames - 1) + (frame[0] != (char)frames);
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	struct regions regions = set_up();
	probe_check(descend(&regions, 0) == 0, "deep stack");
	probe_check(grow(7 * (1 << 20) / FRAME_BYTES) == 0, "stack grows further");
	return probe_end();
}
