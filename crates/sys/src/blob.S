// The in-process interpreter: runs a list of operations (see blob.rs for their layout) natively in whatever process it is mapped into.
// Position independent, uses no stack: a thread created by an operation goes on with only its registers.
//
//   rbx  the current operation
//   r13, r14  after a failure: the operation that failed and its result
    .pushsection .rodata.pando_blob, "a", @progbits
    .balign 64
    .globl pando_blob_start
    .globl pando_blob_syscall
    .globl pando_blob_end
pando_blob_start:
.Lpando_dispatch:
    mov eax, dword ptr [rbx]
    cmp eax, 1
    jbe .Lpando_call
    cmp eax, 2
    je .Lpando_jump
    cmp eax, 3
    je .Lpando_store
    cmp eax, 4
    je .Lpando_count_down
    cmp eax, 5
    je .Lpando_wait_zero
    cmp eax, 6
    je .Lpando_sigreturn
    cmp eax, 7
    je .Lpando_record
    cmp eax, 8
    je .Lpando_trap
    cmp eax, 9
    je .Lpando_unless
    cmp eax, 10
    je .Lpando_enter
    ud2

.Lpando_call:
    mov ecx, dword ptr [rbx + 4]
    mov rdi, qword ptr [rbx + 16]
    test ecx, 1
    jz 1f
    mov edi, dword ptr [rdi]
1:  mov rsi, qword ptr [rbx + 24]
    test ecx, 2
    jz 1f
    mov esi, dword ptr [rsi]
1:  mov rdx, qword ptr [rbx + 32]
    test ecx, 4
    jz 1f
    mov edx, dword ptr [rdx]
1:  mov r10, qword ptr [rbx + 40]
    test ecx, 8
    jz 1f
    mov r10d, dword ptr [r10]
1:  mov r8, qword ptr [rbx + 48]
    test ecx, 16
    jz 1f
    mov r8d, dword ptr [r8]
1:  mov r9, qword ptr [rbx + 56]
    test ecx, 32
    jz 1f
    mov r9d, dword ptr [r9]
1:  mov rax, qword ptr [rbx + 8]
pando_blob_syscall:
    syscall
    mov ecx, dword ptr [rbx + 4]
    // The child of a SPAWN leaves at once: it may share this memory with its parent and must not write the result.
    cmp dword ptr [rbx], 1
    jne 1f
    test rax, rax
    jz .Lpando_jump
1:  test ecx, 0x400
    jz 1f
    mov qword ptr [rbx + 64], rax
1:  test ecx, 0x100
    jz 1f
    cmp rax, -4095
    jae .Lpando_fail
1:  test ecx, 0x200
    jz .Lpando_next
    cmp rax, qword ptr [rbx + 80]
    jne .Lpando_fail
.Lpando_next:
    add rbx, 96
    jmp .Lpando_dispatch

.Lpando_fail:
    mov r13, rbx
    mov r14, rax
    mov rbx, qword ptr [rbx + 88]
    jmp .Lpando_dispatch

.Lpando_jump:
    mov rbx, qword ptr [rbx + 72]
    jmp .Lpando_dispatch

.Lpando_store:
    mov rdi, qword ptr [rbx + 16]
    mov rax, qword ptr [rbx + 24]
    mov qword ptr [rdi], rax
    jmp .Lpando_next

.Lpando_count_down:
    mov rdi, qword ptr [rbx + 16]
    lock dec dword ptr [rdi]
    jnz .Lpando_next
    mov esi, 1                      // FUTEX_WAKE
    mov edx, 0x7fffffff
    mov eax, 202                    // futex
    syscall
    jmp .Lpando_next

.Lpando_wait_zero:
    mov rdi, qword ptr [rbx + 16]
1:  mov edx, dword ptr [rdi]
    test edx, edx
    jz .Lpando_next
    xor esi, esi                    // FUTEX_WAIT; not private, because the kernel's own wake (set_tid_address) is not
    xor r10d, r10d
    mov eax, 202                    // futex
    syscall
    jmp 1b

.Lpando_sigreturn:
    mov rsp, qword ptr [rbx + 16]
    mov eax, 15                     // rt_sigreturn
    syscall
    ud2

.Lpando_record:
    mov rdi, qword ptr [rbx + 16]
    mov qword ptr [rdi], r13
    mov qword ptr [rdi + 8], r14
    jmp .Lpando_next

.Lpando_unless:
    mov rdi, qword ptr [rbx + 16]
    mov rax, qword ptr [rbx + 24]
    cmp qword ptr [rdi], rax
    je .Lpando_next
    jmp .Lpando_jump

.Lpando_enter:
    mov rax, qword ptr [rbx + 16]
    mov rbx, qword ptr [rbx + 72]
    jmp rax

.Lpando_trap:
    int3
    jmp .Lpando_next
pando_blob_end:
    .popsection
