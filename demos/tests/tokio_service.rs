//! The service on tokio answers, whichever timeouts it has.

use std::process::Command;

#[test]
fn it_answers_with_each_kind_of_timeouts() {
    let service = Command::new(env!("CARGO_BIN_EXE_tokio_service")).arg("1").output();
    let service = service.expect("it starts");
    let text = String::from_utf8_lossy(&service.stdout);
    assert!(service.status.success(), "{text}{}", String::from_utf8_lossy(&service.stderr));
    for name in ["no timeouts", "tickwheel::time", "tokio::time"] {
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name));
        let requests = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        assert!(requests.is_some_and(|requests| requests > 100.0), "{name} in:\n{text}");
    }
}
