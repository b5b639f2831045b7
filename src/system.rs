//! What is asked of the operating system beside threads and memory.

/// Asks for the calling thread's sleeps to end when they should. Linux else lets them last fifty
/// microseconds longer, so that it can wake several threads at once. A wish: elsewhere it is nothing.
#[expect(unsafe_code, reason = "a call of the system's")]
pub(crate) fn wake_on_time() {
    #[cfg(all(any(target_os = "linux", target_os = "android"), not(any(miri, loom))))]
    // SAFETY: it sets a number of the calling thread and touches no memory of ours.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong);
    }
}
