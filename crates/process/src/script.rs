//! Scripts: system calls that another process makes, as data.
//!
//! A [`Script`] is a list of system calls with typed arguments (a value, a word in memory, the result of an earlier call) and the result
//! each must have. An [`Arena`] lays scripts, their data and the blob (`sys::blob`, the interpreter) out as the bytes of one mapping.
//! Two interpreters run these operations: the blob inside the process, and `zygote::stepper` from outside, one system call at a time.

pub(crate) mod sigframe;

use sys::{
    blob::{self, Kind, OP_BYTES, Op},
    remote::{PAGE, Range},
};

/// An argument of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Arg {
    /// This value.
    Value(u64),
    /// The low 32 bits of the result of an earlier call of the same script.
    Result(usize),
    /// The 32-bit word at this address when the call is made.
    Word(u64),
}

impl From<u64> for Arg {
    fn from(value: u64) -> Self {
        Self::Value(value)
    }
}

impl From<i32> for Arg {
    fn from(value: i32) -> Self {
        // Sign extended, as the kernel expects of -1 (AT_FDCWD, "any child").
        Self::Value(i64::from(value) as u64)
    }
}

/// What the result of a call must be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Check {
    /// Anything.
    Ignore,
    /// Not an error.
    Success,
    /// Exactly this.
    Equal(i64),
}

#[derive(Debug, Clone)]
enum Step {
    Call { nr: i64, args: Vec<Arg>, check: Check },
    Spawn { nr: i64, args: Vec<Arg>, child: u64, check: Check },
    Again { step: usize },
    Go { target: u64 },
    Store { address: u64, value: u64 },
    CountDown { word: u64 },
    WaitZero { word: u64 },
    Sigreturn { stack: u64 },
    Record { place: u64 },
    Trap,
    Unless { word: Word, value: u64, target: usize },
    Enter { arena: u64 },
}

/// A 64-bit word that decides where a script goes on.
#[derive(Debug, Clone, Copy)]
enum Word {
    /// The result of an earlier call of the same script.
    Result(usize),
    At(u64),
}

/// A list of steps, not yet at an address.
#[derive(Debug, Clone, Default)]
pub(crate) struct Script {
    steps: Vec<Step>,
}

impl Script {
    fn push(&mut self, step: Step) -> usize {
        self.steps.push(step);
        self.steps.len() - 1
    }

    /// System call `nr`; gives the step's index for [`Arg::Result`].
    pub(crate) fn call<const N: usize>(&mut self, nr: i64, args: [Arg; N], check: Check) -> usize {
        self.push(Step::Call { nr, args: args.to_vec(), check })
    }

    /// A clone; its child goes on with the script at `child`.
    pub(crate) fn spawn<const N: usize>(&mut self, nr: i64, args: [Arg; N], child: u64) -> usize {
        self.push(Step::Spawn { nr, args: args.to_vec(), child, check: Check::Success })
    }

    /// Like [`Self::spawn`], but a failed clone is passed over.
    pub(crate) fn try_spawn<const N: usize>(&mut self, nr: i64, args: [Arg; N], child: u64) -> usize {
        self.push(Step::Spawn { nr, args: args.to_vec(), child, check: Check::Ignore })
    }

    /// Goes on at an earlier step.
    pub(crate) fn again(&mut self, step: usize) {
        self.push(Step::Again { step });
    }

    /// Goes on with a placed script; gives the step's index for [`Arena::set_target`].
    pub(crate) fn go(&mut self, target: u64) -> usize {
        self.push(Step::Go { target })
    }

    /// Stores a word; gives the step's index for [`Self::again`].
    pub(crate) fn store(&mut self, address: u64, value: u64) -> usize {
        self.push(Step::Store { address, value })
    }

    /// Decrements a 32-bit word; wakes its waiters at 0.
    pub(crate) fn count_down(&mut self, word: u64) {
        self.push(Step::CountDown { word });
    }

    /// Waits until a 32-bit word is 0.
    pub(crate) fn wait_zero(&mut self, word: u64) {
        self.push(Step::WaitZero { word });
    }

    /// Leaves for the state in the signal frame at `stack`.
    pub(crate) fn sigreturn(&mut self, stack: u64) {
        self.push(Step::Sigreturn { stack });
    }

    /// In a failure handler: stores which operation failed and its result (two words).
    pub(crate) fn record(&mut self, place: u64) {
        self.push(Step::Record { place });
    }

    /// Hands control to the tracer.
    pub(crate) fn trap(&mut self) {
        self.push(Step::Trap);
    }

    /// Goes on with another arena, mapped at `arena`: with its blob, at its entry.
    pub(crate) fn enter(&mut self, arena: u64) {
        self.push(Step::Enter { arena });
    }

    /// Passes over the steps that follow, up to [`Self::land`], unless an earlier step's result was `value`.
    pub(crate) fn unless(&mut self, result: usize, value: u64) -> usize {
        self.push(Step::Unless { word: Word::Result(result), value, target: 0 })
    }

    /// The same unless the 64-bit word at `address` is `value`.
    pub(crate) fn unless_word(&mut self, address: u64, value: u64) -> usize {
        self.push(Step::Unless { word: Word::At(address), value, target: 0 })
    }

    /// Where an [`Self::unless`] goes on.
    pub(crate) fn land(&mut self, unless: usize) {
        let here = self.steps.len();
        if let Step::Unless { target, .. } = &mut self.steps[unless] {
            *target = here;
        }
    }

    /// Adds one `madvise` for each range, which must succeed.
    pub(crate) fn advise(&mut self, ranges: &[Range], advice: i32) {
        for range in ranges {
            let args = [range.start.into(), (range.end - range.start).into(), advice.into()];
            self.call(libc::SYS_madvise, args, Check::Success);
        }
    }

    /// Adds the steps of `other`, which must not name results.
    pub(crate) fn append(&mut self, other: Script) {
        self.steps.extend(other.steps);
    }
}

/// The bytes of one mapping: the blob's page, then data and scripts in the order they were added.
#[derive(Debug)]
pub(crate) struct Arena {
    base: u64,
    bytes: Vec<u8>,
    on_fail: u64,
}

impl Arena {
    /// An arena that will be mapped at `base`.
    pub(crate) fn new(base: u64) -> Self {
        let mut bytes = blob::code().to_vec();
        // The blob's page, then room for the entry.
        bytes.resize(PAGE as usize + OP_BYTES, 0);
        Self { base, bytes, on_fail: 0 }
    }

    /// Where it will be mapped.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Its bytes, whole pages.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len().next_multiple_of(PAGE as usize), 0);
        self.bytes
    }

    /// Address of what is added next with this alignment.
    fn align(&mut self, align: usize) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(align), 0);
        self.base + self.bytes.len() as u64
    }

    /// Adds bytes; gives their address.
    pub(crate) fn data(&mut self, bytes: &[u8], align: usize) -> u64 {
        let address = self.align(align);
        self.bytes.extend_from_slice(bytes);
        address
    }

    /// Adds words; gives their address.
    pub(crate) fn words(&mut self, words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.data(&bytes, 8)
    }

    /// Adds a NUL-terminated text; gives its address.
    pub(crate) fn text(&mut self, text: &[u8]) -> u64 {
        let address = self.data(text, 1);
        self.bytes.push(0);
        address
    }

    /// Overwrites words that were added before.
    pub(crate) fn write_words(&mut self, address: u64, words: &[u64]) {
        let at = (address - self.base) as usize;
        for (n, word) in words.iter().enumerate() {
            self.bytes[at + n * 8..at + n * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Scripts placed from now on go on with the script at `handler` when a step fails. Gives the handler until now.
    pub(crate) fn on_fail(&mut self, handler: u64) -> u64 {
        std::mem::replace(&mut self.on_fail, handler)
    }

    /// Address of one operation of a placed script.
    pub(crate) fn op_address(script: u64, step: usize) -> u64 {
        script + (step * OP_BYTES) as u64
    }

    /// Where a step of a placed script keeps its result.
    pub(crate) fn result_address(script: u64, step: usize) -> u64 {
        script + (step * OP_BYTES) as u64 + blob::RESULT_OFFSET
    }

    /// Places a script; gives the address of its first operation.
    pub(crate) fn place(&mut self, script: &Script) -> u64 {
        let address = self.align(8);
        let mut ops: Vec<Op> = script.steps.iter().map(|step| self.op(step, address)).collect();
        for step in &script.steps {
            match step {
                Step::Call { args, .. } | Step::Spawn { args, .. } => {
                    for arg in args {
                        if let Arg::Result(earlier) = arg {
                            ops[*earlier].flags |= blob::KEEP_RESULT;
                        }
                    }
                }
                Step::Unless { word: Word::Result(result), .. } => ops[*result].flags |= blob::KEEP_RESULT,
                _ => {}
            }
        }
        for op in &ops {
            self.bytes.extend_from_slice(&op.to_bytes());
        }
        address
    }

    /// The fixed place of the first operation. A process that maps the arena begins there, and goes on with the script at `entry`.
    pub(crate) fn set_entry(&mut self, entry: u64) {
        let mut script = Script::default();
        script.go(entry);
        let op = self.op(&script.steps[0], Self::entry_of(self.base));
        let at = PAGE as usize;
        self.bytes[at..at + OP_BYTES].copy_from_slice(&op.to_bytes());
    }

    /// Address of the first operation of an arena at `base`.
    pub(crate) fn entry_of(base: u64) -> u64 {
        base + PAGE
    }

    /// Replaces the first arguments of one placed step by values.
    pub(crate) fn set_args(&mut self, script: u64, step: usize, args: &[u64]) {
        self.write_words(script + (step * OP_BYTES) as u64 + blob::ARGS_OFFSET, args);
    }

    /// Makes a placed step go on elsewhere: for scripts that go on in each other.
    pub(crate) fn set_target(&mut self, script: u64, step: usize, target: u64) {
        self.write_words(script + (step * OP_BYTES) as u64 + blob::TARGET_OFFSET, &[target]);
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Keeps the result of one placed step, for a reader outside the script.
    pub(crate) fn keep_result(&mut self, script: u64, step: usize) -> u64 {
        let at = (script - self.base) as usize + step * OP_BYTES + 4;
        let flags = u32::from_le_bytes([self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]]);
        self.bytes[at..at + 4].copy_from_slice(&(flags | blob::KEEP_RESULT).to_le_bytes());
        Self::result_address(script, step)
    }

    fn op(&self, step: &Step, script: u64) -> Op {
        let blank =
            Op { kind: 0, flags: 0, nr: 0, args: [0; 6], result: 0, target: 0, expect: 0, on_fail: self.on_fail };
        let place = |args: &[Arg], op: &mut Op| place_args(op, args, script);
        let mut op = blank;
        let kind = match step {
            Step::Call { nr, args, check } => {
                op.nr = *nr as u64;
                place(args, &mut op);
                apply_check(&mut op, *check);
                Kind::Call
            }
            Step::Spawn { nr, args, child, check } => {
                op.nr = *nr as u64;
                place(args, &mut op);
                apply_check(&mut op, *check);
                op.target = *child;
                Kind::Spawn
            }
            Step::Again { step } => {
                op.target = script + (step * OP_BYTES) as u64;
                Kind::Jump
            }
            Step::Go { target } => {
                op.target = *target;
                Kind::Jump
            }
            Step::Store { address, value } => {
                op.args[0] = *address;
                op.args[1] = *value;
                Kind::Store
            }
            Step::CountDown { word } => {
                op.args[0] = *word;
                Kind::CountDown
            }
            Step::WaitZero { word } => {
                op.args[0] = *word;
                Kind::WaitZero
            }
            Step::Sigreturn { stack } => {
                op.args[0] = *stack;
                Kind::Sigreturn
            }
            Step::Record { place } => {
                op.args[0] = *place;
                Kind::Record
            }
            Step::Trap => Kind::Trap,
            Step::Enter { arena } => {
                op.args[0] = *arena;
                op.target = Self::entry_of(*arena);
                Kind::Enter
            }
            Step::Unless { word, value, target } => {
                op.args[0] = match *word {
                    Word::Result(result) => Self::result_address(script, result),
                    Word::At(address) => address,
                };
                op.args[1] = *value;
                op.target = script + (target * OP_BYTES) as u64;
                Kind::Unless
            }
        };
        op.kind = kind as u32;
        op
    }
}

fn place_args(op: &mut Op, args: &[Arg], script: u64) {
    for (n, arg) in args.iter().enumerate() {
        op.args[n] = match *arg {
            Arg::Value(value) => value,
            Arg::Result(earlier) => {
                op.flags |= blob::indirect(n);
                Arena::result_address(script, earlier)
            }
            Arg::Word(address) => {
                op.flags |= blob::indirect(n);
                address
            }
        };
    }
}

fn apply_check(op: &mut Op, check: Check) {
    match check {
        Check::Ignore => {}
        Check::Success => op.flags |= blob::CHECK_SUCCESS,
        Check::Equal(value) => {
            op.flags |= blob::CHECK_EQUAL;
            op.expect = value;
        }
    }
}
