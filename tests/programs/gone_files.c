// Private views of files that their paths do not name any more: deleted, replaced, and of a memfd. Some pages are written, some were never
// looked at, some may not be; the last view is longer than its file.
#include "probe.h"

#include <sys/mman.h>

enum { PAGE = 4096, PAGES = 40, WRITTEN = 7, VIEWS = 4 };

static const char *const names[VIEWS] = {"deleted", "replaced", "memfd", "short"};

static uint64_t word(int view, int page)
{
	return probe_pattern((uint64_t)view + 1, (uint64_t)page);
}

static void fill(int fd, int view, int pages)
{
	for (int page = 0; page < pages; page++) {
		uint64_t pattern = word(view, page);
		if (pwrite(fd, &pattern, sizeof pattern, (off_t)page * PAGE) != sizeof pattern)
			probe_die("pwrite");
	}
	// The last page is not whole.
	if (ftruncate(fd, (off_t)(pages - 1) * PAGE + 100) != 0)
		probe_die("ftruncate");
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	unsigned char *views[VIEWS];
	for (int view = 0; view < VIEWS; view++) {
		char path[256], other[300];
		snprintf(path, sizeof path, "%s/gone-%s", probe_dir, names[view]);
		snprintf(other, sizeof other, "%s.new", path);
		int fd = view == 2 ? memfd_create("gone", 0) : open(path, O_CREAT | O_RDWR, 0700);
		if (fd < 0)
			probe_die("%s", path);
		fill(fd, view, view == 3 ? PAGES / 2 : PAGES);
		views[view] = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
		if (views[view] == MAP_FAILED)
			probe_die("mmap");
		views[view][WRITTEN * PAGE + 9] = 'w';
		if (mprotect(views[view] + 2 * PAGE, PAGE, PROT_NONE) != 0 || mprotect(views[view] + 3 * PAGE, PAGE, PROT_READ | PROT_EXEC) != 0)
			probe_die("mprotect");
		close(fd);
		if (view == 1) {
			fd = open(other, O_CREAT | O_RDWR, 0700);
			fill(fd, 0, PAGES);
			close(fd);
			if (rename(other, path) != 0)
				probe_die("rename");
		} else if (view != 2 && unlink(path) != 0) {
			probe_die("unlink");
		}
	}
	probe_ready();
	probe_wait();

	for (int view = 0; view < VIEWS; view++) {
		int in_file = view == 3 ? PAGES / 2 : PAGES;
		if (mprotect(views[view] + 2 * PAGE, PAGE, PROT_READ) != 0)
			printf("FAILED %s: mprotect\n", names[view]);
		int wrong = 0;
		for (int page = 0; page < in_file; page++) {
			uint64_t pattern = word(view, page), found;
			memcpy(&found, views[view] + page * PAGE, sizeof found);
			// The file ends before.
			wrong += found != pattern || views[view][page * PAGE + 9] != (page == WRITTEN ? 'w' : 0);
		}
		printf("%s: %d of %d pages are wrong\n", names[view], wrong, in_file);
		views[view][5 * PAGE] = 1;
		probe_check(views[view][5 * PAGE] == 1, "may be written");
	}
	puts("done");
	return 0;
}
