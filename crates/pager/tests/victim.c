// A program whose memory is served: touches, writes, gives up, unmaps, moves and forks at random, and knows what it must read.
//
//     victim SEED PAGES OPS      with a SEQPACKET socket as descriptor 3
//     victim SEED PAGES parked   stands still; a child that it forks at once goes when a message comes
//     victim SEED PAGES forks    threads touch page after page while it forks; its children look at what was touched at that moment
//
// It sends its userfaultfd over the socket, waits for a message, and goes. Exit status 0: every byte was right.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define BASE 0x200000000ul
#define QUIET_PAGES (pages / 4)
enum kind { NOWHERE, IMAGE, ZERO, WRITTEN };
struct page { uint8_t kind; uint64_t value; };

static uint64_t seed, pages, state;
static struct page *model; // of twice as many places: the second half is where pages are moved to
static int depth;
static atomic_int stop;

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ul;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ul;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebul;
    return x ^ (x >> 31);
}
static uint64_t rnd(uint64_t below) { state = mix(state); return state % below; }
static volatile uint64_t *at(uint64_t place) { return (volatile uint64_t *)(BASE + place * PAGE); }
// Every fifth block of eight pages has no content.
static int hole(uint64_t number) { return number / 8 % 5 == 4; }
static uint64_t expected(struct page *page, int word) {
    if (page->kind == WRITTEN) return page->value + word;
    if (page->kind == ZERO || hole(page->value)) return 0;
    return mix((BASE + page->value * PAGE + 8 * word) ^ seed);
}
static void die(const char *what) { fprintf(stderr, "victim %d: %s: %s\n", getpid(), what, strerror(errno)); _exit(2); }

static void check(uint64_t place) {
    struct page *page = &model[place];
    if (page->kind == NOWHERE) return;
    for (int i = 0; i < 512; i++) {
        uint64_t is = at(place)[i], should = expected(page, i);
        if (is == should) continue;
        fprintf(stderr, "victim %d depth %d: place %lu word %d is %lx, not %lx; kind %d value %lx\n", getpid(), depth, place, i, is,
                should, page->kind, page->value);
        _exit(1);
    }
}
static void check_all(void) { for (uint64_t i = 0; i < 2 * pages; i++) check(i); }

// Lets the kernel read it instead of the program.
static void check_by_kernel(uint64_t place) {
    if (model[place].kind == NOWHERE) return;
    uint64_t copy[512];
    int file = memfd_create("victim", MFD_CLOEXEC);
    if (file == -1) die("memfd_create");
    if (pwrite(file, (void *)at(place), PAGE, 0) != PAGE || pread(file, copy, PAGE, 0) != PAGE) die("pwrite");
    for (int i = 0; i < 512; i++)
        if (copy[i] != expected(&model[place], i)) { fprintf(stderr, "victim: the kernel read another word\n"); _exit(1); }
    close(file);
}

// The first quarter of the pages is only read, by these.
static void *reader(void *argument) {
    uint64_t own = mix((uint64_t)argument ^ seed);
    while (!stop) { own = mix(own); check(own % QUIET_PAGES); usleep(own % 50); }
    return NULL;
}

static void move(uint64_t from, uint64_t len) {
    uint64_t to = pages + rnd(pages - len);
    for (uint64_t i = 0; i < len; i++) if (model[from + i].kind == NOWHERE) return;
    if (from < to + len && to < from + len) return;
    void *moved = mremap((void *)at(from), len * PAGE, len * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)at(to));
    if (moved == MAP_FAILED) {
        unsigned char resident;
        if (errno != EFAULT && errno != EINVAL) die("mremap");
        // Several mappings. The target may be unmapped by now.
        for (uint64_t i = 0; i < len; i++) {
            if (mincore((void *)at(to + i), PAGE, &resident)) model[to + i].kind = NOWHERE;
            if (mincore((void *)at(from + i), PAGE, &resident)) { fprintf(stderr, "victim: half moved\n"); _exit(3); }
        }
        return;
    }
    for (uint64_t i = 0; i < len; i++) { model[to + i] = model[from + i]; model[from + i].kind = NOWHERE; }
}

static void step(void) {
    uint64_t len = 1 + rnd(8);
    uint64_t place = QUIET_PAGES + rnd(2 * pages - QUIET_PAGES - len);
    switch (rnd(12)) {
    default: for (uint64_t i = 0; i < len; i++) check(place + i); break;
    case 0: check_by_kernel(place); break;
    case 1: case 2:
        if (model[place].kind == NOWHERE) break;
        model[place] = (struct page){WRITTEN, mix(rnd(~0ul))};
        for (int i = 0; i < 512; i++) at(place)[i] = model[place].value + i;
        break;
    case 3:
        madvise((void *)at(place), len * PAGE, MADV_DONTNEED);
        for (uint64_t i = 0; i < len; i++) if (model[place + i].kind != NOWHERE) model[place + i].kind = ZERO;
        break;
    case 4:
        if (rnd(4)) break;
        munmap((void *)at(place), len * PAGE);
        for (uint64_t i = 0; i < len; i++) model[place + i].kind = NOWHERE;
        break;
    case 5: move(place, rnd(2) ? 1 : len); break;
    case 6: // Divides mappings.
        mprotect((void *)at(place), PAGE, PROT_READ);
        check(place);
        mprotect((void *)at(place), PAGE, PROT_READ | PROT_WRITE);
        break;
    }
}

static void run(uint64_t ops) {
    int children = 0, failed = 0;
    for (uint64_t i = 0; i < ops; i++) {
        step();
        if (depth < 2 && children < 6 && rnd(ops / 8 + 1) == 0) {
            pid_t child = fork();
            if (child == -1) die("fork");
            if (child == 0) {
                depth++;
                state ^= mix(getpid());
                run(ops / 3);
                _exit(0);
            }
            children++;
        }
    }
    check_all();
    for (int status; children > 0; children--) { if (wait(&status) == -1) die("wait"); failed |= status; }
    if (failed) { fprintf(stderr, "victim %d: a child failed: %x\n", getpid(), failed); _exit(1); }
}

static void send_descriptor(int uffd) {
    char text[64], room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec bytes = {text, snprintf(text, sizeof text, "%d", getpid())};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(header), &uffd, sizeof uffd);
    if (sendmsg(3, &message, 0) == -1) die("sendmsg");
}

static void await_message(void) {
    char text[64];
    if (recv(3, text, sizeof text, 0) <= 0) die("recv");
}

static int stand_still(void) {
    int status;
    // Waits until it is served.
    pid_t child = fork();
    if (child == -1) die("fork");
    if (child == 0) {
        await_message();
        check_all();
        depth = 2;
        run(500);
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child) die("wait");
    return status != 0;
}

static atomic_ulong touched;

static void *toucher(void *argument) {
    for (uint64_t place; (place = touched++) < pages;) check(place);
    return argument;
}

// Faults and forks come out of the kernel together. What a child is to have must not depend on which was first.
static int fork_while_touching(void) {
    enum { TOUCHERS = 12, ABOUT = 40 };
    pthread_t threads[TOUCHERS];
    for (long i = 0; i < TOUCHERS; i++) pthread_create(&threads[i], NULL, toucher, NULL);
    int failed = 0, status;
    while (touched < pages) {
        uint64_t now = touched;
        pid_t child = fork();
        if (child == -1) die("fork");
        if (child == 0) {
            for (uint64_t i = now > ABOUT ? now - ABOUT : 0; i < now + ABOUT && i < pages; i++) check(i);
            _exit(0);
        }
        if (waitpid(child, &status, 0) != child) die("wait");
        failed |= status;
    }
    for (int i = 0; i < TOUCHERS; i++) pthread_join(threads[i], NULL);
    return failed != 0;
}

int main(int argc, char **argv) {
    seed = strtoull(argv[1], 0, 10), pages = strtoull(argv[2], 0, 10);
    uint64_t ops = strtoull(argv[3], 0, 10);
    state = seed;
    model = calloc(2 * pages, sizeof *model);
    int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP};
    if (ioctl(uffd, UFFDIO_API, &api)) die("api");
    void *place = mmap((void *)BASE, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE, -1, 0);
    if (place != (void *)BASE) die("mmap");
    struct uffdio_register range = {.range = {BASE, pages * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(uffd, UFFDIO_REGISTER, &range)) die("register");
    for (uint64_t i = 0; i < pages; i++) model[i] = (struct page){IMAGE, i};
    send_descriptor(uffd);
    close(uffd);
    if (!strcmp(argv[3], "parked")) return stand_still();
    await_message();
    if (!strcmp(argv[3], "forks")) return fork_while_touching();
    pthread_t threads[2];
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], NULL, reader, (void *)i);
    run(ops);
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    return 0;
}
