// Fails while it initialises: exits 7 after 200 ms with a message on stderr.
#include "probe.h"

int main(void)
{
	puts("starting");
	fflush(stdout);
	probe_sleep_ms(200);
	fputs("crash: the licence file is missing\n", stderr);
	return 7;
}
