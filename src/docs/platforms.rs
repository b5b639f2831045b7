//! Where the crate runs, and what it promises there: sleeps, clocks, memory, weak memory, builds without std.
//!
//! The promises S1 to S31 hold on every system that the table names, with two exceptions. A task is at most a tick late
//! (S2) **plus what the system adds**, and that differs. And where the clocks of two processors may differ by a step, as on
//! Windows (100 ns), a task may be early by that (S1).
//!
//! | system | how it sleeps | what the system adds to a tick of 1 ms, or to [`Precision::Exact`](crate::Precision::Exact) | how the memory of a peak goes back | how it is tested |
//! | --- | --- | --- | --- | --- |
//! | Linux | a futex, with the timer slack of the thread turned off | 30 us in the median, 120 us at p99 (W6) | `MADV_DONTNEED` | all suites, models, sanitizers, floods; x86-64 natively, i686 natively, aarch64 and s390x under emulation |
//! | Android | the same | the same; more while the system dozes | the same | compiles |
//! | Windows 10 since 1803, and 11 | a waitable timer of high resolution | 0.5 ms, where std's timed waits add 8 ms in the mean and 16 at most | `MEM_RESET`: pages leave the working set, and stay committed | suites, cross-built and run by wine |
//! | Windows before that | an older timer; the system's clock makes steps of 1 ms during a sleep (`timeBeginPeriod`) | 1 ms | the same | not tested |
//! | macOS, iOS, tvOS, watchOS, visionOS | a kqueue with a timer marked as critical, which the system does not put off | some 50 us, where std's waits may add an eighth of its length, 1 ms at most | `MADV_FREE`, which shows in RSS only when memory is short | compiles |
//! | FreeBSD, NetBSD, OpenBSD, illumos | as std does it | what std adds | `MADV_FREE` | compiles |
//! | WebAssembly with WASI | `thread::sleep` of the only thread | as the host does it | it does not | a program under node |
//! | WebAssembly without a system; anything without std | not at all: only [`wheel::Wheel`](crate::wheel::Wheel) | | | compiles |
//!
//! The figures for Linux are from `benches/peers`, with [`Precision::Exact`](crate::Precision::Exact). Those for
//! Windows and Apple's systems are what their makers document, and were not measured by us: wine does not have the
//! clock of Windows, and we had no Mac. "Compiles" means that the library is checked for that system, and no more. A
//! report of a run there is welcome.
//!
//! # Which thread sleeps how
//!
//! The tick thread, the workers of a [`pool`](crate::pool), the loops of [`message_loop`](crate::message_loop), the takers
//! of a [`DelayQueue`](crate::delay::DelayQueue), [`block_on`](crate::future::block_on) and a
//! [`TrampolineScheduler`](crate::rx::TrampolineScheduler) sleep with the same [`Sleeper`](crate::Sleeper), so the table
//! is for all of them. A clock of your own that calls [`Sleeper::sleep_for`](crate::Sleeper::sleep_for) has the same
//! sleeps. The bounded waits of `close`, `await_termination` and the like are std's: late, and never early.
//!
//! On Windows, on Apple's systems, and on Linux with a `BootClock`, a sleeper that has slept with a deadline holds one
//! handle or file descriptor, until it and its wakers are dropped. If the process has none left, std's waits take over.
//!
//! # Which clock to take
//!
//! | | while the machine is suspended | take it for |
//! | --- | --- | --- |
//! | [`SystemClock`](crate::SystemClock) on Linux, Android and Apple's systems | stands still | timeouts of requests, polls, frames: what the program itself counts |
//! | [`SystemClock`](crate::SystemClock) on Windows | goes on | the same; within five seconds after a resume, many timeouts are due |
//! | [`BootClock`](crate::BootClock) on Linux, Android, Apple's systems and Windows | goes on | sessions, leases, tokens, caches: what the world outside counts |
//! | [`ManualClock`](crate::ManualClock) | stands still | tests |
//!
//! | system | [`BootClock`](crate::BootClock) reads | and after a resume it wakes |
//! | --- | --- | --- |
//! | Linux, Android | `CLOCK_BOOTTIME` | at once, by a `timerfd` on that clock |
//! | Apple's systems | `CLOCK_MONOTONIC_RAW`, which is the continuous clock | at once, by a timer on that clock |
//! | Windows | the performance counter, as std does, which counts suspensions | within five seconds: a thread that waits for a deadline looks at the clock so often |
//! | others | what std reads; whether that counts suspensions, the system decides | as std does |
//!
//! No clock of the crate follows the calendar: when somebody sets the date, nothing moves.
//!
//! Where the clock has steps that are longer than a reading takes, two readings may be equal. Then the order of tasks of
//! equal deadlines (S3) is kept by a counter that all threads write, and not by readings of the clock, so a schedule from
//! many threads at once costs more. That is so on Windows, whose steps are 100 ns, and on some machines of Apple and in
//! some virtual machines. It is found out once in a process, by 256 readings.
//!
//! # What a target must have
//!
//! - Atomics of 64 bits. A target without them, such as mips32, gets a compile error that says so.
//! - For a tick thread: threads. On WebAssembly without threads [`Builder::build`](crate::Builder::build) returns
//!   [`BuildError::Thread`](crate::BuildError::Thread). A driven scheduler works, on any clock:
//!   [`Driver::advance`](crate::Driver::advance), [`turn`](crate::Driver::turn) and
//!   [`block_on`](crate::Driver::block_on); so do a delay queue, a trampoline, and a message loop.
//! - A clock. `wasm32-unknown-unknown` has none, and gets a compile error that names `wasm32-wasip1` and
//!   `default-features = false`.
//!
//! 32-bit and big-endian targets have the same code and the same promises. Nothing in memory depends on the order of
//! bytes.
//!
//! # Without std
//!
//! With `default-features = false` the crate is `#![no_std]`, needs an allocator, and consists of
//! [`wheel::Wheel`](crate::wheel::Wheel). It then has no dependencies. All other features bring std.
//!
//! ```toml
//! tickwheel = { version = "0.1", default-features = false }
//! ```
//!
//! # Weak memory
//!
//! Arm and others reorder what x86-64 does not. The models explore what each ordering allows, `scripts/litmus.py` goes
//! through every execution that the memory model of C11 permits, and `PROOF.md` says which proof sees what. An emulator
//! on x86-64 shows no reordering, so the runs under qemu show something else: that the code for Arm is right otherwise.
//!
//! # Compile time
//!
//! A clean build of the library and its dependencies takes 11 s of processor time, and 26 s with `--release`
//! (`cargo build --lib --timings`). `syn`, which `thiserror` brings, takes 3 s of that; a program that derives anything has
//! it already. Without std a build takes 0.3 s.
//!
//! # Run it yourself
//!
//! `scripts/platforms` checks, builds and runs all of this, as far as the tools are there, and says how to get those that
//! are missing. On Debian 12, in November 2026:
//!
//! | part | what ran | result |
//! | --- | --- | --- |
//! | `rust-1.85` | all test programs that need no more than the crate, on the oldest Rust that is supported | all passed |
//! | `windows` | the same, on Wine 8 | all passed: 956 tests |
//! | `i686` | the same, on this processor with 32 bits | all passed: 958 tests |
//! | `aarch64` | 13 programs that need no exact time, under qemu | all passed |
//! | `s390x` | five programs, under qemu | all passed |
//! | `wasm` | a program under node, and the wheel without std | all passed |
//! | `check` | the library, for twelve targets | all compile |
