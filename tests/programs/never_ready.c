// Runs for ever and never gets ready.
#include "probe.h"

int main(void)
{
	puts("still starting");
	fflush(stdout);
	for (;;)
		probe_sleep_ms(1000);
}
