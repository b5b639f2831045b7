//! The switch that stands in the mutated crate: which mutant is on, said by the environment before `main`.
//!
//! `MUTANT=n` turns on the one with that number. `MUTANTS_SEEN=file` turns on none, and at the end of the process
//! appends to the file the numbers of those that it came by.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// More than there are.
const ROOM: usize = 1 << 14;
const WATCH: u32 = u32::MAX;

static ON: AtomicU32 = AtomicU32::new(0);
static SEEN: [AtomicBool; ROOM] = [const { AtomicBool::new(false) }; ROOM];

#[inline]
pub fn on(number: u32) -> bool {
    match ON.load(Relaxed) {
        WATCH => {
            SEEN[number as usize].store(true, Relaxed);
            false
        }
        one => one == number,
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    unsafe extern "C" {
        safe fn atexit(call: extern "C" fn()) -> i32;
    }
    if let Ok(number) = env::var("MUTANT") {
        ON.store(number.parse().expect("MUTANT is a number"), Relaxed);
    } else if env::var_os("MUTANTS_SEEN").is_some() {
        ON.store(WATCH, Relaxed);
        atexit(tell);
    }
}

extern "C" fn tell() {
    let Some(file) = env::var_os("MUTANTS_SEEN") else { return };
    let seen: Vec<_> = (0..ROOM).filter(|&number| SEEN[number].load(Relaxed)).map(|number| number.to_string()).collect();
    if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(file) {
        let _ = writeln!(file, "{}", seen.join(" "));
    }
}
