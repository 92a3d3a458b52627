// The program that scripts/kernels.sh warms and forks in its guests. It counts, it has a POSIX timer with a number that is not the first,
// and it says on TCP port 8080 what became of them. Its other arguments use up what limits bound.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 8080, TIMERS = 4, KEPT = 3, TICK_MS = 20 };

static volatile sig_atomic_t ticks;

static void tick(int signal) {
    (void)signal;
    ticks++;
}

static int fail(const char *what) {
    perror(what);
    return 1;
}

// The raw calls: the number is the kernel's. The first of the timers are deleted again, so the one that stays is number 3.
static int start_timer(void) {
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGRTMIN, &action, NULL);
    for (int n = 0, id; n < TIMERS; n++) {
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
        if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &id) != 0) return fail("timer_create");
        if (id != n) return fprintf(stderr, "timer %d has the number %d\n", n, id), 1;
        if (n != KEPT && syscall(SYS_timer_delete, id) != 0) return fail("timer_delete");
    }
    struct itimerspec every = {.it_interval.tv_nsec = TICK_MS * 1000000, .it_value.tv_nsec = TICK_MS * 1000000};
    return syscall(SYS_timer_settime, KEPT, 0, &every, NULL) == 0 ? 0 : fail("timer_settime");
}

// "timer 3 ticks" if the timer with this number is armed and ticks.
static void judge_timer(FILE *out) {
    struct itimerspec left;
    if (syscall(SYS_timer_gettime, KEPT, &left) != 0) {
        fprintf(out, "timer %d: %s\n", KEPT, strerror(errno));
        return;
    }
    sig_atomic_t before = ticks;
    for (int n = 0; n < 200 && ticks == before; n++) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    fprintf(out, "timer %d %s\n", KEPT, ticks == before ? "stands still" : "ticks");
}

static void answer(FILE *in, FILE *out, int *count) {
    char line[256], path[128], text[64];
    if (fgets(line, sizeof line, in) == NULL) return;
    if (strncmp(line, "count", 5) == 0) {
        fprintf(out, "count %d\n", ++*count);
    } else if (strncmp(line, "timer", 5) == 0) {
        judge_timer(out);
    } else if (sscanf(line, "write %127s %63s", path, text) == 2) {
        FILE *file = fopen(path, "w");
        int good = file != NULL && fprintf(file, "%s\n", text) > 0 && fflush(file) == 0 && fsync(fileno(file)) == 0;
        fprintf(out, "%s\n", good ? "written" : strerror(errno));
        if (file != NULL) fclose(file);
    } else if (sscanf(line, "read %127s", path) == 1) {
        FILE *file = fopen(path, "r");
        if (file == NULL || fgets(text, sizeof text, file) == NULL) strcpy(text, "nothing\n");
        fputs(text, out);
        if (file != NULL) fclose(file);
    }
}

static int serve(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1, count = 0;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (start_timer() != 0) return 1;
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 16) != 0) return fail("listen");
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client < 0) continue;
        FILE *in = fdopen(client, "r"), *out = fdopen(dup(client), "w");
        answer(in, out, &count);
        fclose(out);
        fclose(in);
    }
}

// Says what share of one processor it got in two seconds, in percent.
static int burn(void) {
    struct timespec begin, now;
    struct rusage used;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < 2000);
    getrusage(RUSAGE_SELF, &used);
    printf("%ld\n", ((used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000) / 20);
    return 0;
}

// Says how many children it could have at once, of as many as it was told.
static int breed(int wanted) {
    int got = 0;
    for (; got < wanted; got++) {
        pid_t child = fork();
        if (child < 0) break;
        if (child == 0) pause();
    }
    printf("%d\n", got);
    fflush(stdout);
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    while (wait(NULL) > 0) {}
    return 0;
}

static int fill(size_t mib) {
    char *room = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return fail("mmap");
    memset(room, 1, mib << 20);
    printf("filled %zu MiB\n", mib);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 1) return serve();
    if (strcmp(argv[1], "burn") == 0) return burn();
    if (strcmp(argv[1], "breed") == 0 && argc == 3) return breed(atoi(argv[2]));
    if (strcmp(argv[1], "fill") == 0 && argc == 3) return fill(strtoul(argv[2], NULL, 10));
    fprintf(stderr, "usage: service [burn | breed N | fill MIB]\n");
    return 2;
}
