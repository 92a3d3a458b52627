// Memory in `--ranges N` mappings (9,000 unless told) with holes between them; each holds a pattern of its own.
#include "probe.h"

#include <sys/mman.h>

enum { PAGE = 4096 };

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	size_t count = (size_t)atol(probe_option(argc, argv, "--ranges", "9000"));
	unsigned char *region = mmap(NULL, count * 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (region == MAP_FAILED)
		probe_die("mmap");
	for (size_t n = 0; n < count; n++) {
		*(uint64_t *)(region + n * 2 * PAGE) = probe_pattern(1, n);
		if (munmap(region + (n * 2 + 1) * PAGE, PAGE) != 0)
			probe_die("munmap of page %zu", n * 2 + 1);
	}
	probe_ready();
	probe_wait();
	size_t wrong = 0;
	for (size_t n = 0; n < count; n++)
		wrong += *(uint64_t *)(region + n * 2 * PAGE) != probe_pattern(1, n);
	printf("ranges %zu, wrong %zu\n", count, wrong);
	return probe_end();
}
