// Vector, mask, x87 and general registers of threads that are stopped in user mode.
//
// Two threads load patterns into all of them, spin without touching them or the kernel, and compare. A fork lands
// in the spin almost surely. Without AVX-512 the sixteen ymm registers are checked instead, with a note.
#include "probe.h"

enum { SPINS = 400000 };

static volatile uint32_t stop;
static volatile uint64_t rounds[2], mismatches[2];

struct vectors {
	uint64_t lanes[32][8];
} __attribute__((aligned(64)));

struct registers {
	uint64_t masks[8];
	uint64_t general[6]; // rbx, r12 .. r15, r11
};

static void fill(uint64_t seed, struct vectors *vectors, struct registers *registers)
{
	for (int i = 0; i < 32; i++)
		for (int lane = 0; lane < 8; lane++)
			vectors->lanes[i][lane] = probe_pattern(seed, (uint64_t)(i * 8 + lane));
	for (int i = 0; i < 8; i++)
		registers->masks[i] = probe_pattern(seed, (uint64_t)(1000 + i));
	for (int i = 0; i < 6; i++)
		registers->general[i] = probe_pattern(seed, (uint64_t)(2000 + i));
}

#define EACH32(OP, OFFSET) \
	OP(0, OFFSET) OP(1, OFFSET) OP(2, OFFSET) OP(3, OFFSET) OP(4, OFFSET) OP(5, OFFSET) OP(6, OFFSET) OP(7, OFFSET) \
	OP(8, OFFSET) OP(9, OFFSET) OP(10, OFFSET) OP(11, OFFSET) OP(12, OFFSET) OP(13, OFFSET) OP(14, OFFSET) OP(15, OFFSET)
#define EACH64(OP) \
	OP(16, 0) OP(17, 0) OP(18, 0) OP(19, 0) OP(20, 0) OP(21, 0) OP(22, 0) OP(23, 0) \
	OP(24, 0) OP(25, 0) OP(26, 0) OP(27, 0) OP(28, 0) OP(29, 0) OP(30, 0) OP(31, 0)
#define LOAD_ZMM(N, O) "vmovdqu64 64*" #N "(%[vectors]), %%zmm" #N "\n\t"
#define SAVE_ZMM(N, O) "vmovdqu64 %%zmm" #N ", 64*" #N "(%[vectors])\n\t"
#define LOAD_YMM(N, O) "vmovdqu 64*" #N "(%[vectors]), %%ymm" #N "\n\t"
#define SAVE_YMM(N, O) "vmovdqu %%ymm" #N ", 64*" #N "(%[vectors])\n\t"
#define MASK_LOAD(N) "kmovq 8*" #N "(%[registers]), %%k" #N "\n\t"
#define MASK_SAVE(N) "kmovq %%k" #N ", 8*" #N "(%[registers])\n\t"
#define EACH_MASK(OP) OP(0) OP(1) OP(2) OP(3) OP(4) OP(5) OP(6) OP(7)
#define GENERAL_LOAD \
	"mov 64(%[registers]), %%rbx\n\t mov 72(%[registers]), %%r12\n\t mov 80(%[registers]), %%r13\n\t" \
	"mov 88(%[registers]), %%r14\n\t mov 96(%[registers]), %%r15\n\t mov 104(%[registers]), %%r11\n\t"
#define GENERAL_SAVE \
	"mov %%rbx, 64(%[registers])\n\t mov %%r12, 72(%[registers])\n\t mov %%r13, 80(%[registers])\n\t" \
	"mov %%r14, 88(%[registers])\n\t mov %%r15, 96(%[registers])\n\t mov %%r11, 104(%[registers])\n\t"
#define SPIN "1: cmpl $0, %[stop]\n\t jne 2f\n\t dec %[spins]\n\t jnz 1b\n\t 2:\n\t"
#define LOW_VECTORS \
	"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", \
		"xmm14", "xmm15"

__attribute__((target("avx512f,avx512bw"), noinline)) static void spin_avx512(struct vectors *vectors, struct registers *registers)
{
	uint64_t spins = SPINS;
	__asm__ volatile(EACH32(LOAD_ZMM, 0) EACH64(LOAD_ZMM) EACH_MASK(MASK_LOAD) GENERAL_LOAD SPIN GENERAL_SAVE EACH_MASK(MASK_SAVE)
				 EACH32(SAVE_ZMM, 0) EACH64(SAVE_ZMM)
			 : [spins] "+r"(spins)
			 : [vectors] "r"(vectors), [registers] "r"(registers), [stop] "m"(stop)
			 : LOW_VECTORS, "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26",
			   "xmm27", "xmm28", "xmm29", "xmm30", "xmm31", "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "rbx", "r11", "r12",
			   "r13", "r14", "r15", "memory", "cc");
}

__attribute__((target("avx2"), noinline)) static void spin_avx2(struct vectors *vectors, struct registers *registers)
{
	uint64_t spins = SPINS;
	__asm__ volatile(EACH32(LOAD_YMM, 0) GENERAL_LOAD SPIN GENERAL_SAVE EACH32(SAVE_YMM, 0) "vzeroupper\n\t"
			 : [spins] "+r"(spins)
			 : [vectors] "r"(vectors), [registers] "r"(registers), [stop] "m"(stop)
			 : LOW_VECTORS, "rbx", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
}

static bool wide;

static void *compare(void *argument)
{
	uintptr_t self = (uintptr_t)argument;
	// Odd rounding modes, different per thread: the control words of the x87 and SSE units.
	uint32_t mxcsr = self == 0 ? 0x3f80 : 0x5f80, mxcsr_after;
	uint16_t control = self == 0 ? 0x0b7f : 0x077f, control_after;
	__asm__ volatile("ldmxcsr %0\n\t fldcw %1" : : "m"(mxcsr), "m"(control));
	struct vectors expected, held;
	struct registers expected_registers, held_registers;
	while (stop == 0) {
		fill(self << 32 | rounds[self], &expected, &expected_registers);
		held = expected;
		held_registers = expected_registers;
		(wide ? spin_avx512 : spin_avx2)(&held, &held_registers);
		mismatches[self] += memcmp(&held, &expected, sizeof held) != 0;
		mismatches[self] += memcmp(&held_registers, &expected_registers, sizeof held_registers) != 0;
		__asm__ volatile("stmxcsr %0\n\t fnstcw %1" : "=m"(mxcsr_after), "=m"(control_after));
		mismatches[self] += (mxcsr_after & 0xffc0) != mxcsr || control_after != control;
		rounds[self]++;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	probe_begin(argc, argv);
	__builtin_cpu_init();
	wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
	if (!wide && !__builtin_cpu_supports("avx2"))
		probe_die("the processor has no AVX2");
	pthread_t threads[2];
	for (uintptr_t i = 0; i < 2; i++)
		threads[i] = probe_thread(compare, (void *)i);
	while (rounds[0] == 0 || rounds[1] == 0)
		probe_sleep_ms(1);
	probe_ready();
	probe_wait();
	uint64_t before[2] = {rounds[0], rounds[1]};
	if (!wide)
		puts("note: no AVX-512, checked the AVX2 registers");
	// Both threads have to go on running, not just to have been right so far.
	for (int waited_ms = 0; waited_ms < 10000 && (rounds[0] < before[0] + 3 || rounds[1] < before[1] + 3); waited_ms++)
		probe_sleep_ms(1);
	for (int i = 0; i < 2; i++)
		probe_check(rounds[i] >= before[i] + 3, "thread %d goes on", i);
	stop = 1;
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], NULL);
		probe_check(mismatches[i] == 0, "thread %d registers", i);
	}
	return probe_end();
}
