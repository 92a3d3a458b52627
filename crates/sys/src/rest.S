// A whole program, as an ELF file of one page: takes its first argument for its name, is not dumpable, and appends what comes out of descriptor 0
// to descriptor 1 until nothing can come any more. Then it sleeps for ever. See rest.rs.
    .pushsection .rodata.pando_rest, "a", @progbits
    .balign 64
    .globl pando_rest_start
    .globl pando_rest_end
    .set .Lrest_base, 0x400000
    .set .Lrest_bytes, pando_rest_end - pando_rest_start
pando_rest_start:
    // Elf64_Ehdr: ET_EXEC for EM_X86_64, with two program headers behind it.
    .byte 0x7f, 'E', 'L', 'F', 2, 1, 1, 0
    .quad 0
    .short 2, 62
    .long 1
    .quad .Lrest_base + (.Lrest_entry - pando_rest_start)
    .quad 64
    .quad 0
    .long 0
    .short 64, 56, 2, 0, 0, 0
    // Elf64_Phdr: PT_LOAD, to be read and executed: all of the file.
    .long 1, 5
    .quad 0, .Lrest_base, .Lrest_base, .Lrest_bytes, .Lrest_bytes, 0x1000
    // Elf64_Phdr: PT_GNU_STACK, not to be executed.
    .long 0x6474e551, 6
    .quad 0, 0, 0, 0, 0, 16
.Lrest_entry:
    mov edi, 15                     // PR_SET_NAME
    mov rsi, qword ptr [rsp + 8]    // argv[0]
    mov eax, 157                    // prctl
    syscall
    mov edi, 4                      // PR_SET_DUMPABLE
    xor esi, esi
    mov eax, 157
    syscall
    // struct pollfd: descriptor 0, POLLIN.
    sub rsp, 16
    mov qword ptr [rsp], 0
    mov word ptr [rsp + 4], 1
2:  mov rdi, rsp
    mov esi, 1
    mov rdx, -1
    mov eax, 7                      // poll
    syscall
    // Each time: the file may have been cut meanwhile. While it is locked nobody cuts it: its end stays where it is until the bytes are there.
    mov edi, 1
    mov esi, 2                      // LOCK_EX
    mov eax, 73                     // flock
    syscall
    mov edi, 1
    xor esi, esi
    mov edx, 2                      // SEEK_END
    mov eax, 8                      // lseek
    syscall
    xor edi, edi
    xor esi, esi
    mov edx, 1
    xor r10d, r10d
    mov r8d, 65536
    mov r9d, 2                      // SPLICE_F_NONBLOCK
    mov eax, 275                    // splice: the bytes leave the pipe when they are in the file
    syscall
    mov rbx, rax
    mov edi, 1
    mov esi, 8                      // LOCK_UN
    mov eax, 73
    syscall
    mov rax, rbx
    test rax, rax
    jg 2b
    jz 3f
    cmp rax, -9                     // EBADF: it was given nothing to do
    je 1f
    // The disk may be full: what is in the pipe waits, and whoever writes to it.
    xor edi, edi
    xor esi, esi
    mov edx, 100                    // milliseconds
    mov eax, 7                      // poll
    syscall
    jmp 2b
    // Nobody has the other end any more.
3:  xor edi, edi
    mov eax, 3                      // close
    syscall
    mov edi, 1
    mov eax, 3
    syscall
1:  mov eax, 34                     // pause
    syscall
    jmp 1b
pando_rest_end:
    .popsection
