//! The report of a panic names the task.

use std::env;
use std::io::{Read, Write};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{Grenade, panic_on_purpose, process_of, silence};
use tickwheel::{PanicHook, TaskPanic};

/// The name and the message that a hook got.
type Told = Arc<Mutex<Vec<(&'static str, Option<String>)>>>;

fn hook_that_notes() -> (PanicHook, Told) {
    let told = Told::default();
    let notes = Arc::clone(&told);
    let hook = PanicHook::new(move |panic: TaskPanic<'_>| {
        let message = panic.message().map(str::to_owned);
        notes.lock().expect("no panic").push((panic.name(), message));
    });
    (hook, told)
}

#[test]
fn s31_a_hook_is_told_the_name() {
    silence();
    let (hook, told) = hook_that_notes();
    assert_eq!(hook.catch("one", || 7), Some(7));
    assert_eq!(hook.catch("two", || -> u8 { panic_on_purpose() }), None);
    hook.report("three", Box::new(String::from("three's text")));
    hook.tell("four", &4);
    hook.catch(None, || panic_on_purpose());
    hook.report(None, Box::new("six"));
    hook.report(None, Box::new(7));
    let text = |text: &str| Some(String::from(text));
    let expected = [
        ("two", text("on purpose")),
        ("three", text("three's text")),
        ("four", None),
        ("a task", text("on purpose")),
        ("a task", text("six")),
        ("a task", None),
    ];
    assert_eq!(*told.lock().expect("no panic"), expected);
}

#[test]
fn s17_a_hook_and_a_payload_that_panic_are_survived() {
    silence();
    let hook = PanicHook::new(|_| panic_on_purpose());
    hook.report("a name", Box::new(Grenade));
    assert_eq!(hook.catch("a name", || -> u8 { std::panic::panic_any(Grenade) }), None);
}

#[test]
fn a_panic_shows_its_name() {
    let text = Arc::new(Mutex::new(String::new()));
    let shown = Arc::clone(&text);
    let hook = PanicHook::new(move |panic| *shown.lock().expect("whole") = format!("{panic:?}"));
    hook.report("my_app::beat", Box::new("text"));
    let shown = text.lock().expect("whole");
    assert!(shown.contains("my_app::beat") && shown.contains("text"), "{shown}");
}

// ----- without a hook, on standard error ------------------------------------------------------------------

const CHILD: &str = "TICKWHEEL_PANIC_CHILD";

/// The code with which the child ends when it came to its end, and nothing has panicked but what is to panic.
const TWO_PANICS: i32 = 37;

/// The number of panics that the child's own panic hook was told of.
static PANICS: AtomicI32 = AtomicI32::new(0);

/// Panics of every kind without a hook, in a process of its own.
#[test]
fn the_child() {
    if env::var_os(CHILD).is_none() {
        return; // another test starts it as a process
    }
    // Wait until the parent has closed or filled standard error.
    drop(std::io::stdin().read(&mut [0]));
    std::panic::set_hook(Box::new(|_| _ = PANICS.fetch_add(1, Ordering::Relaxed)));
    let hook = PanicHook::default();
    hook.catch("my_app::one", || panic!("first line\nsecond line"));
    hook.report("my_app::two", Box::new(2));
    hook.tell("my_app::three", &"three");
    hook.catch(None, || panic!("nobody knows who"));
    std::process::exit(TWO_PANICS - 2 + PANICS.load(Ordering::Relaxed));
}

fn child(standard_error: impl FnOnce(&mut std::process::Child) -> String) -> (ExitStatus, String) {
    let mut child = process_of(the_child)
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let text = standard_error(&mut child);
    (child.wait().expect("it ends"), text)
}

fn go_on(child: &mut std::process::Child) {
    child.stdin.take().expect("piped").write_all(b"\n").expect("it reads");
}

#[test]
fn s31_without_a_hook_a_line_names_the_task() {
    let (status, said) = child(|child| {
        go_on(child);
        let mut said = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut said).expect("it writes text");
        said
    });
    let expected = "\
        tickwheel: the task `my_app::one` has panicked: first line\n\
        tickwheel: the task `my_app::two` has panicked\n\
        tickwheel: the task `my_app::three` has panicked: three\n";
    assert_eq!((status.code(), said.as_str()), (Some(TWO_PANICS), expected));
}

#[test]
fn s17_a_standard_error_that_is_closed_costs_nothing() {
    let (status, _) = child(|child| {
        drop(child.stderr.take());
        go_on(child);
        String::new()
    });
    assert_eq!(status.code(), Some(TWO_PANICS), "it went on");
}
