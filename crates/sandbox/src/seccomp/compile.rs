//! A compiler from "answer per system call" to classic BPF.
//!
//! Why not a library: `seccompiler` tests the calls one after the other, and when a filter is installed the kernel also
//! runs it for every system-call number (its cache of always-allowed calls), so the length counts squared. Median of 200
//! installs on Linux 6.18 with JIT, and every start pays for one (the case `times` of the host tests prints it):
//!
//! | program | instructions | install |
//! |---|---|---|
//! | "allow" alone: the floor | 1 | 17 us |
//! | this search tree | 119 | 53 us |
//! | one test after the other, same list | 685 | 461 us |

use super::rules::{Answer, INTERNET_PROTOCOLS, NETLINK_PROTOCOLS, NUMBERS};

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

const ARCH_X86_64: u32 = 0xc000_003e;
const X32_BIT: u32 = 0x4000_0000;
// Offsets in seccomp_data: the number, the architecture, the low halves of the arguments.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

const KILL: u32 = 0x8000_0000;
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;

/// Namespaces: mount, cgroup, uts, ipc, user, pid, net.
const CLONE_NAMESPACES: u32 = 0x7e02_0000;
/// CLONE_NEWTIME shares its bit with clone's exit signal, so only unshare knows it.
const CLONE_NEWTIME: u32 = 0x80;

#[derive(Clone, Copy)]
enum Target {
    Next,
    At(usize),
    Answer(Answer),
}

struct Instruction {
    code: u16,
    value: u32,
    yes: Target,
    no: Target,
}

/// The program for `table`, or `None` if it grew past what a conditional jump can span (255 instructions).
pub(super) fn compile(table: &[Answer; NUMBERS]) -> Option<Vec<u64>> {
    let mut program = Program { code: Vec::new(), tails: Vec::new() };
    program.push(LOAD, ARCH, Target::Next, Target::Next);
    program.push(EQUAL, ARCH_X86_64, Target::Next, Target::Answer(Answer::Kill));
    program.push(LOAD, NUMBER, Target::Next, Target::Next);
    program.push(AT_LEAST, X32_BIT, Target::Answer(Answer::Missing), Target::Next);
    program.tree(&segments(table));
    for answer in Answer::ALL {
        let at = program.code.len();
        program.tails.push((answer, at));
        program.tail(answer);
    }
    program.assemble()
}

/// Runs of numbers with one answer: where each begins, and its answer. The last one also answers all higher numbers.
fn segments(table: &[Answer; NUMBERS]) -> Vec<(u32, Answer)> {
    let mut segments: Vec<(u32, Answer)> = Vec::new();
    let unknown = [Answer::Missing];
    for (number, answer) in (0u32..).zip(table.iter().chain(&unknown)) {
        if segments.last().is_none_or(|(_, last)| last != answer) {
            segments.push((number, *answer));
        }
    }
    segments
}

struct Program {
    code: Vec<Instruction>,
    tails: Vec<(Answer, usize)>,
}

impl Program {
    fn push(&mut self, code: u16, value: u32, yes: Target, no: Target) {
        self.code.push(Instruction { code, value, yes, no });
    }

    /// A balanced search tree over `segments`; the accumulator holds the number.
    fn tree(&mut self, segments: &[(u32, Answer)]) -> Target {
        if let [(_, answer)] = segments {
            return Target::Answer(*answer);
        }
        let middle = segments.len() / 2;
        let at = self.code.len();
        self.push(AT_LEAST, segments[middle].0, Target::Next, Target::Next);
        let below = self.tree(&segments[..middle]);
        let above = self.tree(&segments[middle..]);
        self.code[at].no = below;
        self.code[at].yes = above;
        Target::At(at)
    }

    /// The instructions that give `answer`, with the look at an argument where it depends on one.
    fn tail(&mut self, answer: Answer) {
        let allow = Target::Answer(Answer::Allow);
        let refuse = Target::Answer(Answer::Refuse);
        match answer {
            Answer::Kill => self.push(RETURN, KILL, Target::Next, Target::Next),
            Answer::Allow => self.push(RETURN, ALLOW, Target::Next, Target::Next),
            Answer::Missing => self.push(RETURN, ERRNO | libc::ENOSYS as u32, Target::Next, Target::Next),
            Answer::Refuse => self.push(RETURN, ERRNO | libc::EPERM as u32, Target::Next, Target::Next),
            Answer::NoFamily => self.push(RETURN, ERRNO | libc::EAFNOSUPPORT as u32, Target::Next, Target::Next),
            Answer::Clone => self.bits(CLONE_NAMESPACES),
            Answer::Unshare => self.bits(CLONE_NAMESPACES | CLONE_NEWTIME),
            // The plain Linux personality, its 2.6 version numbers, and the query.
            Answer::Personality => self.one_of(0, &[0, 0x8, 0x2_0000, 0x2_0008, u32::MAX], allow, refuse),
            Answer::NoProtocol => self.push(RETURN, ERRNO | libc::EPROTONOSUPPORT as u32, Target::Next, Target::Next),
            Answer::Socket => self.socket(),
            // Both put characters into a terminal's input as if somebody had typed them.
            Answer::Ioctl => self.one_of(1, &[libc::TIOCSTI as u32, libc::TIOCLINUX as u32], refuse, allow),
        }
    }

    /// Looks at the family, then at the protocol.
    fn socket(&mut self) {
        let [allow, no_family] = [Answer::Allow, Answer::NoFamily].map(Target::Answer);
        self.push(LOAD, argument(0), Target::Next, Target::Next);
        self.push(EQUAL, libc::AF_UNIX as u32, allow, Target::Next);
        let families = self.code.len();
        for family in [libc::AF_NETLINK, libc::AF_INET, libc::AF_INET6] {
            self.push(EQUAL, family as u32, Target::Next, Target::Next);
        }
        self.code[families + 2].no = no_family;
        for (family, protocols) in [(families + 1, INTERNET_PROTOCOLS), (families, NETLINK_PROTOCOLS)] {
            self.code[family].yes = Target::At(self.code.len());
            self.one_of(2, protocols, allow, Target::Answer(Answer::NoProtocol));
        }
    }

    fn bits(&mut self, mask: u32) {
        self.push(LOAD, argument(0), Target::Next, Target::Next);
        self.push(ANY_BIT, mask, Target::Answer(Answer::Refuse), Target::Answer(Answer::Allow));
    }

    fn one_of(&mut self, index: u32, values: &[u32], yes: Target, no: Target) {
        self.push(LOAD, argument(index), Target::Next, Target::Next);
        for (position, value) in values.iter().enumerate() {
            let otherwise = if position + 1 == values.len() { no } else { Target::Next };
            self.push(EQUAL, *value, yes, otherwise);
        }
    }

    fn assemble(&self) -> Option<Vec<u64>> {
        let words = self.code.iter().enumerate().map(|(at, instruction)| {
            let (yes, no) = (self.offset(at, instruction.yes)?, self.offset(at, instruction.no)?);
            let low = u64::from(instruction.code) | u64::from(yes) << 16 | u64::from(no) << 24;
            Some(low | u64::from(instruction.value) << 32)
        });
        words.collect()
    }

    /// How many instructions a jump at `at` skips to get to `target`.
    fn offset(&self, at: usize, target: Target) -> Option<u8> {
        let index = match target {
            Target::Next => at + 1,
            Target::At(index) => index,
            Target::Answer(answer) => self.tails.iter().find(|(known, _)| *known == answer)?.1,
        };
        u8::try_from(index.checked_sub(at + 1)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::rules;

    /// Runs the program as the kernel would and returns its verdict.
    fn run(program: &[u64], arch: u32, number: u32, args: [u32; 3]) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let word = program[at];
            let (code, value) = (word as u16, (word >> 32) as u32);
            let jump = |taken: bool| 1 + ((word >> if taken { 16 } else { 24 }) & 0xff) as usize;
            at += match code {
                LOAD => {
                    accumulator = match value {
                        NUMBER => number,
                        ARCH => arch,
                        16 => args[0],
                        24 => args[1],
                        32 => args[2],
                        other => panic!("offset {other}"),
                    };
                    1
                }
                EQUAL => jump(accumulator == value),
                AT_LEAST => jump(accumulator >= value),
                ANY_BIT => jump(accumulator & value != 0),
                RETURN => return value,
                other => panic!("code {other:#x}"),
            };
        }
    }

    const EPERM: u32 = ERRNO | libc::EPERM as u32;
    const ENOSYS: u32 = ERRNO | libc::ENOSYS as u32;
    const NO_FAMILY: u32 = ERRNO | libc::EAFNOSUPPORT as u32;
    const NO_PROTOCOL: u32 = ERRNO | libc::EPROTONOSUPPORT as u32;

    #[test]
    fn every_number_gets_its_answer_from_the_table() {
        let table = rules::table();
        let program = compile(&table).unwrap();
        assert!(program.len() <= 200, "{} instructions", program.len());
        for (number, answer) in table.iter().enumerate() {
            let expected = match answer {
                Answer::Missing => ENOSYS,
                Answer::Refuse => EPERM,
                // Of no family.
                Answer::Socket => NO_FAMILY,
                _ => ALLOW,
            };
            assert_eq!(run(&program, ARCH_X86_64, number as u32, [0; 3]), expected, "call {number}");
        }
        for number in [NUMBERS as u32, 1 << 20, X32_BIT - 1, X32_BIT, X32_BIT + 1, u32::MAX] {
            assert_eq!(run(&program, ARCH_X86_64, number, [0; 3]), ENOSYS, "call {number}");
        }
        assert_eq!(run(&program, 0x4000_0003, 1, [0; 3]), KILL, "i386");
    }

    #[test]
    fn arguments_decide_where_they_must() {
        let program = compile(&rules::table()).unwrap();
        let ask =
            |number: i64, [first, second]: [u32; 2]| run(&program, ARCH_X86_64, number as u32, [first, second, 0]);
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET, libc::CLONE_NEWPID] {
            assert_eq!(ask(libc::SYS_clone, [flag as u32, 0]), EPERM);
            assert_eq!(ask(libc::SYS_unshare, [flag as u32, 0]), EPERM);
        }
        assert_eq!(ask(libc::SYS_clone, [(libc::CLONE_VM | libc::CLONE_THREAD) as u32 | 17, 0]), ALLOW);
        assert_eq!(ask(libc::SYS_unshare, [libc::CLONE_FILES as u32, 0]), ALLOW);
        assert_eq!(ask(libc::SYS_personality, [0x4_0000, 0]), EPERM);
        assert_eq!(ask(libc::SYS_personality, [u32::MAX, 0]), ALLOW);
        assert_eq!(ask(libc::SYS_ioctl, [0, libc::TIOCSTI as u32]), EPERM);
        assert_eq!(ask(libc::SYS_ioctl, [0, libc::TIOCGWINSZ as u32]), ALLOW);
    }

    #[test]
    fn sockets_are_of_the_families_and_protocols_that_programs_need() {
        let program = compile(&rules::table()).unwrap();
        let tcp = libc::IPPROTO_TCP;
        for (family, protocol, expected) in [
            (libc::AF_UNIX, 0, ALLOW),
            (libc::AF_UNIX, libc::PF_UNIX, ALLOW),
            (libc::AF_INET, 0, ALLOW),
            (libc::AF_INET, tcp, ALLOW),
            (libc::AF_INET, libc::IPPROTO_ICMP, ALLOW),
            (libc::AF_INET6, libc::IPPROTO_UDP, ALLOW),
            (libc::AF_INET6, libc::IPPROTO_ICMPV6, ALLOW),
            (libc::AF_INET, libc::IPPROTO_MPTCP, NO_PROTOCOL),
            (libc::AF_INET6, libc::IPPROTO_MPTCP, NO_PROTOCOL),
            (libc::AF_INET, libc::IPPROTO_SCTP, NO_PROTOCOL),
            (libc::AF_NETLINK, libc::NETLINK_ROUTE, ALLOW),
            (libc::AF_NETLINK, libc::NETLINK_KOBJECT_UEVENT, NO_PROTOCOL),
            (libc::AF_NETLINK, libc::NETLINK_AUDIT, NO_PROTOCOL),
            // Its number is TCP's, as an internet protocol.
            (libc::AF_NETLINK, libc::NETLINK_XFRM, NO_PROTOCOL),
            (libc::AF_UNSPEC, 0, NO_FAMILY),
            (libc::AF_PACKET, 0, NO_FAMILY),
            (libc::AF_VSOCK, 0, NO_FAMILY),
            (libc::AF_ALG, 0, NO_FAMILY),
            (libc::AF_TIPC, 0, NO_FAMILY),
        ] {
            for call in [libc::SYS_socket, libc::SYS_socketpair] {
                let args = [family as u32, libc::SOCK_STREAM as u32, protocol as u32];
                assert_eq!(run(&program, ARCH_X86_64, call as u32, args), expected, "family {family}, {protocol}");
            }
        }
    }

    #[test]
    fn what_a_start_and_a_program_cannot_do_without_is_allowed() {
        let table = rules::table();
        for call in [
            libc::SYS_rt_sigreturn,
            libc::SYS_futex,
            libc::SYS_munmap,
            libc::SYS_close,
            libc::SYS_sendto,
            libc::SYS_execve,
            libc::SYS_ptrace,
            libc::SYS_exit_group,
            libc::SYS_rseq,
            libc::SYS_write,
        ] {
            assert_eq!(table[call as usize], Answer::Allow, "call {call}");
        }
        for call in [
            libc::SYS_io_uring_setup,
            libc::SYS_clone3,
            libc::SYS_io_setup,
            libc::SYS_io_submit,
            libc::SYS_modify_ldt,
            libc::SYS_memfd_secret,
        ] {
            assert_eq!(table[call as usize], Answer::Missing, "call {call}");
        }
        for call in [libc::SYS_bpf, libc::SYS_userfaultfd, libc::SYS_mount, libc::SYS_setns, libc::SYS_keyctl] {
            assert_eq!(table[call as usize], Answer::Refuse, "call {call}");
        }
    }
}
