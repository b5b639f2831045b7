//! What is asked of the operating system beside threads and memory.

/// Asks for the calling thread's sleeps to end when they should. Linux else lets them last fifty
/// microseconds longer, so that it can wake several threads at once. A wish: elsewhere it is nothing.
pub(crate) fn wake_on_time() {
    set_slack(1);
}

/// What is usual: for a thread that was started by one that is woken on time, and would inherit that.
pub(crate) fn wake_as_usual() {
    set_slack(50_000);
}

#[allow(unsafe_code, reason = "a call of the system's")]
#[allow(unused_variables, reason = "only Linux can be asked")]
fn set_slack(nanos: u32) {
    #[cfg(all(any(target_os = "linux", target_os = "android"), not(any(miri, loom))))]
    // SAFETY: it sets a number of the calling thread and touches no memory of ours.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, libc::c_ulong::from(nanos));
    }
}
