// A whole program, as an ELF file, that the self-test forks: it shows what a copy has kept. See probe.rs.
//
// Its first argument says what it does: x, y or z hold patterns in the xmm, ymm or zmm and mask registers; g makes a guard page; p forks as often as it may; m uses
// memory until it is stopped. What it finds is read from its memory, at PROBE_WORDS.
    .pushsection .rodata.pando_probe, "a", @progbits
    .balign 64
    .globl pando_probe_start
    .globl pando_probe_pattern
    .globl pando_probe_end
    .set .Lprobe_base, 0x400000
    .set .Lprobe_words, 0x600000
    .set .Lprobe_bytes, pando_probe_end - pando_probe_start
pando_probe_start:
    // Elf64_Ehdr: ET_EXEC for EM_X86_64, with three program headers behind it.
    .byte 0x7f, 'E', 'L', 'F', 2, 1, 1, 0
    .quad 0
    .short 2, 62
    .long 1
    .quad .Lprobe_base + (.Lprobe_entry - pando_probe_start)
    .quad 64
    .quad 0
    .long 0
    .short 64, 56, 3, 0, 0, 0
    // Elf64_Phdr: PT_LOAD, to be read and executed: all of the file.
    .long 1, 5
    .quad 0, .Lprobe_base, .Lprobe_base, .Lprobe_bytes, .Lprobe_bytes, 0x1000
    // Elf64_Phdr: PT_LOAD, to be read and written: three pages of zeros.
    .long 1, 6
    .quad 0, .Lprobe_words, .Lprobe_words, 0, 0x3000, 0x1000
    // Elf64_Phdr: PT_GNU_STACK, not to be executed.
    .long 0x6474e551, 6
    .quad 0, 0, 0, 0, 0, 16

// Register moves between rdi + 64 * n (mask registers: rdi + 2048 + 8 * n) and register n, as bytes: the assembler refuses instructions that
// not every x86-64 processor has. Intel SDM volume 2, 2.3.5 (VEX) and 2.7 (EVEX).
    .macro pando_ymm opcode, n
    .byte 0xc5, 0xfe - ((\n >> 3) << 7), \opcode, 0x87 | ((\n & 7) << 3)
    .long \n * 64
    .endm
    .macro pando_zmm opcode, n
    .byte 0x62, 0xf1 - (((\n >> 3) & 1) << 7) - ((\n >> 4) << 4), 0xfe, 0x48, \opcode, 0x87 | ((\n & 7) << 3)
    .long \n * 64
    .endm
    .macro pando_mask opcode, n
    .byte 0xc4, 0xe1, 0xf8, \opcode, 0x87 | (\n << 3)
    .long 2048 + \n * 8
    .endm

.Lprobe_entry:
    mov rax, qword ptr [rsp + 16]   // argv[1]
    movzx ebp, byte ptr [rax]
    mov ebx, .Lprobe_words
    cmp ebp, 'p'
    je .Lprobe_wait
    cmp ebp, 'm'
    je .Lprobe_wait
    cmp ebp, 'g'
    jne .Lprobe_load
    mov edi, .Lprobe_words + 0x1000
    mov esi, 0x1000
    mov edx, 102                    // MADV_GUARD_INSTALL
    mov eax, 28                     // madvise
    syscall
    mov qword ptr [rbx + 16], rax
.Lprobe_load:
    lea rdi, [rip + pando_probe_pattern]
    cmp ebp, 'z'
    je .Lprobe_load_zmm
    cmp ebp, 'y'
    je .Lprobe_load_ymm
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movdqu xmm\n, xmmword ptr [rdi + 64 * \n]
    .endr
    jmp .Lprobe_loaded
.Lprobe_load_ymm:
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    pando_ymm 0x6f, \n
    .endr
    jmp .Lprobe_loaded
.Lprobe_load_zmm:
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    pando_zmm 0x6f, \n
    .endr
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7
    pando_mask 0x90, \n
    .endr
.Lprobe_loaded:
    mov dword ptr [rbx + 4], 1      // holds them
1:  pause
    cmp dword ptr [rbx], 0          // the tester lets it go
    je 1b
    lea rdi, [rbx + 64]
    cmp ebp, 'z'
    je .Lprobe_store_zmm
    cmp ebp, 'y'
    je .Lprobe_store_ymm
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movdqu xmmword ptr [rdi + 64 * \n], xmm\n
    .endr
    jmp .Lprobe_done
.Lprobe_store_ymm:
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    pando_ymm 0x7f, \n
    .endr
    jmp .Lprobe_done
.Lprobe_store_zmm:
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    pando_zmm 0x7f, \n
    .endr
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7
    pando_mask 0x91, \n
    .endr
.Lprobe_done:
    mov dword ptr [rbx + 4], 2      // has stored them
.Lprobe_rest:
    mov eax, 34                     // pause
    syscall
    jmp .Lprobe_rest

.Lprobe_wait:
    mov dword ptr [rbx + 4], 1
1:  pause
    cmp dword ptr [rbx], 0
    je 1b
    cmp ebp, 'm'
    je .Lprobe_fill
.Lprobe_fork:
    mov eax, 57                     // fork
    syscall
    test rax, rax
    jz .Lprobe_rest
    js .Lprobe_done
    inc qword ptr [rbx + 8]
    jmp .Lprobe_fork

.Lprobe_fill:
    mov eax, 9                      // mmap: 1 GiB, of which only what is touched is taken
    xor edi, edi
    mov esi, 0x40000000
    mov edx, 3                      // PROT_READ | PROT_WRITE
    mov r10d, 0x4022                // MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
    mov r8, -1
    xor r9d, r9d
    syscall
    mov rdi, rax
    mov ecx, 0x40000
1:  mov byte ptr [rdi], 1
    add rdi, 0x1000
    inc qword ptr [rbx + 8]
    dec ecx
    jnz 1b
    jmp .Lprobe_done

    .balign 64
pando_probe_pattern:
    .set .Lprobe_value, 0x1234567
    .rept (2048 + 64) / 4
    .set .Lprobe_value, (.Lprobe_value * 1103515245 + 12345) & 0x7fffffff
    .long .Lprobe_value
    .endr
pando_probe_end:
    .popsection
